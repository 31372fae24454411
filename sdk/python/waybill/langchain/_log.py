"""Reads the log of a thread: first lists of messages, then what they name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .._adapter.log import Log
from ._codec import cards_of
from ._thread import Kept, Key, Thread


class ThreadLog(Log[Thread]):
    def kept(self, thread: Thread, key: Key) -> Kept:
        """Returns a checkpoint and what its tasks wrote."""
        kept = thread.recent.get(key)
        if kept is None:
            self.fetch_kept(thread, [key])
            checkpoint, *writes = thread.cards.get(key, [None])
            kept = Kept(self._json(thread, checkpoint) if checkpoint and self.found(checkpoint) else None)
            for one in writes:
                if one and self.found(one):
                    kept.add(self._json(thread, one))
        return thread.keep(key, kept)

    def fetch_kept(self, thread: Thread, keys: Sequence[Key]) -> None:
        """Reads the cards of checkpoints that are not here, many in one request."""
        self.fetch([one for key in keys if key not in thread.recent for one in thread.cards.get(key, ()) if one])

    def fetch_values(self, thread: Thread, packed: Sequence[dict[str, Any]]) -> None:
        """Reads the cards that values name and that are not here: lists first, then what they name."""
        self.fetch([one["l"]["base"] for one in packed if "l" in one and one["l"]["base"]])
        self.fetch([name for one in packed for name in self._cards(thread, one)])

    def _cards(self, thread: Thread, packed: dict[str, Any]) -> list[str]:
        if "c" in packed:
            return packed["c"]
        return [card_id for ref in self.refs(thread, packed["l"]) for card_id in cards_of(ref)] if "l" in packed else []

    def refs(self, thread: Thread, listed: dict[str, Any]) -> list[str]:
        base: list[str] = self._json(thread, listed["base"])[: listed["keep"]] if listed["base"] else []
        return base + listed["add"]

    def _json(self, thread: Thread, card_id: str) -> Any:
        return json.loads(self.text(thread, [card_id]))
