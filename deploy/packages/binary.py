"""Reads from a binary which platform it is for, and what it needs there. A package is named by this, so its name cannot be wrong.

    python3 deploy/packages/binary.py FILE      # prints linux-x86_64 2.17: the platform, and the oldest glibc or macOS, or `static`
"""

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
LOAD, DYNAMIC, INTERPRETER = 1, 2, 3
STRINGS, NEEDED_VERSIONS, N_NEEDED_VERSIONS = 5, 0x6FFFFFFE, 0x6FFFFFFF
BUILD_VERSION, OLDEST_MACOS = 0x32, 0x24


@dataclass(frozen=True)
class Platform:
    os: str  # linux or darwin
    arch: str  # x86_64 or aarch64
    # The oldest glibc (on Linux) or macOS that it runs on. None: it is linked statically.
    oldest: tuple[int, int] | None

    @property
    def name(self) -> str:
        return f"{self.os}-{self.arch}"


def platform(path: Path) -> Platform:
    data = path.read_bytes()
    if data[:6] == b"\x7fELF\x02\x01":
        machine, = struct.unpack_from("<H", data, 18)
        return Platform("linux", ELF_MACHINES[machine], oldest_glibc(path, data))
    if data[:4] == b"\xcf\xfa\xed\xfe":
        machine, = struct.unpack_from("<I", data, 4)
        return Platform("darwin", MACH_MACHINES[machine], oldest_macos(path, data))
    raise SystemExit(f"{path} is neither an ELF nor a Mach-O program of 64 bits")


def oldest_glibc(path: Path, data: bytes) -> tuple[int, int] | None:
    """The newest version of glibc that a symbol asks for, from the table of needed versions."""
    table, = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    # Of each part: type, flags, offset in the file, address in memory, physical address, size in the file.
    parts = [struct.unpack_from("<IIQQQQ", data, table + size * place) for place in range(n)]
    interpreter = next((data[part[2]:part[2] + part[5]] for part in parts if part[0] == INTERPRETER), None)
    if interpreter is None:
        return None
    if b"musl" in interpreter:
        raise SystemExit(f"{path} is linked to musl dynamically; link it statically, or to glibc")

    def offset(address: int) -> int:
        return next(part[2] + address - part[3] for part in parts if part[0] == LOAD and part[3] <= address < part[3] + part[5])

    dynamic = next(part for part in parts if part[0] == DYNAMIC)
    values = dict(struct.iter_unpack("<QQ", data[dynamic[2]:dynamic[2] + dynamic[5] // 16 * 16]))
    strings, here, versions = offset(values[STRINGS]), offset(values[NEEDED_VERSIONS]), [(2, 17)]
    for _ in range(values[N_NEEDED_VERSIONS]):
        _, n_names, _, names, following = struct.unpack_from("<HHIII", data, here)
        at = here + names
        for _ in range(n_names):
            _, _, _, name, next_name = struct.unpack_from("<IHHII", data, at)
            text = data[strings + name:data.index(b"\0", strings + name)].decode()
            if text.startswith("GLIBC_2."):
                versions.append((2, int(text.split(".")[1])))
            at += next_name
        here += following
    return max(versions)


def oldest_macos(path: Path, data: bytes) -> tuple[int, int]:
    n, = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(n):
        command, size = struct.unpack_from("<II", data, at)
        if command in (BUILD_VERSION, OLDEST_MACOS):
            version, = struct.unpack_from("<I", data, at + (12 if command == BUILD_VERSION else 8))
            return version >> 16, version >> 8 & 0xFF
        at += size
    raise SystemExit(f"{path} does not say which macOS it needs")


if __name__ == "__main__":
    here = platform(Path(sys.argv[1]))
    print(here.name, "{}.{}".format(*here.oldest) if here.oldest else "static")
