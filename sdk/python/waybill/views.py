"""What was read from the server, in a form for programs, tests and people."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from . import models


#: Characters of a context that a failed assertion shows.
MOST_SHOWN = 8_000


def short(text: object, most: int = 60) -> str:
    words = " ".join(str(text).split())
    return words if len(words) <= most else words[: most - 1] + "…"


def table(rows: Iterable[Sequence[object]], head: Sequence[str]) -> str:
    """Lays rows out in columns."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def html_table(rows: Iterable[Sequence[object]], head: Sequence[str]) -> str:
    def row(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


@dataclass(frozen=True)
class Usage:
    """What a turn has used, without the turns below it."""

    n_steps: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    microdollars: int


class Context:
    """What a model saw in one call: each message with its layer, its tokens and the cards that it came from."""

    def __init__(self, turn_id: str, step_id: str | None, seen: models.Seen) -> None:
        self.turn_id = turn_id
        self.step_id = step_id
        self.seen = seen

    @property
    def messages(self) -> list[models.SeenMessage]:
        return self.seen.messages

    @property
    def omitted(self) -> list[models.Omitted]:
        """What was left out, and why."""
        return self.seen.omitted

    @property
    def receipt(self) -> models.Receipt:
        return self.seen.receipt

    @property
    def request_hash(self) -> str | None:
        """BLAKE3 hash of the request's bytes. `waybill.replay` renders them again and compares."""
        return self.seen.receipt.request_hash

    @property
    def n_tokens(self) -> int:
        return self.seen.receipt.n_tokens

    @property
    def text(self) -> str:
        """All that the messages say, tool calls included."""
        return "\n".join(_said(message) for message in self.messages)

    def assert_saw(self, *texts: str) -> Context:
        """Fails unless the model saw each of the texts."""
        for text in texts:
            if text not in self.text:
                raise AssertionError(f"the model did not see {text!r}. It saw:\n{self}\n\n{self.text[:MOST_SHOWN]}")
        return self

    def assert_did_not_see(self, *texts: str) -> Context:
        """Fails if the model saw one of the texts, and says in which message and from which cards."""
        for text in texts:
            for message in self.messages:
                if text in _said(message):
                    cards = ", ".join(source.card_id for source in message.sources)
                    raise AssertionError(f"the model saw {text!r} in message {message.n} ({message.layer}), from {cards or 'no card'}:\n{self}")
        return self

    def assert_within(self, *, tokens: int) -> Context:
        """Fails if the call had more tokens."""
        if self.n_tokens > tokens:
            raise AssertionError(f"the call had {self.n_tokens} tokens, more than {tokens}:\n{self}")
        return self

    def _rows(self) -> list[tuple[object, ...]]:
        return [(one.n, one.layer, one.role, one.n_tokens, short(_brief(one))) for one in self.messages]

    def __str__(self) -> str:
        return table(self._rows(), ("", "layer", "role", "tokens", "says")) + f"\n{self.n_tokens} tokens; {len(self.omitted)} left out"

    def __repr__(self) -> str:
        return f"<Context of step {self.step_id or 'last'}: {len(self.messages)} messages, {self.n_tokens} tokens>"

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("", "layer", "role", "tokens", "says"))


def _said(message: models.SeenMessage) -> str:
    calls = " ".join(f"→ {call.model_dump_json()}" for call in message.tool_calls or [])
    return " ".join(part for part in (str(message.content) if message.content is not None else "", calls) if part)


def _brief(message: models.SeenMessage) -> str:
    """Returns what a message says, without what the server puts before each question."""
    said = re.sub(r"<(turn__context)>.*?</\1>\s*", "", message.content or "", flags=re.DOTALL) or message.content or ""
    return " ".join([said, *(f"→ {call.tool_name}({named(call.arguments)})" for call in message.tool_calls or [])]).strip()


class Diff:
    """How two model calls differ."""

    def __init__(self, said: models.ShownDiff) -> None:
        self.said = said

    @property
    def cache_break(self) -> models.Break | None:
        """The first message that differs, and the cards that caused it: from here on the provider's prompt cache misses. None if there is none."""
        return self.said.first_break

    @property
    def same_tokens(self) -> int:
        return self.said.same_tokens

    @property
    def only_left(self) -> list[models.Line]:
        return self.said.only_left

    @property
    def only_right(self) -> list[models.Line]:
        return self.said.only_right

    def __repr__(self) -> str:
        broken = "none" if self.cache_break is None else f"message {self.cache_break.message}"
        return f"<Diff: {self.said.left_tokens} → {self.said.right_tokens} tokens, {self.same_tokens} the same, cache break: {broken}>"


class Replay:
    """The model calls of turns, composed again from the record and compared with their receipts."""

    def __init__(self, calls: list[models.VerifiedCall]) -> None:
        self.calls = calls

    @property
    def is_same(self) -> bool:
        return all(call.request == "ok" and call.cards == "ok" for call in self.calls)

    def assert_same_bytes(self) -> Replay:
        """Fails unless each call renders to the bytes that were sent. A turn without model calls fails too."""
        if not self.calls:
            raise AssertionError("there are no model calls with a receipt")
        wrong = [
            f"step {one.step_id}: {one.request}, cards {one.cards}: {one.why or ''}" for one in self.calls if one.request != "ok" or one.cards != "ok"
        ]
        if wrong:
            raise AssertionError("these calls do not render to the same bytes:\n" + "\n".join(wrong))
        return self

    def __repr__(self) -> str:
        return f"<Replay: {len(self.calls)} calls, {'all the same' if self.is_same else 'not all the same'}>"


class Story:
    """What a turn and the turns below it were asked (`?`), said, called (`→`), got back (`←`) and delivered (`=`), in order."""

    HEAD = ("time", "agent", "what happened")

    def __init__(self, turns: Sequence[tuple[models.Summary, list[models.Reading]]]) -> None:
        begun, top = turns[0][0].created_at, turns[0][0].recursion_depth
        found = [(turn.created_at, turn, f"? {turn.title or ''}") for turn, _ in turns]
        found += [(card.created_at, turn, said) for turn, cards in turns for card in cards if card.created_at and (said := _told(card))]
        # A deliverable is written together with the result of the call that it answers.
        found.sort(key=lambda line: (line[0], -line[1].recursion_depth))
        #: Of each line: seconds since the turn was started, profile, depth below the turn, and what happened.
        self.lines = [((at - begun).total_seconds(), turn.profile_name, turn.recursion_depth - top, said) for at, turn, said in found]

    def _rows(self) -> list[tuple[object, ...]]:
        rows = [(f"{seconds:5.1f} s", "  " * depth + str(who), said) for seconds, who, depth, said in self.lines]
        room = shutil.get_terminal_size((140, 24)).columns - max(len(who) for _, who, _ in rows) - 11
        return [(at, who, short(said, max(room, 40))) for at, who, said in rows]

    def __str__(self) -> str:
        return table(self._rows(), self.HEAD)

    def _repr_html_(self) -> str:
        return html_table(self._rows(), self.HEAD)


def _told(card: models.Reading) -> str:
    """Returns a line of a story. Nothing for other cards, such as reasoning, and for those that are gone."""
    said: Any = card.content
    kind = card.metadata.type if card.metadata and said is not None else ""
    if kind == "tool.call" and isinstance(said, dict):
        call = cast("dict[str, Any]", said)
        return f"→ {call.get('tool_name')}({named(as_text(call.get('arguments') or ''))})"
    if kind == "tool.result" and isinstance(said, dict):
        result = cast("dict[str, Any]", said)
        how = "" if result.get("status") == "success" else f"{result.get('status')}: "
        return f"← {how}{as_text(result.get('result'))}"
    marks = {"tool.call": "→ ", "tool.result": "← ", "agent.thought": "", "task.deliverable": "= "}
    return marks[kind] + as_text(said) if kind in marks else ""


def as_text(value: Any) -> str:
    """Returns text as it is, of an agent's answer what it delivered, and other values as JSON."""
    answer: dict[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if "deliverable" in answer:
        return as_text(answer["deliverable"])
    if "results" in answer:
        return " | ".join(as_text(one.get("summary") or one.get("error")) for one in answer["results"])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def named(arguments: str) -> str:
    """Returns the arguments of a call, which a model wrote as JSON, as Python writes them."""
    try:
        return ", ".join(f"{name}={value!r}" for name, value in json.loads(arguments or "{}").items())
    except (ValueError, AttributeError):
        return arguments


class Comparison:
    """Runs side by side; the first is what the others are compared with."""

    def __init__(self, runs: list[models.ComparedRun]) -> None:
        self.runs = runs

    def _rows(self) -> list[tuple[object, ...]]:
        return [
            (
                run.agent_turn_id[-12:],
                run.status,
                run.n_turns,
                run.n_steps,
                f"{run.input_tokens} → {run.output_tokens}",
                f"${run.microdollars / 1e6:.6f}",
                "" if run.seconds is None else f"{run.seconds:.1f} s",
                " ".join(f"{name}×{n}" for name, n in sorted(run.tools.items())),
                short(run.deliverable, 40),
            )
            for run in self.runs
        ]

    HEAD = ("turn", "status", "turns", "steps", "tokens", "cost", "time", "tools", "deliverable")

    def table(self) -> str:
        return table(self._rows(), self.HEAD)

    def __iter__(self) -> Any:
        return iter(self.runs)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return html_table(self._rows(), self.HEAD)
