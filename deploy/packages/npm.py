"""Writes the npm packages: `waybill`, a launcher, and one package with the binary for each platform, of which npm installs the one that fits.
No script runs at installation."""

import json
from pathlib import Path

from build import ROOT, SUMMARY, VERSION, Build, tar

CPUS = {"x86_64": "x64", "aarch64": "arm64"}
LAUNCHER = ROOT / "deploy/packages/waybill.js"


def name(build: Build) -> str:
    return f"@waybill/{build.platform.os}-{CPUS[build.platform.arch]}"


def described(home: str, **fields) -> bytes:
    # npm accepts a provenance only if the package names the repository that it comes from.
    about = {"version": VERSION, "description": SUMMARY, "license": "Apache-2.0", "repository": {"type": "git", "url": f"git+{home}.git"}, **fields}
    return json.dumps(about, indent=2).encode()


def write(build: Build, out: Path, level: int, home: str) -> Path:
    """The package of one platform."""
    here = build.platform
    fields = {"name": name(build), "os": [here.os], "cpu": [CPUS[here.arch]], "preferUnplugged": True}
    if here.os == "linux" and here.oldest:
        fields["libc"] = ["glibc"]
    files: dict[str, bytes | Path] = {f"package/{path.name}": path for path in build.licences()}
    if bill := build.bill():
        files[f"package/{bill.name}"] = bill
    files |= {"package/package.json": described(home, **fields), "package/bin/waybill": build.binary}
    to = out / f"{fields['name'].removeprefix('@').replace('/', '-')}-{VERSION}.tgz"
    tar(to, files, {"package/bin/waybill"}, level)
    return to


def launcher(builds: list[Build], out: Path, level: int, home: str) -> Path:
    about = described(
        home, name="waybill", bin={"waybill": "waybill.js"}, engines={"node": ">=18"},
        optionalDependencies={name(build): VERSION for build in builds})
    to = out / f"waybill-{VERSION}.tgz"
    files = {
        "package/package.json": about, "package/waybill.js": LAUNCHER, "package/LICENSE": ROOT / "LICENSE",
        "package/README.md": ROOT / "sdk/python/README.md"}
    tar(to, files, {"package/waybill.js"}, level)
    return to
