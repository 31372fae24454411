"""Reads the log of a chain into its index: only what is new, and at first only the end."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import Any, Generic, TypeVar

from .. import models
from .._sync.client import Waybill
from ..errors import WaybillError
from .chain import Chain, Kind, Tenure, Texts
from .writers import Writers

C = TypeVar("C", bound=Chain)
#: Cards that are read of a long turn at first.
TAIL = 200
#: Chains that are kept of those that are not busy.
MOST_IDLE = 1024


class Log(Generic[C]):
    """The chains that this process has read. What callers other than admins and those of `trusted` have written raises UntrustedWriter; the turns of
    `ignored_turns` are not read."""

    def __init__(
        self, client: Waybill, kind: Kind, make: Callable[[str], C], *, trusted: Collection[str] = (), ignored_turns: Collection[str] = ()
    ) -> None:
        self.client = client
        self.kind = kind
        self._writers = Writers(client, kind, trusted)
        self._ignored = set(ignored_turns)
        self.texts = Texts(64 << 20)
        self._make = make
        self._known: OrderedDict[str, C] = OrderedDict()
        self._lock = Lock()

    def chain(self, name: Any) -> C:
        with self._lock:
            name = str(name)
            if name not in self._known:
                self._known[name] = self._make(name)
                if len(self._known) > MOST_IDLE:
                    self._forget_idle()
            self._known.move_to_end(name)
            return self._known[name]

    def _forget_idle(self) -> None:
        for one in [one for one in self._known.values() if not one.is_busy][:-MOST_IDLE]:
            if one.io.acquire(blocking=False):
                try:
                    if not one.is_busy:
                        del self._known[one.name]
                finally:
                    one.io.release()

    def held(self) -> list[C]:
        with self._lock:
            return [one for one in self._known.values() if one.held]

    def chains(self) -> list[C]:
        """Returns all chains of the project."""
        names: dict[str, str] = {}
        for turn in self._turns(f"{self.kind.name}={self.kind.noun}"):
            label = turn.labels.model_dump().get(self.kind.label, "")
            # The newest turn of a chain may have nothing in it yet.
            if label not in names and turn.n_steps:
                for one in self.client.api.list_cards(turn.output_box_id, most=1).items:
                    if one.reading.state == "live" and one.reading.metadata and one.reading.metadata.type == f"{self.kind.name}.tenure":
                        self._check(one.reading, turn.agent_turn_id)
                        names[label] = self._said(one.reading)[self.kind.noun]
        return [self.chain(name) for name in names.values()]

    def _turns(self, label: str, most: int = 100) -> Iterator[models.Summary]:
        """Returns turns with a label, newest first, and at first only a few."""
        after = None
        while True:
            page = self.client.api.list_turns(label=label, after=after, most=most)
            self._writers.read(turn.created_at for turn in page.items)
            for turn in page.items:
                if turn.agent_turn_id not in self._ignored:
                    self._writers.check(f"turn {turn.agent_turn_id} ({label})", turn.agent_turn_id, turn.started_by, turn.created_at)
                    yield turn
            after, most = page.next, 100
            if after is None:
                return

    def _of(self, chain: C, most: int = 100) -> Iterator[models.Summary]:
        """Returns the turns of a chain, newest first."""
        return self._turns(f"{self.kind.label}={chain.label}", min(100, most + len(self._ignored)))

    def _check(self, reading: models.Reading, turn_id: str) -> None:
        if reading.state == "live":
            writer = reading.metadata.author_id if reading.metadata else None
            self._writers.check(f"card {reading.card_id} of turn {turn_id or 'unknown'}", turn_id, writer, reading.created_at)

    def refresh(self, chain: C) -> None:
        """Reads what is new. One request if nothing is."""
        self._look(chain)
        if chain.held is not None and (chain.held.is_over or chain.held is not chain.head):
            chain.lose()

    def _look(self, chain: C) -> None:
        unread = list[models.Summary]()
        for turn in self._of(chain, most=1):
            unread.append(turn)
            # Before a turn with nothing in it, there may be one that another process still holds.
            if turn.agent_turn_id in chain.tenures or (turn.n_steps and not chain.tenures):
                break
        # If nothing is known, the end of the log will do.
        tail = None if chain.tenures else TAIL
        if tail:
            chain.is_partial = True  # also if reading fails on the way
        for turn in reversed(unread):
            self._read(chain, turn, tail)
        if tail and unread:
            chain.is_partial = not chain.tenures[unread[-1].agent_turn_id].is_first

    def is_next(self, chain: C, turn_id: str) -> bool:
        """Says whether a turn follows those that were read, and no other one does."""
        return all(one.agent_turn_id in chain.tenures or one.agent_turn_id == turn_id for one in islice(self._of(chain, most=2), 2))

    def load(self, chain: C) -> None:
        """Reads all of a chain."""
        if not chain.is_partial:
            return
        turns = list(self._of(chain))
        chain.forget()
        held, chain.tenures = chain.held, {}
        for one in reversed(turns):
            self._read(chain, one)
        chain.is_partial = False
        if held:
            known = chain.tenures[held.turn_id]
            held.place, held.last, held.n_steps, chain.tenures[held.turn_id] = known.place, known.last, known.n_steps, held

    def _read(self, chain: C, turn: models.Summary, tail: int | None = None) -> None:
        """Reads cards of a turn that are not in the index."""
        known = chain.tenures.setdefault(turn.agent_turn_id, Tenure(turn.agent_turn_id, turn.output_box_id))
        known.is_over = turn.status != "open"
        if known.n_steps == turn.n_steps:
            return
        if tail and turn.n_steps * 2 > tail:
            known.place = max(0, self.client.api.show_box(turn.output_box_id).length - tail)
        self.read_box(chain, known)
        known.n_steps = turn.n_steps

    def read_fence(self, chain: C, known: Tenure) -> None:
        """Reads who holds a turn of which only the end was read."""
        if known.fence is None:
            self._take(chain, known, self.client.api.list_cards(known.box_id, most=1).items, is_head=True)

    def read_box(self, chain: C, known: Tenure) -> None:
        while True:
            page = self.client.api.list_cards(known.box_id, after=known.place, most=1000)
            self._take(chain, known, page.items)
            known.place = int(page.next or (page.items[-1].place if page.items else known.place))
            if page.next is None:
                return

    def _take(self, chain: C, known: Tenure, placed: Sequence[models.Placed], *, is_head: bool = False) -> None:
        self._writers.read(one.reading.created_at for one in placed)
        for one in placed:
            reading = one.reading
            if reading.state != "live" and not chain.may_lack_cards:
                raise self._gone(chain, reading.card_id)
            # Others are messages to the turn, and what became of it.
            if reading.metadata is None or not str(reading.metadata.type).startswith(f"{self.kind.name}."):
                continue
            known.last = max(known.last, one.place)
            if reading.state != "live":
                continue
            self._check(reading, known.turn_id)
            if isinstance(reading.content, str):
                self.texts.keep(reading.card_id, reading.content)
            if reading.metadata.type == f"{self.kind.name}.tenure":
                said = self._said(reading)
                known.fence, known.is_first = said["fence"], said["prev"] is None
            elif isinstance(reading.content, str) and not is_head:
                self.apply(chain, str(reading.metadata.type), reading.content, reading.card_id)

    def apply(self, chain: C, card_type: str, text: str, card_id: str) -> None:
        for box_id, upto in chain.apply(card_type, text, card_id):
            source, after = Tenure("", box_id), 0
            while after < upto:
                page = self.client.api.list_cards(box_id, after=after, most=min(1000, upto - after))
                self._take(chain, source, page.items)
                after = int(page.next or upto)

    def fetch(self, card_ids: Sequence[str]) -> None:
        """Reads cards that are not here."""
        left = [card_id for card_id in dict.fromkeys(card_ids) if self.texts.get(card_id) is None]
        while left:
            said = self.client.api.show_cards({"card_ids": left[:1000]})
            self._writers.read(one.created_at for one in said.found)
            for one in said.found:
                self._keep(one)
            left = said.left_card_ids + left[1000:]

    def _keep(self, reading: models.Reading) -> str:
        self._check(reading, "")
        # Of a card that has expired or was erased, nothing is left.
        text = reading.content if isinstance(reading.content, str) else ""
        self.texts.keep(reading.card_id, text)
        return text

    def text(self, chain: C, card_ids: Sequence[str]) -> str:
        """Returns the text of a card, or of several that have pieces of it."""
        texts = [self.found(card_id) for card_id in card_ids]
        if "" in texts:
            raise self._gone(chain, card_ids[texts.index("")])
        return "".join(texts)

    def _gone(self, chain: C, card_id: str) -> WaybillError:
        noun = self.kind.noun
        return WaybillError(
            f"{noun} {chain.name}: card {card_id} is gone, which it is read from: retention or an erasure removed it. What is left of the {noun} "
            f"cannot be gone on with: begin again under another name"
        )

    def found(self, card_id: str) -> str:
        """Returns the text of a card: none if it is gone."""
        text = self.texts.get(card_id)
        return self._keep(self.client.api.show_card(card_id)) if text is None else text

    def _said(self, reading: models.Reading) -> dict[str, Any]:
        return json.loads(reading.content) if isinstance(reading.content, str) else {self.kind.noun: "", "fence": None, "prev": None}
