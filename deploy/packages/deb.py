"""Writes the Debian package with dpkg-deb: binary, systemd units, manual pages, completions."""

import gzip
import os
import subprocess
import tempfile
import time
from pathlib import Path

from build import EPOCH, ROOT, VERSION, Build

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MAINTAINER = f"{os.environ.get('DEBFULLNAME', 'Waybill')} <{os.environ.get('DEBEMAIL', 'waybill@localhost')}>"
COMPLETIONS = {
    "waybill.bash": "usr/share/bash-completion/completions/waybill",
    "waybill.zsh": "usr/share/zsh/vendor-completions/_waybill",
    "waybill.fish": "usr/share/fish/vendor_completions.d/waybill.fish",
}
# Parts that run keep the old binary until the operator restarts them, one after the other.
AFTER = """#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
	systemctl --system daemon-reload >/dev/null || true
fi
"""


def control(build: Build, installed: int) -> str:
    libraries = [f"libc6 (>= {build.platform.oldest[0]}.{build.platform.oldest[1]})"] if build.platform.oldest else []
    if libraries and b"\0libgcc_s.so.1\0" in build.binary.read_bytes():
        libraries.append("libgcc-s1")
    needs = f"Depends: {', '.join(libraries)}\n" if libraries else ""
    return (
        f"Package: waybill\nVersion: {VERSION.replace('-', '~')}-1\nArchitecture: {ARCHITECTURES[build.platform.arch]}\n"
        f"Maintainer: {MAINTAINER}\nInstalled-Size: {installed // 1024}\n{needs}Suggests: postgresql (>= 15), nats-server\n"
        "Section: database\nPriority: optional\nDescription: context kernel for multi-agent LLM systems\n"
        " Stores what agents know as immutable cards in PostgreSQL, hands them over by\n"
        " reference, records every handover, and can prove later what each agent saw.\n"
        " .\n"
        " waybill@serve, waybill@orchestrator and waybill@worker are its services.\n")


def copyright_of(build: Build) -> str:
    own = (f"Waybill\n\nCopyright {time.gmtime(EPOCH).tm_year} the authors of Waybill\n\n"
           "Licensed under the Apache License 2.0, which is in /usr/share/common-licenses/Apache-2.0.\n")
    others = [path for path in build.licences() if path.parent == ROOT / "deploy/packages/licences"]
    return own + "".join(f"\n---- {path.stem}\n\n{path.read_text()}" for path in others)


def write(build: Build, out: Path, level: int) -> Path:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "root"

        def put(name: str, data: bytes, mode: int = 0o644) -> None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)

        put("usr/bin/waybill", build.binary.read_bytes(), 0o755)
        for path in sorted((ROOT / "deploy/systemd").rglob("*")):
            if path.is_file():
                put(f"usr/lib/systemd/system/{path.relative_to(ROOT / 'deploy/systemd')}", path.read_bytes())
        put("etc/waybill/waybill.toml", b"# Settings of all parts of Waybill: see the documentation, and `waybill config show`.\n")
        put("DEBIAN/conffiles", b"/etc/waybill/waybill.toml\n")
        for path in sorted((build.folder / "man").glob("*.1")):
            put(f"usr/share/man/man1/{path.name}.gz", gzip.compress(path.read_bytes(), 9, mtime=0))
        for name, to in COMPLETIONS.items():
            if (path := build.folder / "completions" / name).exists():
                put(to, path.read_bytes())
        put("usr/share/doc/waybill/copyright", copyright_of(build).encode())
        stamp = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(EPOCH))
        changes = f"waybill ({VERSION.replace('-', '~')}-1) unstable; urgency=low\n\n  * See CHANGELOG.md.\n\n -- {MAINTAINER}  {stamp}\n"
        put("usr/share/doc/waybill/changelog.Debian.gz", gzip.compress(changes.encode(), 9, mtime=0))
        for path in [*build.licences(), build.bill()]:
            if path and path.parent == build.folder:
                put(f"usr/share/doc/waybill/{path.name}.gz", gzip.compress(path.read_bytes(), 9, mtime=0))
        if build.platform.oldest is None:
            put("usr/share/lintian/overrides/waybill", b"waybill: statically-linked-binary [usr/bin/waybill]\n")
        installed = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        put("DEBIAN/control", control(build, installed).encode())
        put("DEBIAN/postinst", AFTER.encode(), 0o755)
        to = out / f"waybill_{VERSION.replace('-', '~')}-1_{ARCHITECTURES[build.platform.arch]}.deb"
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            folder.chmod(0o755)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}", "--build", root, to],
            check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})
    return to

