"""Reads the log of a thread into its index: only what is new, and at first only the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from .. import models
from .._sync.client import Waybill
from ._codec import Texts, cards_of
from ._thread import Tenure, Thread

LABEL = "langgraph.thread"
#: Cards that are read of a long turn at first.
TAIL = 200


class Log:
    def __init__(self, client: Waybill, thread: Callable[[str], Thread]) -> None:
        self.client = client
        self.texts = Texts(64 << 20)
        self._thread = thread

    def threads(self) -> list[Thread]:
        """Returns all threads of the project."""
        names: dict[str, str] = {}
        for turn in self.client.turns(label="langgraph=thread"):
            label = turn.labels.model_dump().get(LABEL, "")
            # The newest turn of a thread may have nothing in it yet.
            if label not in names and turn.n_steps:
                for one in self.client.api.list_cards(turn.output_box_id, most=1).items:
                    if one.reading.state == "live" and one.reading.metadata and one.reading.metadata.type == "langgraph.tenure":
                        names[label] = _said(one.reading)["thread"]
        return [self._thread(name) for name in names.values()]

    def refresh(self, thread: Thread) -> None:
        """Reads what is new. One request if nothing is."""
        self._look(thread)
        if thread.held is not None and (thread.held.is_over or thread.held is not thread.head):
            thread.lose()

    def _look(self, thread: Thread) -> None:
        page = self.client.api.list_turns(label=f"{LABEL}={thread.label}", most=1)
        if not page.items:
            return
        newest = page.items[0]
        if newest.agent_turn_id not in thread.tenures:
            if thread.tenures:
                after = newest.agent_turn_id
                behind = [newest]
                while not any(one.agent_turn_id in thread.tenures for one in behind) and after:
                    page = self.client.api.list_turns(label=f"{LABEL}={thread.label}", after=after, most=100)
                    behind += page.items
                    after = page.next
                for one in reversed(behind):
                    self._read(thread, one)
                return
            # Nothing is known: the end of the log will do.
            thread.is_partial = True
            self._read(thread, newest, tail=TAIL)
            if thread.tenures[newest.agent_turn_id].is_first:
                thread.is_partial = False
        else:
            self._read(thread, newest)

    def load(self, thread: Thread) -> None:
        """Reads all of a thread."""
        if not thread.is_partial:
            return
        turns = list(self.client.turns(label=f"{LABEL}={thread.label}"))
        thread.forget()
        held, thread.tenures, thread.is_partial = thread.held, {}, False
        for one in reversed(turns):
            self._read(thread, one)
        if held:
            known = thread.tenures[held.turn_id]
            held.place, held.last, held.n_steps, thread.tenures[held.turn_id] = known.place, known.last, known.n_steps, held

    def _read(self, thread: Thread, turn: models.Summary, tail: int | None = None) -> None:
        """Reads cards of a turn that are not in the index."""
        known = thread.tenures.setdefault(turn.agent_turn_id, Tenure(turn.agent_turn_id, turn.output_box_id))
        known.is_over = turn.status != "open"
        if known.n_steps == turn.n_steps:
            return
        if tail and turn.n_steps * 2 > tail:
            known.place = max(0, self.client.api.show_box(turn.output_box_id).length - tail)
        known.n_steps = turn.n_steps
        self.read_box(thread, known)

    def read_fence(self, thread: Thread, known: Tenure) -> None:
        """Reads who holds a turn of which only the end was read."""
        if known.fence is None:
            self._take(thread, known, self.client.api.list_cards(known.box_id, most=1).items, is_head=True)

    def read_box(self, thread: Thread, known: Tenure) -> None:
        while True:
            page = self.client.api.list_cards(known.box_id, after=known.place, most=1000)
            self._take(thread, known, page.items)
            known.place = int(page.next or (page.items[-1].place if page.items else known.place))
            if page.next is None:
                return

    def _take(self, thread: Thread, known: Tenure, placed: Sequence[models.Placed], *, is_head: bool = False) -> None:
        for one in placed:
            reading = one.reading
            if reading.metadata is not None and str(reading.metadata.type).startswith("langgraph."):
                known.last = max(known.last, one.place)
            if reading.state != "live" or reading.metadata is None:
                continue
            if isinstance(reading.content, str):
                self.texts.keep(reading.card_id, reading.content)
            if reading.metadata.type == "langgraph.tenure":
                said = _said(reading)
                known.fence, known.is_first = said["fence"], said["prev"] is None
            elif isinstance(reading.content, str) and not is_head:
                self.apply(thread, str(reading.metadata.type), reading.content)

    def apply(self, thread: Thread, card_type: str, text: str) -> None:
        for box_id, upto in thread.apply(card_type, text):
            source, after = Tenure("", box_id), 0
            while after < upto:
                page = self.client.api.list_cards(box_id, after=after, most=min(1000, upto - after))
                self._take(thread, source, page.items)
                after = int(page.next or upto)

    def fetch(self, packed: Sequence[dict[str, Any]]) -> None:
        """Reads the cards that values name and that are not here: lists first, then what they name."""
        texts = self.texts
        for wanted in (
            [one["l"]["base"] for one in packed if "l" in one and one["l"]["base"]],
            [name for one in packed for name in self._cards(one)],
        ):
            left = [card_id for card_id in dict.fromkeys(wanted) if texts.get(card_id) is None]
            while left:
                said = self.client.api.show_cards({"card_ids": left[:1000]})
                for one in said.found:
                    texts.keep(one.card_id, one.content if isinstance(one.content, str) else "")
                left = said.left_card_ids + left[1000:]

    def _cards(self, packed: dict[str, Any]) -> list[str]:
        if "c" in packed:
            return packed["c"]
        return [card_id for ref in self.refs(packed["l"]) for card_id in cards_of(ref)] if "l" in packed else []

    def refs(self, listed: dict[str, Any]) -> list[str]:
        base: list[str] = self._json(listed["base"])[: listed["keep"]] if listed["base"] else []
        return base + listed["add"]

    def text(self, card_ids: Sequence[str]) -> str:
        """Returns the text of a card, or of several that have pieces of it."""
        return "".join(self._text(card_id) for card_id in card_ids)

    def _text(self, card_id: str) -> str:
        text = self.texts.get(card_id)
        if text is None:
            text = str(self.client.api.show_card(card_id).content)
            self.texts.keep(card_id, text)
        return text

    def _json(self, card_id: str) -> Any:
        return json.loads(self._text(card_id))


def _said(reading: models.Reading) -> dict[str, Any]:
    return json.loads(reading.content) if isinstance(reading.content, str) else {"thread": "", "fence": None, "prev": None}
