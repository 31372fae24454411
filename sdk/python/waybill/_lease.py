"""A worker's lease: one name of this process, for as long as the server takes it for alive; and what it holds under this name.

What a claim brings, and what a heartbeat lists, goes through `take`: the answer of a claim may be lost, and then the heartbeat brings what it had.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from .errors import ApiError, Unanswered, WaybillError

if TYPE_CHECKING:
    from . import models
    from ._async.client import AsyncWaybill

log = logging.getLogger("waybill.worker")

#: Claims that were answered, and are remembered in case a heartbeat that was under way lists them once more.
REMEMBERED = 10_000


class Lost(WaybillError):
    """What the worker holds may belong to another one by now: everything is dropped, and it goes on under another name."""


class Held:
    """A turn or call that this worker holds."""

    def __init__(self, kind: str, claimed: models.ClaimedTurn | models.OneCall, lease: Lease) -> None:
        self.kind = kind
        self.claimed: Any = claimed
        self.lease = lease
        self.stop_asked = bool(getattr(claimed, "stop_asked", False))

    @property
    def key(self) -> tuple[str, str]:
        """One claim of one thing: what is claimed again has another token."""
        if self.kind == "turn":
            return self.claimed.agent_turn_id, self.claimed.fence.claim_token
        return self.claimed.tool_call_id, self.claimed.claim_token


class Lease:
    def __init__(self, client: AsyncWaybill, seconds: float) -> None:
        self.client = client
        self.seconds = seconds
        self.worker = f"python-{uuid.uuid4()}"
        self.is_lost = asyncio.Event()
        self.held: dict[tuple[str, str], Held] = {}
        self._done: dict[tuple[str, str], None] = {}
        #: What heartbeats found that no claim brought.
        self.found: asyncio.Queue[Held] = asyncio.Queue()
        #: What the heartbeat before listed and no claim had brought by then: its answer may have been on the way.
        self._unknown: set[tuple[str, str]] = set()
        self._good_until = 0.0
        self._sent_at = 0.0
        self._keeper: asyncio.Task[None] | None = None

    def claim_body(self, target: str, most: int, wait_seconds: float) -> dict[str, Any]:
        return {"worker": self.worker, "target": target, "most": most, "wait_seconds": wait_seconds, "lease_seconds": self.seconds}

    def take(self, kind: str, claimed: Any) -> Held | None:
        """Notes what is held. Returns None if it is known."""
        held = Held(kind, claimed, self)
        if held.key in self.held or held.key in self._done:
            return None
        self.held[held.key] = held
        return held

    def drop(self, held: Held) -> None:
        self.held.pop(held.key, None)
        self._done[held.key] = None
        while len(self._done) > REMEMBERED:
            self._done.pop(next(iter(self._done)))

    @property
    def is_good(self) -> bool:
        """Whether the server still takes this worker for alive, as far as can be known here. A process that was stopped for long learns it so."""
        return not self.is_lost.is_set() and (self._keeper is None or time.monotonic() < self._good_until)

    def begin(self) -> None:
        """Keeps the lease from now on. It begins with a claim: before that, a heartbeat is refused."""
        if self._keeper is None:
            self._good_until = time.monotonic() + self.seconds
            self._keeper = asyncio.create_task(self._keep(), name="waybill: lease")

    async def beat(self) -> None:
        """Renews the lease, and notes what is held and what was asked to stop."""
        sent_at = time.monotonic()
        said = await self.client.api.keep_lease({"worker": self.worker, "lease_seconds": self.seconds}, patience=0)
        self._good_until = max(self._good_until, sent_at + self.seconds)
        unknown, self._unknown = self._unknown, set()
        listed = [Held("turn", one, self) for one in said.turns] + [Held("call", one, self) for one in said.calls]
        for held in listed:
            if known := self.held.get(held.key):
                known.stop_asked = known.stop_asked or held.stop_asked
            elif held.key in unknown and self.take(held.kind, held.claimed):
                log.info("heartbeats found a %s that no claim brought", held.kind)
                self.found.put_nowait(self.held[held.key])
            elif held.key not in self._done:
                self._unknown.add(held.key)

    async def _keep(self) -> None:
        while not self.is_lost.is_set():
            pause = self.seconds / 10
            try:
                # A connection that is silent must not keep the next heartbeat from being sent in time.
                await asyncio.wait_for(self.beat(), max(1.0, self.seconds / 6))
                pause = self.seconds / 3
            except ApiError as error:
                if error.code == "lease_lost":
                    log.warning("the lease was lost: %s", error.detail)
                    self.is_lost.set()
                    return
                log.warning("heartbeat: %s", error)  # the next may still be in time
            except (Unanswered, asyncio.TimeoutError) as error:
                log.warning("heartbeat: %s", error or "no answer in time")
            if time.monotonic() > self._good_until:
                log.warning("no heartbeat arrived for %s s: others may have what this worker holds", self.seconds)
                self.is_lost.set()
                return
            due = time.monotonic() + pause
            await asyncio.sleep(pause)
            if (late := time.monotonic() - due) > max(1.0, self.seconds / 6):
                log.warning(
                    "nothing ran for %.1f s: an `async def` that blocks holds up the whole worker; as a plain function it runs in a thread", late
                )

    async def end(self) -> None:
        """Ends the lease: what is still held goes to others at once."""
        if self._keeper:
            self._keeper.cancel()
        if not self.is_lost.is_set():
            self.is_lost.set()
            try:
                await self.client.api.leave({"worker": self.worker}, patience=2)
            except WaybillError as error:
                log.info("leave: %s", error)
