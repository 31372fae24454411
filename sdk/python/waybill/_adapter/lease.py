"""What one process holds: its chains, its lease, and the turns that it has claimed."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic

from .. import models
from .._turns import card
from ..errors import ApiError, IdempotencyMismatch, WaybillError
from ..wire import uuid7
from .chain import Kind, Position, Tenure, dumps
from .log import C, Log

log = logging.getLogger("waybill.adapter")

#: Characters of one card, and of the cards in one request.
MOST_CARD, MOST_REQUEST = 400_000, 900_000


def worker_name(kind: Kind) -> str:
    return f"{kind.name}-{uuid.uuid4()}"


class Holder(Generic[C]):
    """What a process holds of the chains of a log. `name` begins the names of the profile and the queue of this process. A chain that is idle for
    `idle_seconds` is let go."""

    def __init__(self, log: Log[C], name: str, *, lease_seconds: float, idle_seconds: float) -> None:
        self.pid = os.getpid()
        self.log, self.kind = log, log.kind
        self.worker = worker_name(self.kind)
        self.pool = ThreadPoolExecutor(32, thread_name_prefix=f"waybill {self.kind.name}")
        self._client = log.client
        # Its own, so that no other holder claims its turns: processes in two containers may have the same host name and number.
        self._profile = f"{name}-{uuid.uuid4().hex[:12]}"
        self._lease_seconds, self._idle_seconds = lease_seconds, idle_seconds
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._claimed: dict[str, tuple[models.ClaimedTurn, float]] = {}
        self._is_applied = False
        self._ends = threading.Event()
        self._keeper: threading.Thread | None = None

    def acquire(self, chain: C, expected: Position | None = None) -> None:
        """Ends the newest turn of the chain, whichever process holds it, and starts the next. If something was written since `expected`, it is
        refused; if that is omitted, what was written is in the index afterwards."""
        self.log.refresh(chain)
        before, is_as_expected = chain.head, expected in (None, chain.position)
        # More than one is open if processes with different keys have begun at the same moment.
        for one in [one for one in chain.tenures.values() if is_as_expected and not one.is_over]:
            last = one.last
            self.log.read_fence(chain, one)
            self.end(chain, one)
            self.log.read_box(chain, one)
            is_as_expected = is_as_expected and (expected is None or one.last == last)
        if not is_as_expected:
            raise self.kind.taken(chain, "another process has written to it since this run has read it")
        held, is_next = self._start(chain, before), False
        try:
            # Of processes with one key, one can start this turn. A process with another key can start another one at the same moment.
            is_next = self.log.is_next(chain, held.turn_id)
        finally:
            if not is_next:
                self.end(chain, held, "canceled")
        if not is_next:
            raise self.kind.taken(chain, "another process has begun at the same moment")
        chain.held = chain.tenures[held.turn_id] = held

    def write(self, chain: C, cards: list[dict[str, Any]]) -> None:
        """Writes cards to a chain that is held, in as few requests as they fit in. What is refused lets go of it."""
        held = chain.held
        assert held is not None
        if held.fence and held.n_steps == 0:
            before = next((one for one in reversed(chain.tenures) if one != held.turn_id), None)
            said = {self.kind.noun: chain.name, "fence": held.fence, "worker": self.worker, "prev": before}
            cards = [card(f"{self.kind.name}.tenure", dumps(said)), *cards]
        while cards:
            n, n_chars = 1, len(cards[0]["content"])
            while n < min(len(cards), 1000) and n_chars + len(cards[n]["content"]) <= MOST_REQUEST:
                n_chars += len(cards[n]["content"])
                n += 1
            now, cards = cards[:n], cards[n:]
            try:
                # The program may have seen anything.
                step = {"fence": held.fence, "step_id": uuid7(), "cards": now, "saw_external": held.n_steps == 0}
                stepped = self._client.api.write_step(held.turn_id, step)
            except BaseException as error:
                # Also after Ctrl-C: what comes next must not name cards that were not written.
                chain.lose()
                if isinstance(error, ApiError) and error.code in ("stale", "delivered", "lease_lost", "head_lost"):
                    raise self.kind.taken(chain, "another process has taken it over, or this one was not heard of for too long") from error
                with suppress(WaybillError):  # so that others need not wait for the end of the lease
                    self.end(chain, held, patience=2)
                raise
            held.n_steps, held.place, chain.used_at = held.n_steps + 1, held.place + n, time.monotonic()
            held.last = held.place
            for one in now:
                self.log.apply(chain, one["type"], one["content"], one["card_id"])
            chain.wrote()
            if stepped.stop_reason is not None:
                self.end(chain, held, "canceled")
                chain.lose()
                why = f"it was stopped: {stepped.stop_reason}. This write was stored, and nothing after it"
                raise self.kind.error(f"{self.kind.noun} {chain.name}: {why}")

    def _start(self, chain: C, before: Tenure | None) -> Tenure:
        """Starts the next turn of a chain, and claims it."""
        api = self._client.api
        if not self._is_applied:
            prompt = f"A process that runs {self.kind.program} writes the turns of this profile."
            said = f"This turn belongs to a process that runs {self.kind.program}."
            llm = {"provider": "demo", "model": "demo", "params": {"script": [{"say": said}]}}
            manifest = {"name": self._profile, "worker_target": self._profile, "llm_config": llm, "system_prompt_template": prompt}
            api.apply_resources({"manifests": [{"profile": manifest}]})
            self._is_applied = True
        labels = {self.kind.name: self.kind.noun, self.kind.label: chain.label}
        start: dict[str, Any] = {
            "profile_name": self._profile,
            "instruction": f"{self.kind.program} {self.kind.noun} {dumps(chain.name)[1:-1]}\n{self.worker}",
            "labels": labels,
        }
        boxes = [*([before.box_id] if before else []), *chain.inherits[:999]]
        if boxes:
            start["context_box_ids"] = boxes
        try:
            # Only one process can start the turn that follows this one.
            turn_id = api.start_turn(start, key=f"{self.kind.name}:{chain.label}:{before.turn_id if before else ''}").agent_turn_id
        except IdempotencyMismatch as error:
            raise self.kind.taken(chain, "another process has begun at the same moment") from error
        claimed = self._claim(turn_id)
        fence, chain.inherits = claimed.fence.model_dump(), []
        self._keep()
        chain.used_at = time.monotonic()
        return Tenure(turn_id, claimed.output_box_id, fence=fence, is_first=before is None, worker=self.worker)

    def _claim(self, turn_id: str) -> models.ClaimedTurn:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with self._claiming:
                if found := self._claimed.pop(turn_id, None):
                    return found[0]
                body = {"worker": self.worker, "target": self._profile, "most": 100, "wait_seconds": 1, "lease_seconds": self._lease_seconds}
                try:
                    claimed = self._client.api.claim_turns(body).turns
                except ApiError as error:
                    if error.code != "lease_lost":
                        raise
                    self._rename()
                    continue
                for one in claimed:
                    self._claimed[one.agent_turn_id] = one, time.monotonic()
        raise WaybillError(f"turn {turn_id} was started, and could not be claimed from {self._profile}")

    def end(self, chain: C, tenure: Tenure, status: str = "success", patience: float | None = None, said: str | None = None) -> None:
        """Ends a turn of a chain, whichever process holds it. From then on its holder is refused."""
        if tenure.fence:
            deliverable = card("task.deliverable", said or f"the {self.kind.noun} was let go")
            try:
                body = {"fence": tenure.fence, "status": status, "cards": [deliverable]}
                self._client.api.finish_turn(tenure.turn_id, body, patience=patience)
                tenure.is_over = True
                return
            except ApiError as error:
                if error.code not in ("stale", "delivered"):
                    raise
        # Its holder is lost, and it waits for another one; or its fence was not written yet.
        until = time.monotonic() + self._lease_seconds + 10
        while self._client.api.stop_turn(tenure.turn_id, {"reason": f"another process goes on with the {self.kind.noun}"}).stopped == "asked":
            if time.monotonic() > until:
                raise self.kind.taken(chain, "a process holds it that cannot be reached")
            time.sleep(0.25)
        tenure.is_over = True

    def release(self, chain: C, patience: float | None = None, **end: Any) -> None:
        with chain.io:
            if chain.held is not None:
                self.end(chain, chain.held, patience=patience, **end)
                chain.held = None

    def close(self, patience: float | None = None) -> None:
        """Lets go of all chains, ends the lease, and removes the profile."""
        self._ends.set()
        for chain in self.log.held():
            self.release(chain, patience)
        keeper, self._keeper = self._keeper, None
        if keeper:
            self._client.api.leave({"worker": self.worker}, patience=2)
            self.worker = worker_name(self.kind)
        if self._is_applied:
            self._is_applied = False
            with suppress(ApiError):  # a turn of it is still open
                self._client.api.remove_profile(self._profile, patience=2)

    def _rename(self) -> None:
        """Goes on under another name. What is held under the old one belongs to others."""
        log.warning("the lease was lost")
        self.worker = worker_name(self.kind)

    def _keep(self) -> None:
        with self._lock:
            if self._keeper is None:
                self._ends = threading.Event()
                self._keeper = threading.Thread(target=_keep, args=(weakref.ref(self), self._ends), name="waybill: lease of chains", daemon=True)
                self._keeper.start()
                atexit.register(_at_exit, weakref.ref(self))

    def beat(self) -> None:
        """Renews the lease, and lets go of chains that are idle: what was read of them is read again when they go on."""
        try:
            self._client.api.keep_lease({"worker": self.worker, "lease_seconds": self._lease_seconds}, patience=0)
        except ApiError as error:
            if error.code == "lease_lost":
                self._rename()
        now = time.monotonic()
        for chain in self.log.held():
            if now - chain.used_at > self._idle_seconds:
                with chain.io:
                    self.release(chain)
                    chain.drop()
        with self._claiming:
            # Turns that were started, and whose threads did not come for them.
            stray = [one for one, at in self._claimed.values() if now - at > 60]
            for one in stray:
                del self._claimed[one.agent_turn_id]
        for one in stray:
            fence = one.fence.model_dump()
            self._client.api.finish_turn(one.agent_turn_id, {"fence": fence, "status": "canceled", "cards": [card("task.deliverable", "not begun")]})

    @property
    def interval(self) -> float:
        return self._lease_seconds / 3


def _keep(holder: weakref.ref[Any], ends: threading.Event) -> None:
    interval = 0.1
    while not ends.wait(interval):
        if (one := holder()) is None:
            return
        try:
            one.beat()
        except WaybillError as error:
            log.warning("heartbeat: %s", error)
        interval = one.interval
        del one


def _at_exit(holder: weakref.ref[Any]) -> None:
    # Not in a forked child, which has none of its parent's threads.
    if (one := holder()) and one.pid == os.getpid():
        try:
            one.close(patience=2)
        except WaybillError as error:
            log.info("the chains were not let go: %s", error)
