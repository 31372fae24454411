"""What one process holds: its threads, its lease, and the turns that it has claimed. The copies that LangGraph makes of a saver share it."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import models
from .._turns import card
from ..errors import ApiError, IdempotencyMismatch, WaybillError
from ._codec import digest, dumps
from ._log import LABEL, Log
from ._thread import Tenure, Thread, taken

if TYPE_CHECKING:
    from .saver import WaybillSaver

log = logging.getLogger("waybill.langchain")
NUMBERS = itertools.count()


def worker_name() -> str:
    return f"langgraph-{uuid.uuid4()}"


class Shared:
    """What copies of a saver share: the threads, the lease, and the claims of this process."""

    def __init__(self, saver: WaybillSaver) -> None:
        self.pid = os.getpid()
        self.log = Log(saver.client, self.thread)
        self.worker = worker_name()
        self.pool = ThreadPoolExecutor(32, thread_name_prefix="waybill saver")
        self._client = saver.client
        # So that no other saver claims its turns. A process that comes after this one may have the same name.
        self._profile = f"{saver._name}-{digest(f'{socket.gethostname()}-{self.pid}-{next(NUMBERS)}').hex()[:12]}"
        self._lease_seconds, self._idle_seconds = saver.lease_seconds, saver.idle_seconds
        self._threads: OrderedDict[str, Thread] = OrderedDict()
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._claimed: dict[str, tuple[models.ClaimedTurn, float]] = {}
        self._is_applied = False
        self._ends = threading.Event()
        self._keeper: threading.Thread | None = None

    def thread(self, thread_id: Any) -> Thread:
        with self._lock:
            thread_id = str(thread_id)
            if thread_id not in self._threads:
                self._threads[thread_id] = Thread(thread_id)
            self._threads.move_to_end(thread_id)
            if len(self._threads) > 1024:
                oldest = next((one for one in self._threads.values() if one.held is None and not one.queue), None)
                if oldest and oldest.thread_id != thread_id and oldest.io.acquire(blocking=False):
                    oldest.io.release()
                    del self._threads[oldest.thread_id]
            return self._threads[thread_id]

    def start(self, thread: Thread, before: Tenure | None) -> Tenure:
        """Starts the next turn of a thread, and claims it."""
        api = self._client.api
        if not self._is_applied:
            prompt = "A process that runs LangGraph writes the turns of this profile."
            llm = {"provider": "demo", "model": "demo", "params": {"script": [{"say": "This turn belongs to a process that runs LangGraph."}]}}
            manifest = {"name": self._profile, "worker_target": self._profile, "llm_config": llm, "system_prompt_template": prompt}
            api.apply_resources({"manifests": [{"profile": manifest}]})
            self._is_applied = True
        labels = {"langgraph": "thread", LABEL: thread.label}
        start: dict[str, Any] = {
            "profile_name": self._profile,
            "instruction": f"LangGraph thread {dumps(thread.thread_id)[1:-1]}\n{self.worker}",
            "labels": labels,
        }
        boxes = [*([before.box_id] if before else []), *thread.inherits[:999]]
        if boxes:
            start["context_box_ids"] = boxes
        try:
            # Only one process can start the turn that follows this one.
            turn_id = api.start_turn(start, key=f"langgraph:{thread.label}:{before.turn_id if before else ''}").agent_turn_id
        except IdempotencyMismatch as error:
            raise taken(thread, "another process has begun at the same moment") from error
        claimed = self._claim(turn_id)
        fence, thread.inherits = claimed.fence.model_dump(), []
        self._keep()
        thread.used_at = time.monotonic()
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

    def end(self, thread: Thread, tenure: Tenure, status: str = "success", patience: float | None = None) -> None:
        """Ends a turn of a thread, whichever process holds it. From then on its holder is refused."""
        if tenure.fence:
            said = {"fence": tenure.fence, "status": status, "cards": [card("task.deliverable", "the thread was let go")]}
            try:
                self._client.api.finish_turn(tenure.turn_id, said, patience=patience)
                tenure.is_over = True
                return
            except ApiError as error:
                if error.code not in ("stale", "delivered"):
                    raise
        # Its holder is lost, and it waits for another one; or its fence was not written yet.
        until = time.monotonic() + self._lease_seconds + 10
        while self._client.api.stop_turn(tenure.turn_id, {"reason": "another process goes on with the thread"}).stopped == "asked":
            if time.monotonic() > until:
                raise taken(thread, "a process holds it that cannot be reached")
            time.sleep(0.25)
        tenure.is_over = True

    def release(self, thread: Thread, patience: float | None = None) -> None:
        with thread.io:
            if thread.held is not None:
                self.end(thread, thread.held, patience=patience)
                thread.held = None

    def close(self, patience: float | None = None) -> None:
        """Lets go of all threads, ends the lease, and removes the profile."""
        self._ends.set()
        for thread in self._held():
            self.release(thread, patience)
        keeper, self._keeper = self._keeper, None
        if keeper:
            self._client.api.leave({"worker": self.worker}, patience=2)
            self.worker = worker_name()
        if self._is_applied:
            self._is_applied = False
            with suppress(ApiError):  # a turn of it is still open
                self._client.api.remove_profile(self._profile, patience=2)

    def _held(self) -> list[Thread]:
        with self._lock:
            return [one for one in self._threads.values() if one.held]

    def _rename(self) -> None:
        """Goes on under another name. What is held under the old one belongs to others."""
        log.warning("the lease was lost")
        self.worker = worker_name()

    def _keep(self) -> None:
        with self._lock:
            if self._keeper is None:
                self._ends = threading.Event()
                self._keeper = threading.Thread(target=_keep, args=(weakref.ref(self), self._ends), name="waybill saver: lease", daemon=True)
                self._keeper.start()
                atexit.register(_at_exit, weakref.ref(self))

    def beat(self) -> None:
        """Renews the lease, and lets go of threads that are idle."""
        try:
            self._client.api.keep_lease({"worker": self.worker, "lease_seconds": self._lease_seconds}, patience=0)
        except ApiError as error:
            if error.code == "lease_lost":
                self._rename()
        now = time.monotonic()
        for thread in self._held():
            if now - thread.used_at > self._idle_seconds:
                self.release(thread)
        with self._claiming:
            # Turns of a process of the same name that has died before it could claim them.
            stray = [one for one, at in self._claimed.values() if now - at > 60]
            for one in stray:
                del self._claimed[one.agent_turn_id]
        for one in stray:
            fence = one.fence.model_dump()
            self._client.api.finish_turn(one.agent_turn_id, {"fence": fence, "status": "canceled", "cards": [card("task.deliverable", "not begun")]})

    @property
    def interval(self) -> float:
        return self._lease_seconds / 3


def _keep(shared: weakref.ref[Shared], ends: threading.Event) -> None:
    interval = 0.1
    while not ends.wait(interval):
        if (one := shared()) is None:
            return
        try:
            one.beat()
        except WaybillError as error:
            log.warning("heartbeat: %s", error)
        interval = one.interval
        del one


def _at_exit(shared: weakref.ref[Shared]) -> None:
    # Not in a forked child, which has none of its parent's threads.
    if (one := shared()) and one.pid == os.getpid():
        try:
            one.close(patience=2)
        except WaybillError as error:
            log.info("the threads were not let go: %s", error)
