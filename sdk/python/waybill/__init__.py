"""Waybill, a context kernel for multi-agent LLM systems: finds and runs the program that comes with this package."""

import os
import sys
from pathlib import Path

__version__ = "0.1.0"
__all__ = ["__version__", "find_binary"]


def find_binary() -> Path:
    """Returns the path of the program `waybill` in this package. Raises FileNotFoundError if the package has none for this platform."""
    path = Path(__file__).parent / "bin" / "waybill"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: this package has no program for this platform")
    return path


def main() -> None:
    """Replaces this process with the program, so that signals and the exit code are its own."""
    path = os.fspath(find_binary())
    os.execv(path, [path, *sys.argv[1:]])
