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
            kept = Kept(self._json(checkpoint) if checkpoint and self.text([checkpoint]) else None)
            for one in writes:
                if one and self.text([one]):
                    kept.add(self._json(one))
        return thread.keep(key, kept)

    def fetch_kept(self, thread: Thread, keys: Sequence[Key]) -> None:
        """Reads the cards of checkpoints that are not here, many in one request."""
        self.fetch([one for key in keys if key not in thread.recent for one in thread.cards.get(key, ()) if one])

    def fetch_values(self, packed: Sequence[dict[str, Any]]) -> None:
        """Reads the cards that values name and that are not here: lists first, then what they name."""
        self.fetch([one["l"]["base"] for one in packed if "l" in one and one["l"]["base"]])
        self.fetch([name for one in packed for name in self._cards(one)])

    def _cards(self, packed: dict[str, Any]) -> list[str]:
        if "c" in packed:
            return packed["c"]
        return [card_id for ref in self.refs(packed["l"]) for card_id in cards_of(ref)] if "l" in packed else []

    def refs(self, listed: dict[str, Any]) -> list[str]:
        base: list[str] = self._json(listed["base"])[: listed["keep"]] if listed["base"] else []
        return base + listed["add"]

    def _json(self, card_id: str) -> Any:
        return json.loads(self.text([card_id]))
