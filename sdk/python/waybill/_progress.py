"""How a turn goes, for a person: one line in a terminal, a table in a notebook, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from .views import html_table


class Progress:
    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.begun = time.monotonic()
        self.steps: dict[str, int] = {turn_id: 0}
        self.now: dict[str, str] = {turn_id: "started"}
        self._shown: Any = None
        self._is_terminal = sys.stderr.isatty()

    def take(self, kind: str, turn_id: str, status: str | None) -> None:
        self.steps.setdefault(turn_id, 0)
        if kind == "step":
            self.steps[turn_id] += 1
        if kind != "token":
            self.now[turn_id] = f"{kind} {status or ''}".strip()
        self._show()

    def end(self, status: str, n_steps: int) -> None:
        # The step that ends a turn has no event of its own.
        self.steps[self.turn_id] = max(n_steps, self.steps[self.turn_id])
        self.now[self.turn_id] = status
        self._show()
        if self._is_terminal and self._shown is None:
            print(file=sys.stderr)

    def line(self) -> str:
        n_turns, n_steps = len(self.steps), sum(self.steps.values())
        return f"{self.now[self.turn_id]}: {n_turns} turns, {n_steps} steps, {time.monotonic() - self.begun:.1f} s"

    def _show(self) -> None:
        if "IPython" in sys.modules and self._in_notebook():
            return
        if self._is_terminal:
            print(f"\r\x1b[K{self.line()}", end="", file=sys.stderr, flush=True)

    def _in_notebook(self) -> bool:
        from IPython import get_ipython  # pyright: ignore
        from IPython.display import HTML, display  # pyright: ignore

        if not hasattr(get_ipython(), "kernel"):  # pyright: ignore
            return False
        rows = [(turn_id[-12:], self.steps[turn_id], self.now.get(turn_id, "")) for turn_id in self.steps]
        content: Any = HTML(html_table(rows, ("turn", "steps", "now")))  # pyright: ignore
        if self._shown is None:
            self._shown = display(content, display_id=True)  # pyright: ignore
        else:
            self._shown.update(content)
        return True
