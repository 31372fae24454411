"""What the asynchronous client needs of its surroundings. `_runtime_sync.py` has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def place() -> object:
    """Returns what a connection belongs to: a connection of one event loop is of no use in another."""
    return asyncio.get_running_loop()


def loaded(method: T) -> T:
    """Marks a method that reads from the server if need be. In the synchronous client it is a property."""
    return method


async def gather(actions: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Does several things at a time, and returns their results in order."""
    return list(await asyncio.gather(*[action() for action in actions]))
