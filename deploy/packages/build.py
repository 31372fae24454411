"""What all packages share: the folder that deploy/release wrote for one platform, the version, the licences, and archives with fixed times."""

import gzip
import io
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from binary import Platform, platform

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
SUMMARY = "A context kernel for multi-agent LLM systems"
# The time of everything in a package, so that the same files give the same bytes. A zip cannot say an earlier one.
EPOCH = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)


@dataclass(frozen=True)
class Build:
    """One folder: `waybill`, and if they were made `man/`, `completions/`, `waybill.cdx.json`, `THIRD-PARTY.txt` and `PostgreSQL-…`, the licences
    of the PostgreSQL inside."""

    folder: Path
    platform: Platform

    @property
    def binary(self) -> Path:
        return self.folder / "waybill"

    def licences(self) -> list[Path]:
        third = [path for path in [self.folder / "THIRD-PARTY.txt", *sorted(self.folder.glob("PostgreSQL-*"))] if path.exists()]
        return [ROOT / "LICENSE", *sorted((ROOT / "deploy/packages/licences").iterdir()), *third]

    def bill(self) -> Path | None:
        """The bill of materials."""
        path = self.folder / "waybill.cdx.json"
        return path if path.exists() else None

    def beside(self) -> dict[str, Path]:
        """Everything but the binary, by its path in an archive."""
        found = {path.name: path for path in self.licences()}
        if bill := self.bill():
            found[bill.name] = bill
        for kind in ("man", "completions"):
            found |= {f"{kind}/{path.name}": path for path in sorted((self.folder / kind).glob("*"))}
        return found


def builds(folder: Path) -> list[Build]:
    found = [Build(path.parent, platform(path)) for path in sorted(folder.glob("*/waybill"))]
    names = [build.platform.name for build in found]
    if not found or len(set(names)) < len(names):
        raise SystemExit(f"{folder} must have a folder with `waybill` in it for each platform; it has {names or 'none'}")
    return found


def tar(to: Path, files: dict[str, bytes | Path], programs: set[str], level: int) -> None:
    """Writes a .tar.gz whose bytes depend only on what is in it."""
    with to.open("wb") as raw, gzip.GzipFile("", "wb", level, raw, EPOCH) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            data = content if isinstance(content, bytes) else content.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(data), EPOCH, 0o755 if name in programs else 0o644
            archive.addfile(member, io.BytesIO(data))
