"""A turn as the worker that runs it has it: composed, answered, written, finished."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from ._lease import Held, Lost
from .errors import ApiError, WaybillError
from .wire import uuid7

if TYPE_CHECKING:
    from . import models
    from ._async.client import AsyncWaybill

DELIVERABLE = "task.deliverable"


class Step:
    """A model call to make: send `request_bytes` to the provider as they are, and give its answer to `answer`."""

    def __init__(self, turn: WorkerTurn, said: models.ComposedStep1) -> None:
        self.turn = turn
        self.said = said
        self.is_answered = False
        self._attempt = 0

    @property
    def step_id(self) -> str:
        return self.said.step_id

    @property
    def request_bytes(self) -> bytes:
        return self.said.request.encode()

    @property
    def request(self) -> dict[str, Any]:
        """The body, read. What an SDK makes of it need not have the same bytes."""
        return json.loads(self.said.request)

    @property
    def adapter(self) -> str:
        """The format: `openai_chat`, `openai_responses` or `anthropic_messages`."""
        return self.said.adapter

    @property
    def provider(self) -> str:
        return self.said.provider

    @property
    def model(self) -> str:
        return self.said.model

    @property
    def left(self) -> models.Budget:
        """What the turn may still spend."""
        return self.said.left

    @property
    def receipt(self) -> models.Receipt:
        return self.said.receipt

    async def tokens(self, text: str) -> None:
        """Shows a piece of what the model is writing to those who watch. Send a few pieces per second."""
        self._attempt = self._attempt or 1
        body = {"fence": self.turn.fence, "step_id": self.step_id, "attempt": self._attempt, "text": text[:16_384]}
        await self.turn.client.api.send_tokens(self.turn.id, body, patience=0)

    async def again(self) -> None:
        """Says that the model is asked once more for this step: the text of its tokens begins from the start."""
        self._attempt += 1

    async def answer(self, response: Any, *, usage: Mapping[str, Any] | None = None) -> str:
        """Writes what the model answered: cards, calls, usage and receipt in one go. `response` is the body of the provider's answer: text, bytes,
        JSON, or the object of an SDK. Returns `again`, `suspended` or `ended`."""
        said = self.turn.client.api
        body: dict[str, Any] = {
            "fence": self.turn.fence,
            "step_id": self.step_id,
            "receipt": self.said.receipt.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "seal": self.said.seal,
            "response": as_response(response),
        }
        if usage:
            body["usage"] = dict(usage)
        taken = await self.turn.guarded(said.answer_turn(self.turn.id, body))
        self.is_answered = True
        self.turn.note(str(taken.next))
        return str(taken.next)


class WorkerTurn:
    """A turn that this worker holds. All that it writes carries the fence of its claim: once another worker has the turn, nothing is written."""

    def __init__(self, client: AsyncWaybill, held: Held) -> None:
        self.client = client
        self.held = held
        self.claimed: models.ClaimedTurn = held.claimed
        self.fence: dict[str, Any] = self.claimed.fence.model_dump()
        self.is_let_go = False
        self._n_seen: int | None = None

    @property
    def id(self) -> str:
        return self.claimed.agent_turn_id

    @property
    def profile(self) -> models.ClaimedProfile | None:
        return self.claimed.profile

    @property
    def stop_asked(self) -> bool:
        """Whether a caller wants the turn to stop: finish it with `status="canceled"`."""
        return self.held.stop_asked

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the turn by now."""
        return not self.held.lease.is_good

    async def guarded(self, request: Any) -> Any:
        """Sends a write. One that is refused because another worker has the turn ends the work on it."""
        if self.is_lost:
            request.close()
            raise Lost(f"turn {self.id}: the lease was lost")
        return await request

    def note(self, outcome: str) -> None:
        if outcome in ("suspended", "ended"):
            self.is_let_go = True

    async def query(self) -> str:
        """Returns what the turn must do, as text."""
        cards = self.claimed.query
        if cards is None:
            cards = (await self.client.api.show_cards({"card_ids": self.claimed.query_card_ids})).found
        return "\n".join(card.content if isinstance(card.content, str) else json.dumps(card.content) for card in cards if card.state == "live")

    async def context_cards(self) -> list[models.Reading]:
        """Returns what the turn was given to read."""
        return await self.client.cards_of(self.claimed.context_box_id)

    async def written_cards(self) -> list[models.Reading]:
        """Returns what the turn has written, by this worker or one before it, and the answers to its calls."""
        cards = await self.client.cards_of(self.claimed.output_box_id)
        self._n_seen = len(cards)
        return cards

    async def messages(self) -> list[str]:
        """Returns what callers have sent to the turn while it ran."""
        cards = [card for card in await self.written_cards() if card.metadata and card.metadata.role == "user" and card.state == "live"]
        return [card.content if isinstance(card.content, str) else json.dumps(card.content) for card in cards]

    async def steps(self, *, fallback: int = 0) -> AsyncIterator[Step]:
        """Composes each model call of the turn, until it ends or waits for calls. Answer each before you ask for the next."""
        while not self.is_let_go:
            body = {"fence": self.fence} | ({"fallback": fallback} if fallback else {})
            said = (await self.guarded(self.client.api.compose_turn(self.id, body))).root
            if said.next == "ended":
                self.is_let_go = True
                return
            step = Step(self, said)
            yield step
            if not step.is_answered:
                raise WaybillError(f"turn {self.id}: step {step.step_id} was not answered: call `await step.answer(…)` in the loop")

    async def write(
        self,
        *cards: Mapping[str, Any],
        step_id: str | None = None,
        usage: Mapping[str, Any] | None = None,
        suspend: bool = False,
        calls: list[dict[str, Any]] | None = None,
        saw_external: bool = False,
    ) -> models.Stepped:
        """Writes a step of your own: cards such as `card("agent.thought", "…")`. The same `step_id` is written once."""
        body: dict[str, Any] = {
            "fence": self.fence,
            "step_id": step_id or uuid7(),
            "cards": list(cards),
            "suspend": suspend,
            "saw_external": saw_external,
        }
        if calls:
            body["calls"] = calls
        if usage:
            body["usage"] = dict(usage)
        stepped = await self.guarded(self.client.api.write_step(self.id, body))
        self.held.stop_asked = self.held.stop_asked or stepped.stop_reason is not None
        if stepped.suspended:
            self.is_let_go = True
        return stepped

    async def finish(self, deliverable: Any, *, status: str = "success", saw_external: bool = False) -> None:
        """Ends the turn with a deliverable: text, or JSON. If a caller has sent a message that you have not read, raises Unseen: read `messages()`,
        and go on."""
        cards = [card(DELIVERABLE, deliverable)]
        body: dict[str, Any] = {"fence": self.fence, "status": status, "step_id": uuid7(), "cards": cards, "saw_external": saw_external}
        if self._n_seen is not None:
            body["seen"] = self._n_seen
        await self.guarded(self.client.api.finish_turn(self.id, body))
        self.is_let_go = True

    async def give_back(self, error: str, *, backoff_seconds: float = 0) -> None:
        """Gives the turn back after a failed attempt. It is tried three times in all."""
        reason = error[:4000].encode(errors="backslashreplace").decode() or "no reason"
        body = {"fence": self.fence, "error": reason, "backoff_seconds": backoff_seconds}
        await self.guarded(self.client.api.give_back_turn(self.id, body, patience=5))
        self.is_let_go = True

    async def heed(self, seconds: float) -> bool:
        """Waits, as slow work does that looks up now and then. Returns True as soon as the turn is to stop, or is lost."""
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            if self.stop_asked or self.is_lost:
                return True
            await asyncio.sleep(0.05)
        return self.stop_asked or self.is_lost

    def __repr__(self) -> str:
        return f"<WorkerTurn {self.id}: {self.claimed.profile_name}>"


def card(card_type: str, content: Any, **more: Any) -> dict[str, Any]:
    """Returns a card to write. Its id is made here, so that it is written once however often it is sent."""
    return {"card_id": uuid7(), "type": card_type, "role": "assistant", "content": content, **more}


def as_response(response: Any) -> Any:
    """Returns a provider's answer as `answer` takes it: a stream as one text, JSON as it is."""
    if isinstance(response, bytes):
        return response.decode()
    if isinstance(response, (str, dict)):
        return response  # pyright: ignore[reportUnknownVariableType]
    if callable(dump := getattr(response, "model_dump", None)):
        return dump(mode="json")
    if isinstance(text := getattr(response, "text", None), str):
        return text
    raise WaybillError(f"an answer is text, bytes, JSON, or the object of an SDK: {type(response).__name__} is none of these")


def is_dropped(error: BaseException) -> bool:
    """Says whether another worker has the turn or call, or it is over."""
    return isinstance(error, ApiError) and error.code in ("stale", "delivered", "head_lost", "lease_lost", "not_found")
