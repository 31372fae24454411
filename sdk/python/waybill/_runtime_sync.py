"""What the synchronous client needs of its surroundings. `_runtime_async.py` has the same names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def place() -> object:
    """Returns what a connection belongs to. Threads share connections."""
    return None


def gather(actions: Iterable[Callable[[], T]]) -> list[T]:
    """Does several things one after the other, and returns their results in order."""
    return [action() for action in actions]
