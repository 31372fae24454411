"""Reads the log of a thread: first lists of messages, then what they name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .._adapter.log import Log
from ._codec import cards_of
from ._thread import Thread


class ThreadLog(Log[Thread]):
    def fetch_values(self, packed: Sequence[dict[str, Any]]) -> None:
        """Reads the cards that values name and that are not here: lists first, then what they name."""
        self.fetch([one["l"]["base"] for one in packed if "l" in one and one["l"]["base"]])
        self.fetch([name for one in packed for name in self._cards(one)])

    def _cards(self, packed: dict[str, Any]) -> list[str]:
        if "c" in packed:
            return packed["c"]
        return [card_id for ref in self.refs(packed["l"]) for card_id in cards_of(ref)] if "l" in packed else []

    def refs(self, listed: dict[str, Any]) -> list[str]:
        base: list[str] = json.loads(self.text([listed["base"]]))[: listed["keep"]] if listed["base"] else []
        return base + listed["add"]
