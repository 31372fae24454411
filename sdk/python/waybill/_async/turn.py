"""A turn: started, watched, waited for, looked at, forked."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .._progress import Progress
from .._runtime_async import loaded, sleep
from ..errors import ApiError, NotYet, TurnFailed
from ..schema import read_value
from ..views import Context, Diff, Replay, Story, Usage, named, short
from ..wire import EventReader, Pauses
from .operations import OPERATIONS
from .transport import SILENCE

if TYPE_CHECKING:
    from .. import models
    from .client import AsyncWaybill

T = TypeVar("T")

#: The longest wait that the server grants in one request.
LONGEST_WAIT = 30.0
#: The events of a turn that is over have come after so many seconds.
SETTLED = 5.0
#: Turns whose tokens one stream may carry.
MOST_SPEAKERS = 8
OVER = ("success", "failed", "canceled", "timeout")


class AsyncRequest:
    """A person is asked: to approve a tool call, or to answer a question."""

    def __init__(self, client: AsyncWaybill, call_id: str, said: models.ShownRequest | models.WholeRequest | None = None) -> None:
        self._client = client
        self.id = call_id
        self.said = said

    @property
    def tool(self) -> str | None:
        return self.said.tool if self.said else None

    @property
    def question(self) -> str | None:
        return self.said.request.question if self.said and self.said.request else None

    @property
    def profile(self) -> str | None:
        """Profile of the agent that asks."""
        return self.said.profile_name if self.said else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the tool call that waits for an approval. Empty if the agent asks something else."""
        about = self.said.request.about if self.said and self.said.request else None
        return dict(cast("dict[str, Any]", about).get("arguments") or {}) if isinstance(about, dict) else {}

    @property
    def is_decided(self) -> bool:
        return self.said is not None and self.said.decided is not None

    async def approve(self, note: str | None = None) -> models.RequestDecided:
        return await self._decide({"decision": "approved", "note": note})

    async def reject(self, note: str | None = None) -> models.RequestDecided:
        return await self._decide({"decision": "rejected", "note": note})

    async def answer(self, answer: Any, note: str | None = None) -> models.RequestDecided:
        return await self._decide({"decision": "answered", "answer": answer, "note": note})

    async def _decide(self, said: dict[str, Any]) -> models.RequestDecided:
        return await self._client.api.decide_request(self.id, {name: value for name, value in said.items() if value is not None})

    def __repr__(self) -> str:
        asked = f"{self.tool}({named(json.dumps(self.arguments))})" if self.arguments else self.question or ""
        return f"<Request {self.id}: {self.profile} asks: {short(asked, 200)}>"


@dataclass(frozen=True)
class AsyncEvent:
    """Something that happened: `state`, `step`, `request`, `task` (a turn has ended), or `token` (a piece of what a model is writing)."""

    kind: str
    turn_id: str
    data: dict[str, Any] = field(repr=False)
    #: Number of the event; tokens have none.
    id: int | None = None
    #: How the turn ended, what a step came to, or what the agent does now.
    status: str | None = None
    #: Of a token: the piece.
    text: str = ""
    #: Of a request: what is asked, as long as it waits for a decision.
    request: AsyncRequest | None = None


class AsyncModelCall:
    """One model call of a turn."""

    def __init__(self, turn: AsyncTurn[Any], step: models.Taken) -> None:
        self.turn = turn
        self.step = step

    @property
    def step_id(self) -> str:
        return self.step.step_id

    async def context(self) -> Context:
        """Returns what the model saw."""
        seen = await self.turn.client.api.show_context(self.turn.id, step_id=self.step_id)
        return Context(self.turn.id, self.step_id, seen)

    async def request_bytes(self) -> bytes:
        """Returns the request, byte for byte as it was sent."""
        return await self.turn.client.api.show_context_request(self.turn.id, step_id=self.step_id)

    async def receipt(self) -> models.Receipt:
        receipts = await self.turn.client.api.list_receipts(self.turn.id)
        return next(one.receipt for one in receipts if one.step_id == self.step_id)

    async def diff(self, other: AsyncModelCall) -> Diff:
        """Compares what the model saw here, and in another call."""
        api = self.turn.client.api
        return Diff(await api.diff_contexts(left=self.turn.id, left_step_id=self.step_id, right=other.turn.id, right_step_id=other.step_id))

    async def lint(self) -> list[models.Defect]:
        """Returns defects of the request: those that providers answer with an error, and those that they silently bill for."""
        return (await self.turn.client.api.lint_context(self.turn.id, step_id=self.step_id)).findings

    def __repr__(self) -> str:
        step = self.step
        return f"<ModelCall {self.step_id}: {step.model}, {step.input_tokens} → {step.output_tokens} tokens, {step.n_calls} calls>"


class AsyncTurn(Generic[T]):
    """A turn. What was read last is kept; `refresh` reads again."""

    def __init__(self, client: AsyncWaybill, turn_id: str, result: type[T] | None = None, summary: models.Summary | None = None) -> None:
        self.client = client
        self.id = turn_id
        self._result = result
        self._shown: models.Shown | None = None
        self._summary = summary
        self._called: list[str] | None = None

    @property
    def summary(self) -> models.Summary | None:
        """The turn as it was read last. None if it was not read yet."""
        return self._shown.turn if self._shown else self._summary

    @property
    def profile(self) -> str | None:
        """Profile of its agent. None if the turn was not read yet."""
        return self.summary.profile_name if self.summary else None

    @property
    def status(self) -> str:
        """`open`, `success`, `failed`, `canceled` or `timeout`, as it was read last."""
        return str(self.summary.status) if self.summary else "open"

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def deliverable(self) -> Any:
        """What it delivered, as it was read last. `result` waits for it."""
        return self._shown.deliverable if self._shown else None

    async def refresh(self, wait_seconds: float = 0, *, within: float | None = None) -> AsyncTurn[T]:
        """Reads the turn again, after up to `wait_seconds` if it has not ended. `within` bounds the time that a bad network may take more."""
        params = {"wait_seconds": wait_seconds or None}
        self._shown = await self.client.transport.call(OPERATIONS["show_turn"], {"turn": self.id}, params=params, patience=within, within=within)
        return self

    async def wait(self, timeout: float | None = None, *, progress: bool = False) -> AsyncTurn[T]:
        """Waits for the end of the turn, whatever that is. With `progress`, shows how it goes: a line in a terminal, a table in a notebook."""
        until = None if timeout is None else time.monotonic() + timeout
        if progress and not self.is_over:
            shown = Progress(self.id)
            async for event in self.watch(tree=True, timeout=timeout):
                shown.take(event.kind, event.turn_id, event.status)
            shown.end(self.status, self.summary.n_steps if self.summary else 0)
        while self._shown is None or not self.is_over:
            left = LONGEST_WAIT if until is None else min(LONGEST_WAIT, until - time.monotonic())
            if left <= 0:
                raise NotYet(f"turn {self.id} has not ended within {timeout} s. It goes on: wait again, or `turn.stop(reason)`")
            await self.refresh(left, within=None if until is None else max(1.0, until - time.monotonic()))
        return self

    async def result(self, timeout: float | None = None) -> T:
        """Waits for the end, and returns the deliverable: as the type that `run(…, result=…)` named. Raises TurnFailed if it has none."""
        await self.wait(timeout)
        if self.status != "success":
            raise TurnFailed(self.id, self.status, self.deliverable)
        return read_value(self._result, self.deliverable)

    async def stop(self, reason: str) -> models.StopAnswer:
        return await self.client.api.stop_turn(self.id, {"reason": reason})

    async def _ended(self) -> models.Shown:
        if self._shown is None or not self.is_over:
            await self.refresh()
        assert self._shown is not None
        return self._shown

    @loaded
    async def steps(self) -> list[models.Taken]:
        return (await self._ended()).steps

    @loaded
    async def calls(self) -> list[AsyncModelCall]:
        """The model calls of the turn, in order."""
        return [AsyncModelCall(self, step) for step in (await self._ended()).steps if step.model]

    @loaded
    async def usage(self) -> Usage:
        turn = (await self._ended()).turn
        return Usage(turn.n_steps, turn.input_tokens, turn.cached_tokens, turn.output_tokens, turn.microdollars)

    @loaded
    async def tool_calls(self) -> list[str]:
        """Names of the tools that the turn called, in order."""
        if self._called is None or not self.is_over:
            turn = (await self._ended()).turn
            cards = await self.client.cards_of(turn.output_box_id)
            self._called = [name for card in cards if card.metadata and card.metadata.type == "tool.call" for name in _named(card.content)]
        return self._called

    async def cards(self) -> list[models.Reading]:
        """Returns the cards that the turn wrote, the answers to its calls included."""
        return await self.client.cards_of((await self._ended()).turn.output_box_id)

    async def receipts(self) -> list[models.OneReceipt]:
        return await self.client.api.list_receipts(self.id)

    async def tree(self) -> list[AsyncTurn[Any]]:
        """Returns the turn and the turns below it. Each comes after the one that started it. Of each the `summary` is known: `wait()` reads the
        deliverable."""
        return [AsyncTurn(self.client, one.agent_turn_id, summary=one) for one in (await self.client.api.show_tree(self.id)).turns]

    async def story(self) -> Story:
        """Returns what the turn and the turns below it were asked, said, called and delivered, in order: print it."""
        turns = (await self.client.api.show_tree(self.id)).turns
        return Story([(one, await self.client.cards_of(one.output_box_id)) for one in turns])

    async def budget(self) -> models.TurnBudget:
        return await self.client.api.show_budget(self.id)

    async def handovers(self) -> list[models.Handed]:
        """Returns what the turn was handed, part by part: by which rule, from which agent and box, and by which right."""
        return (await self.client.api.list_handovers(self.id, most=1000)).items

    async def replay(self) -> Replay:
        """Composes each model call again from the record, and compares it with its receipt."""
        found: list[models.VerifiedCall] = []
        after: str | None = None
        while True:
            page = await self.client.api.verify_context(self.id, {"after": after} if after else {})
            found += page.items
            after = page.next
            if after is None:
                return Replay(found)

    async def fork(
        self,
        call: AsyncModelCall | str | None = None,
        *,
        cards: Mapping[str, Any] | None = None,
        profile: str | None = None,
        profile_patch: Mapping[str, Any] | None = None,
        live_tools: bool = False,
        n: int = 1,
        key: str | None = None,
    ) -> list[AsyncTurn[T]]:
        """Runs the turn again from one of its model calls, `n` times. `cards` are changed cards: id and content. Tools answer from the record,
        unless `live_tools` is set."""
        variant: dict[str, Any] = {"live_tools": live_tools}
        if call is not None:
            variant["step_id"] = call if isinstance(call, str) else call.step_id
        if cards:
            variant["cards"] = [{"card_id": card_id, "content": content} for card_id, content in cards.items()]
        if profile:
            variant["profile_name"] = profile
        if profile_patch:
            variant["profile_patch"] = dict(profile_patch)
        made = await self.client.api.start_forks(self.id, {"variants": [variant], "times": n}, key=key)
        return [AsyncTurn(self.client, fork.agent_turn_id, self._result) for fork in made.forks]

    async def publish(self, path: str, title: str | None = None) -> models.AppliedDocument:
        """Publishes the deliverable, so that agents can find it."""
        return await self.client.api.publish_turn(self.id, {"path": path} | ({"title": title} if title else {}))

    async def watch(self, *, tree: bool = False, tokens: bool = False, after: int = 0, timeout: float | None = None) -> AsyncIterator[AsyncEvent]:
        """Tells what happens, until the turn ends. It goes on after a lost connection and misses nothing but tokens. With `tree`, also of the turns
        below, if this turn is at the top of its tree."""
        reader = EventReader(after)
        speakers: list[str] = [self.id]
        pauses = Pauses(self.client.config.patience)
        until = None if timeout is None else time.monotonic() + timeout
        n_empty = 0
        while True:
            n_seen, started = 0, list(speakers)
            try:
                silence = SETTLED if self.is_over else SILENCE if until is None else max(0.1, min(SILENCE, until - time.monotonic()))
                async for event in self._stream(reader, tree, started if tokens else [], silence):
                    n_seen += 1
                    if event.turn_id not in speakers and len(speakers) < MOST_SPEAKERS:
                        speakers.append(event.turn_id)
                    if event.kind == "task" and event.turn_id == self.id:
                        await self.refresh()
                        yield event
                        return
                    yield event
                    if until is not None and time.monotonic() > until:
                        break
                    if tree and tokens and speakers != started:
                        break  # to hear the new turns too
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    raise
            if speakers != started:
                continue
            await self.refresh()
            if until is not None and time.monotonic() > until and not self.is_over:
                raise NotYet(f"turn {self.id} has not ended within {timeout} s. It goes on: watch again with `after={reader.after}`")
            # The stream of a turn ends with it; that of a tree is silent then. Once may be because the server is restarted.
            n_empty = n_empty + 1 if self.is_over and not n_seen and not reader.is_cut else 0
            if n_empty > 1:
                return
            pause = pauses.pause()
            if pause is None or n_seen:
                pauses = Pauses(self.client.config.patience)
            await sleep(pause or 1.0)

    async def _stream(self, reader: EventReader, tree: bool, speakers: Sequence[str], silence: float) -> AsyncIterator[AsyncEvent]:
        transport = self.client.transport
        if tree:
            params: dict[str, Any] = {"root": self.id, "after": reader.after or 0, "tokens": speakers or None}
            stream = transport.stream(OPERATIONS["watch_project"], {}, reader, params, silence)
        else:
            stream = transport.stream(OPERATIONS["watch_turn"], {"turn": self.id}, reader, {"tokens": bool(speakers)}, silence)
        async for received in stream:
            if event := await self.client.event(received):
                yield event

    def __repr__(self) -> str:
        turn = self.summary
        if turn is None:
            return f"<Turn {self.id}>"
        used = f"{turn.n_steps} steps, {turn.input_tokens} → {turn.output_tokens} tokens, ${turn.microdollars / 1e6:.6f}"
        return f"<Turn {self.id}: {turn.profile_name}, {self.status}, {used}>"


def _named(content: Any) -> list[str]:
    """Returns the name of the tool that a `tool.call` card calls."""
    said: Any = json.loads(content) if isinstance(content, str) and content.startswith("{") else content
    if isinstance(said, dict):
        for name in ("tool_name", "name"):
            if isinstance(value := said.get(name), str):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                return [value]
    return []
