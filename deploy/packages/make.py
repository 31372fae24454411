#!/usr/bin/env python3
"""Makes the packages of a release from binaries that exist. Builds nothing, downloads nothing, and needs only the standard library.

    deploy/packages/make.py target/shipped target/packages                       # all kinds
    deploy/packages/make.py target/shipped target/packages --only wheel archive
    deploy/packages/make.py shipped packages --complete --url https://…          # a release: fails if a platform is missing

The first folder has a folder for each platform, as deploy/release writes it, with `waybill` in it.
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # the source folder stays as it is

import archive  # noqa: E402
import deb  # noqa: E402
import npm  # noqa: E402
import wheel  # noqa: E402
from build import builds  # noqa: E402

PLATFORMS = {"linux-x86_64", "linux-aarch64", "darwin-x86_64", "darwin-aarch64"}
KINDS = ["wheel", "npm", "deb", "archive"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("shipped", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
parser.add_argument("--complete", action="store_true", help="fail if a platform is missing")
parser.add_argument("--url", default="https://localhost", help="where the archives will be, for install.sh and the formula")
parser.add_argument("--home", default="https://localhost", help="the project's page, which packages name")
parser.add_argument("--level", type=int, choices=range(1, 10), default=9, help="how hard to compress")
arguments = parser.parse_args()

found = builds(arguments.shipped)
if arguments.complete and (missing := PLATFORMS - {build.platform.name for build in found}):
    raise SystemExit(f"no binary for {', '.join(sorted(missing))}")
out = arguments.out
out.mkdir(parents=True, exist_ok=True)
made = []
if "wheel" in arguments.only:
    made += [wheel.write(build, out, arguments.level, arguments.home) for build in found]
if "npm" in arguments.only:
    made += [npm.write(build, out, arguments.level, arguments.home) for build in found]
    made.append(npm.launcher(found, out, arguments.level, arguments.home))
if "deb" in arguments.only:
    made += [deb.write(build, out, arguments.level) for build in found if build.platform.os == "linux"]
if "archive" in arguments.only:
    archives = {build.platform.name: archive.write(build, out, arguments.level) for build in found}
    script, formula = archive.script(archives, arguments.url, out), archive.formula(archives, arguments.url, arguments.home, out)
    made += [*archives.values(), script, formula]
(out / "SHA256SUMS").write_text("".join(f"{archive.digest(path)}  {path.name}\n" for path in sorted(made)))
for path in sorted(made):
    print(f"{path.stat().st_size:>12,}  {path.name}")
