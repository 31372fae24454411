"""Writes the Python wheel: the module in sdk/python, and the binary in it. `uvx waybill-ai` runs it; nothing is built where it is installed."""

import base64
import hashlib
import re
import time
import tomllib
import zipfile
from pathlib import Path

from build import EPOCH, ROOT, SUMMARY, VERSION, Build

NAME = "waybill-ai"  # `waybill` belongs to another project
MODULE = ROOT / "sdk/python/waybill"
PROJECT = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]


def version() -> str:
    """The version as Python writes it: 0.2.0-rc.1 is 0.2.0rc1."""
    return re.sub(r"-(a|b|rc)[a-z]*\.?(\d+)$", r"\1\2", VERSION)


def tags(build: Build) -> list[str]:
    here, oldest = build.platform, build.platform.oldest
    if here.os == "darwin":
        arch = "arm64" if here.arch == "aarch64" else here.arch
        major, minor = oldest if oldest < (11, 0) else (oldest[0], 0)
        return [f"py3-none-macosx_{major}_{minor}_{arch}"]
    major, minor = oldest or (2, 17)
    found = [f"manylinux_{major}_{minor}_{here.arch}"]
    if (major, minor) == (2, 17):
        found.append(f"manylinux2014_{here.arch}")
    if oldest is None:
        found.append(f"musllinux_1_1_{here.arch}")
    return [f"py3-none-{tag}" for tag in found]


def metadata(licences: list[Path], home: str) -> str:
    readme = (ROOT / "sdk/python/README.md").read_text()
    fields = [
        "Metadata-Version: 2.4", f"Name: {NAME}", f"Version: {version()}", f"Summary: {SUMMARY}", "Requires-Python: >=3.10",
        *(f"Requires-Dist: {needed}" for needed in PROJECT["dependencies"]), "Provides-Extra: test",
        *(f'Requires-Dist: {needed}; extra == "test"' for needed in PROJECT["optional-dependencies"]["test"]),
        "License-Expression: Apache-2.0", *(f"License-File: {path.name}" for path in licences),
        f"Project-URL: Source, {home}", "Description-Content-Type: text/markdown",
    ]
    return "\n".join(fields) + "\n\n" + readme


def write(build: Build, out: Path, level: int, home: str) -> Path:
    about = f"waybill_ai-{version()}.dist-info"
    if f'__version__ = "{version()}"' not in (MODULE / "__init__.py").read_text():
        raise SystemExit(f"{MODULE}/__init__.py is not of version {version()}")
    marks = tags(build)
    wheel = "\n".join(["Wheel-Version: 1.0", "Generator: waybill", "Root-Is-Purelib: false", *(f"Tag: {tag}" for tag in marks), ""])
    scripts = "[console_scripts]\nwaybill = waybill:main\nwaybill-ai = waybill:main\n\n[pytest11]\nwaybill = waybill.testing\n"
    sources = (path for path in sorted(MODULE.rglob("*")) if path.suffix in (".py", ".typed"))
    files = {f"waybill/{path.relative_to(MODULE)}": path.read_bytes() for path in sources}
    files["waybill/bin/waybill"] = build.binary.read_bytes()
    files |= {f"{about}/licenses/{path.name}": path.read_bytes() for path in build.licences()}
    if bill := build.bill():
        files[f"{about}/sboms/{bill.name}"] = bill.read_bytes()
    for name, text in {"METADATA": metadata(build.licences(), home), "WHEEL": wheel, "entry_points.txt": scripts}.items():
        files[f"{about}/{name}"] = text.encode()

    def hashed(data: bytes) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = [f"{name},sha256={hashed(data)},{len(data)}" for name, data in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    platforms = ".".join(tag.removeprefix("py3-none-") for tag in marks)
    to = out / f"waybill_ai-{version()}-py3-none-{platforms}.whl"
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, time.gmtime(EPOCH)[:6])
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o100755 if name == "waybill/bin/waybill" else 0o100644) << 16
            archive.writestr(member, data, compresslevel=level)
    return to
