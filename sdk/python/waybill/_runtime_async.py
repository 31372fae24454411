"""What the asynchronous client needs of its surroundings. `_runtime_sync.py` has the same names."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def place() -> object:
    """Returns what a connection belongs to: a connection of one event loop is of no use in another."""
    return asyncio.get_running_loop()


def is_gone(loop: Any) -> bool:
    """Says whether connections that belong to it are of no use any more."""
    return bool(loop.is_closed())


def loaded(method: T) -> T:
    """Marks a method that reads from the server if need be. In the synchronous client it is a property."""
    return method
