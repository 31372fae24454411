"""Reads the log of a chain into its index: only what is new, and at first only the end."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from .. import models
from .._sync.client import Waybill
from .chain import Chain, Kind, Tenure, Texts

C = TypeVar("C", bound=Chain)
#: Cards that are read of a long turn at first.
TAIL = 200


class Log(Generic[C]):
    """The chains that this process has read."""

    def __init__(self, client: Waybill, kind: Kind, make: Callable[[str], C]) -> None:
        self.client = client
        self.kind = kind
        self.texts = Texts(64 << 20)
        self._make = make
        self._known: OrderedDict[str, C] = OrderedDict()
        self._lock = Lock()

    def chain(self, name: Any) -> C:
        with self._lock:
            name = str(name)
            if name not in self._known:
                self._known[name] = self._make(name)
            self._known.move_to_end(name)
            if len(self._known) > 1024:
                oldest = next((one for one in self._known.values() if not one.is_busy), None)
                if oldest and oldest.name != name and oldest.io.acquire(blocking=False):
                    oldest.io.release()
                    del self._known[oldest.name]
            return self._known[name]

    def held(self) -> list[C]:
        with self._lock:
            return [one for one in self._known.values() if one.held]

    def chains(self) -> list[C]:
        """Returns all chains of the project."""
        names: dict[str, str] = {}
        for turn in self.client.turns(label=f"{self.kind.name}={self.kind.noun}"):
            label = turn.labels.model_dump().get(self.kind.label, "")
            # The newest turn of a chain may have nothing in it yet.
            if label not in names and turn.n_steps:
                for one in self.client.api.list_cards(turn.output_box_id, most=1).items:
                    if one.reading.state == "live" and one.reading.metadata and one.reading.metadata.type == f"{self.kind.name}.tenure":
                        names[label] = self._said(one.reading)[self.kind.noun]
        return [self.chain(name) for name in names.values()]

    def refresh(self, chain: C) -> None:
        """Reads what is new. One request if nothing is."""
        self._look(chain)
        if chain.held is not None and (chain.held.is_over or chain.held is not chain.head):
            chain.lose()

    def _look(self, chain: C) -> None:
        page = self.client.api.list_turns(label=f"{self.kind.label}={chain.label}", most=1)
        if not page.items:
            return
        newest = page.items[0]
        if newest.agent_turn_id not in chain.tenures:
            if chain.tenures:
                after = newest.agent_turn_id
                behind = [newest]
                while not any(one.agent_turn_id in chain.tenures for one in behind) and after:
                    page = self.client.api.list_turns(label=f"{self.kind.label}={chain.label}", after=after, most=100)
                    behind += page.items
                    after = page.next
                for one in reversed(behind):
                    self._read(chain, one)
                return
            # Nothing is known: the end of the log will do.
            chain.is_partial = True
            self._read(chain, newest, tail=TAIL)
            if chain.tenures[newest.agent_turn_id].is_first:
                chain.is_partial = False
        else:
            self._read(chain, newest)

    def load(self, chain: C) -> None:
        """Reads all of a chain."""
        if not chain.is_partial:
            return
        turns = list(self.client.turns(label=f"{self.kind.label}={chain.label}"))
        chain.forget()
        held, chain.tenures, chain.is_partial = chain.held, {}, False
        for one in reversed(turns):
            self._read(chain, one)
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
        known.n_steps = turn.n_steps
        self.read_box(chain, known)

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
        for one in placed:
            reading = one.reading
            if reading.metadata is not None and str(reading.metadata.type).startswith(f"{self.kind.name}."):
                known.last = max(known.last, one.place)
            if reading.state != "live" or reading.metadata is None:
                continue
            if isinstance(reading.content, str):
                self.texts.keep(reading.card_id, reading.content)
            if reading.metadata.type == f"{self.kind.name}.tenure":
                said = self._said(reading)
                known.fence, known.is_first = said["fence"], said["prev"] is None
            elif isinstance(reading.content, str) and not is_head:
                self.apply(chain, str(reading.metadata.type), reading.content)

    def apply(self, chain: C, card_type: str, text: str) -> None:
        for box_id, upto in chain.apply(card_type, text):
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
            for one in said.found:
                self.texts.keep(one.card_id, one.content if isinstance(one.content, str) else "")
            left = said.left_card_ids + left[1000:]

    def text(self, card_ids: Sequence[str]) -> str:
        """Returns the text of a card, or of several that have pieces of it."""
        return "".join(self._text(card_id) for card_id in card_ids)

    def _text(self, card_id: str) -> str:
        text = self.texts.get(card_id)
        if text is None:
            text = str(self.client.api.show_card(card_id).content)
            self.texts.keep(card_id, text)
        return text

    def _said(self, reading: models.Reading) -> dict[str, Any]:
        return json.loads(reading.content) if isinstance(reading.content, str) else {self.kind.noun: "", "fence": None, "prev": None}
