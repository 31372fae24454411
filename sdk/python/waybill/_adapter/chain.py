"""One chain, as far as this process knows it: its turns, and an index of the cards in them.

A process that writes to a chain holds its newest turn; to take the chain over is to end that turn and to start the next. The cards of the turns, in
order, are a log. The first card of each turn, `….tenure`, says who holds the turn, and has the fence, so that another process with the same key
can end it.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any, ClassVar

from ..errors import WaybillError

Position = tuple[str | None, int]


@dataclass(frozen=True)
class Kind:
    """What the chains of an adapter are called."""

    #: It begins the types of cards, names of labels and keys of starts, such as `langgraph`.
    name: str
    #: Such as `thread`.
    noun: str
    #: The framework, for people.
    program: str
    #: The class that programs make, for its settings.
    adapter: str
    #: What is raised when another process has the chain, and what to do then.
    error: type[WaybillError]
    advice: str

    @property
    def label(self) -> str:
        return f"{self.name}.{self.noun}"

    def taken(self, chain: Chain, why: str) -> WaybillError:
        return self.error(f"{self.noun} {chain.name}: {why}. Nothing of this write was stored; {self.advice}")


@dataclass
class Tenure:
    """A turn of the chain."""

    turn_id: str
    box_id: str
    #: How many steps and cards of it are in the index, and where the last card is that belongs to the log.
    n_steps: int = 0
    place: int = 0
    last: int = 0
    fence: dict[str, Any] | None = None
    #: The name under which this process has claimed it.
    worker: str | None = None
    is_over: bool = False
    #: Whether nothing comes before it.
    is_first: bool = False


@dataclass
class Chain:
    name: str
    label: str = ""
    #: Guards all that is below, and requests about the chain.
    io: Any = field(default_factory=RLock)
    tenures: dict[str, Tenure] = field(default_factory=lambda: dict[str, Tenure]())
    #: Whether cards may not have been read: older ones, or all that follow a request that failed.
    is_partial: bool = False
    #: The tenure that this process holds.
    held: Tenure | None = None
    used_at: float = 0.0
    #: Boxes that the next turn is to have by reference.
    inherits: list[str] = field(default_factory=lambda: list[str]())
    #: Whether it can be gone on with if cards of it are gone.
    may_lack_cards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.label = hashlib.sha256(self.name.encode(errors="surrogatepass")).hexdigest()[:40]
        self.forget()

    @property
    def head(self) -> Tenure | None:
        return next(reversed(self.tenures.values()), None)

    @property
    def position(self) -> Position:
        return (self.head.turn_id, self.head.last) if self.head else (None, 0)

    @property
    def is_busy(self) -> bool:
        """Whether it is in use, so that it must stay in memory."""
        return self.held is not None

    def forget(self) -> None:
        """Empties the index."""

    def drop(self) -> None:
        """Forgets what was read: it is read again when it is needed."""
        self.forget()
        self.tenures, self.is_partial = {}, True

    def apply(self, card_type: str, text: str, card_id: str) -> list[Sequence[Any]]:
        """Takes a card into the index. Returns ranges of boxes that are to be taken next, as if they stood here."""
        return []

    def wrote(self) -> None:
        """Notes that a write was stored."""

    def lose(self) -> None:
        """Notes that another process may hold it."""
        self.held = None


class Texts:
    """Texts of cards that were read or written. Cards never change, so one that is here need not be read again."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def get(self, card_id: str) -> str | None:
        with self._lock:
            if card_id in self._texts:
                self._texts.move_to_end(card_id)
            return self._texts.get(card_id)

    def keep(self, card_id: str, text: str) -> None:
        with self._lock:
            self._held += len(text) - len(self._texts.pop(card_id, ""))
            self._texts[card_id] = text
            while self._held > self._most and len(self._texts) > 1:
                self._held -= len(self._texts.popitem(last=False)[1])


def dumps(value: Any) -> str:
    """Returns JSON. Text that UTF-8 cannot say is escaped, and so is the character that the server takes for an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("␛", r"\u241b")
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
