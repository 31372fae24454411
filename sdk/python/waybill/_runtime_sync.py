"""What the synchronous client needs of its surroundings. `_runtime_async.py` has the same names."""

from __future__ import annotations

import time
from typing import Any


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def place() -> object:
    """Returns what a connection belongs to. Threads share connections."""
    return None


def is_gone(place: Any) -> bool:
    """Says whether connections that belong to it are of no use any more."""
    return False
