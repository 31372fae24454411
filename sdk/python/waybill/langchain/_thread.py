"""One thread, as far as this process knows it: a chain of turns (see `_adapter/chain.py`), and an index of the cards in them.

The types of the cards:

    langgraph.tenure      who holds the turn, and the fence, so that another process with the same key can end it
    langgraph.message     one message
    langgraph.value       a value that is too long to stand in a checkpoint, or a piece of one
    langgraph.list        the messages of a long list: ids of cards
    langgraph.writes      what a task wrote
    langgraph.checkpoint  a checkpoint, with short values in it, and long ones by the ids of their cards
    langgraph.edit        what was deleted, pruned or copied
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langchain_core.messages import BaseMessage

from .._adapter.chain import Chain, Kind, Position
from ..errors import WaybillError

Key = tuple[str, str]


class ThreadTaken(WaybillError):
    """Another run has begun on the thread: nothing of this one was written. Do not go on with it; to start again, read the thread again."""


KIND = Kind("langgraph", "thread", "LangGraph", "WaybillSaver", ThreadTaken, "start a new run to go on from what is there")


@dataclass
class Listed:
    """A list of messages as it was stored last: the cards, and what each would be read as (None: not read yet)."""

    refs: list[str]
    messages: list[BaseMessage | None]
    base: str | None
    n_base: int


@dataclass
class Job:
    """A write that waits to be sent, and what came of it."""

    kind: str
    config: Any
    arguments: tuple[Any, ...]
    is_done: bool = False
    error: BaseException | None = None


@dataclass
class Run:
    """A run of the graph."""

    #: Where the log ended when it read the thread, or when it wrote to it last.
    read: Position
    #: What LangGraph hands on to each read and write of the run, parts of the graph included.
    control: object = None
    is_dead: bool = False


@dataclass
class Thread(Chain):
    mutex: Lock = field(default_factory=Lock)
    queue: list[Job] = field(default_factory=lambda: list[Job]())
    #: The run that may write.
    run: Run | None = None
    runs: OrderedDict[object, Run] = field(default_factory=lambda: OrderedDict[object, Run]())
    #: Where the log ended when the thread was last read or written here.
    seen: Position = (None, 0)

    @property
    def is_busy(self) -> bool:
        return self.held is not None or bool(self.queue)

    def forget(self) -> None:
        """Empties the index."""
        self.checkpoints: dict[Key, dict[str, Any]] = {}
        self.order: dict[str, list[str]] = {}
        self.hidden: set[Key] = set()
        self.writes: dict[Key, dict[tuple[str, int], tuple[str, dict[str, Any], str]]] = {}
        self.forget_written()

    def forget_written(self) -> None:
        """Forgets what may not have been written after all."""
        self.lists: dict[Key, Listed] = {}
        self.bodies: OrderedDict[bytes, list[str]] = OrderedDict()

    def begin(self, key: object, control: object) -> Run:
        """Notes a run that has read the thread as it is now."""
        run = self.runs[key] = Run(self.position, control)
        if len(self.runs) > 1000:
            # Those who only read do not push out a run.
            alike = [one for one, known in self.runs.items() if (known.control is None) == (control is None)]
            for one in alike[:-1000]:
                del self.runs[one]
        return run

    def give(self, run: Run | None) -> None:
        """Lets a run write. The one before it may write no more."""
        if self.run is not None:
            self.run.is_dead = True
        self.run = run

    def wrote(self) -> None:
        self.seen = self.position
        if self.run:
            self.run.read = self.position

    def lose(self) -> None:
        super().lose()
        self.give(None)
        self.forget_written()

    def known_body(self, body: bytes) -> list[str] | None:
        return self.bodies.get(body)

    def keep_body(self, body: bytes, card_ids: list[str]) -> None:
        self.bodies[body] = card_ids
        while len(self.bodies) > 10_000:
            self.bodies.popitem(last=False)

    def latest(self, ns: str) -> str | None:
        return next((one for one in reversed(self.order.get(ns, [])) if (ns, one) not in self.hidden), None)

    def apply(self, card_type: str, text: str) -> list[Sequence[Any]]:
        """Takes a card into the index. Returns ranges of boxes that are to be taken next, as if they stood here."""
        if card_type == "langgraph.checkpoint":
            said = json.loads(text)
            key = said["ns"], said["id"]
            if key not in self.checkpoints:
                self.order.setdefault(said["ns"], []).append(said["id"])
            self.checkpoints[key] = said
            self.hidden.discard(key)
        elif card_type == "langgraph.writes":
            said = json.loads(text)
            known = self.writes.setdefault((said["ns"], said["id"]), {})
            for n, channel, packed in said["w"]:
                if n < 0 or (said["task"], n) not in known:
                    known[said["task"], n] = (channel, packed, said["path"])
        elif card_type == "langgraph.edit":
            said = json.loads(text)
            if said["op"] == "delete":
                self.checkpoints, self.order, self.hidden, self.writes = {}, {}, set(), {}
                self.is_partial = False
            elif said["op"] == "hide":
                self.hidden.update((ns, one) for ns, one in said["ids"])
            elif said["op"] == "copy":
                return said["boxes"]
        return []
