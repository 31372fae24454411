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
import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from langchain_core.messages import BaseMessage

from .._adapter.chain import Chain, Kind, Position
from ..errors import WaybillError

Key = tuple[str, str]

#: Of one thread, the checkpoints that are kept as they were read, and the lists of messages. Of the others, the ids of their cards are kept.
MOST_RECENT, MOST_LISTS = 16, 8
#: For so long after a run has read a thread, it may still write to it.
RUN_SECONDS = 600


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
class Kept:
    """A checkpoint as its card has it (None: only what its tasks wrote was read), and what its tasks wrote."""

    said: dict[str, Any] | None = None
    writes: dict[tuple[str, int], tuple[str, dict[str, Any], str]] = field(
        default_factory=lambda: dict[tuple[str, int], tuple[str, dict[str, Any], str]]()
    )

    def add(self, written: dict[str, Any]) -> None:
        for n, channel, packed in written["w"]:
            if n < 0 or (written["task"], n) not in self.writes:
                self.writes[written["task"], n] = (channel, packed, written["path"])


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
    #: When a run has read it last.
    begun_at: float = -math.inf

    @property
    def is_busy(self) -> bool:
        return self.held is not None or bool(self.queue) or time.monotonic() - self.begun_at < RUN_SECONDS

    def forget(self) -> None:
        """Empties the index."""
        self._empty()
        self.forget_written()

    def _empty(self) -> None:
        #: Of each checkpoint, the card that has it (None: not read), and the cards that have what its tasks wrote.
        self.cards: dict[Key, list[str | None]] = {}
        self.order: dict[str, list[str]] = {}
        self.hidden: set[Key] = set()
        #: The checkpoints that were written or read last.
        self.recent: OrderedDict[Key, Kept] = OrderedDict()

    def forget_written(self) -> None:
        """Forgets what may not have been written after all."""
        self.lists: OrderedDict[Key, Listed] = OrderedDict()
        self.bodies: OrderedDict[bytes, list[str]] = OrderedDict()

    def begin(self, key: object, control: object) -> Run:
        """Notes a run that has read the thread as it is now."""
        run = self.runs[key] = Run(self.position, control)
        if control is not None:
            self.begun_at = time.monotonic()
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

    def has(self, key: Key) -> bool:
        return self.cards.get(key, (None,))[0] is not None

    def keep(self, key: Key, kept: Kept) -> Kept:
        self.recent[key] = kept
        self.recent.move_to_end(key)
        if len(self.recent) > MOST_RECENT:
            self.recent.popitem(last=False)
        return kept

    def keep_list(self, key: Key, listed: Listed) -> None:
        self.lists[key] = listed
        self.lists.move_to_end(key)
        if len(self.lists) > MOST_LISTS:
            self.lists.popitem(last=False)

    def apply(self, card_type: str, text: str, card_id: str) -> list[Sequence[Any]]:
        """Takes a card into the index. Returns ranges of boxes that are to be taken next, as if they stood here."""
        if card_type in ("langgraph.checkpoint", "langgraph.writes"):
            said = json.loads(text)
            key = said["ns"], said["id"]
            kept = self.recent.get(key)
            if key not in self.cards:
                self.cards[key] = [None]
                kept = self.keep(key, Kept())
            if card_type == "langgraph.writes":
                self.cards[key].append(card_id)
                if kept:
                    kept.add(said)
                return []
            if not self.has(key):
                self.order.setdefault(key[0], []).append(key[1])
            self.cards[key][0] = card_id
            if kept:
                kept.said = said
            self.hidden.discard(key)
        elif card_type == "langgraph.edit":
            said = json.loads(text)
            if said["op"] == "delete":
                self._empty()
                self.is_partial = False
            elif said["op"] == "hide":
                self.hidden.update((ns, one) for ns, one in said["ids"])
            elif said["op"] == "copy":
                return said["boxes"]
        return []
