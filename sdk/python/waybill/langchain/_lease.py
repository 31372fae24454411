"""What one process holds: its threads, its lease, and the turns that it has claimed. The copies that LangGraph makes of a saver share it."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .. import models
from .._turns import card
from ..errors import ApiError, IdempotencyMismatch, WaybillError
from ._codec import digest
from ._log import LABEL, Log
from ._thread import Tenure, Thread, taken

if TYPE_CHECKING:
    from .saver import WaybillSaver

log = logging.getLogger("waybill.langchain")


class Shared:
    """What copies of a saver share: the threads, the lease, and the claims of this process."""

    def __init__(self, saver: WaybillSaver) -> None:
        self.pid = os.getpid()
        self.log = Log(saver.client, self.thread)
        self.worker = f"langgraph-{uuid.uuid4()}"
        self.pool = ThreadPoolExecutor(32, thread_name_prefix="waybill saver")
        self._client = saver.client
        # One for each process, so that no process claims the turns of another. A process that comes after it under the same name may.
        self._profile = f"{saver._name}-{digest(f'{socket.gethostname()}-{self.pid}').hex()[:12]}"
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

    def start(self, saver: WaybillSaver, thread: Thread, before: Tenure | None) -> Tenure:
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
            "instruction": f"LangGraph thread {thread.thread_id}\n{self.worker}",
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
        self._keep(saver)
        thread.used_at = time.monotonic()
        return Tenure(turn_id, claimed.output_box_id, fence=fence, is_first=before is None)

    def _claim(self, turn_id: str) -> models.ClaimedTurn:
        until = time.monotonic() + 20
        while True:
            with self._claiming:
                if found := self._claimed.pop(turn_id, None):
                    return found[0]
                body = {"worker": self.worker, "target": self._profile, "most": 100, "wait_seconds": 1, "lease_seconds": self._lease_seconds}
                for one in self._client.api.claim_turns(body).turns:
                    self._claimed[one.agent_turn_id] = one, time.monotonic()
                if found := self._claimed.pop(turn_id, None):
                    return found[0]
            if time.monotonic() > until:
                raise WaybillError(f"turn {turn_id} was started, and could not be claimed from {self._profile}")

    def _keep(self, saver: WaybillSaver) -> None:
        with self._lock:
            if self._keeper is None:
                self._keeper = threading.Thread(target=_keep, args=(weakref.ref(saver), self), name="waybill saver: lease", daemon=True)
                self._keeper.start()
                atexit.register(_at_exit, weakref.ref(self))

    def beat(self, saver: WaybillSaver) -> None:
        """Renews the lease, and lets go of threads that are idle."""
        try:
            self._client.api.keep_lease({"worker": self.worker, "lease_seconds": self._lease_seconds}, patience=0)
        except ApiError as error:
            if error.code == "lease_lost":
                log.warning("the lease was lost: %s", error.detail)
                with self._lock:
                    threads = list(self._threads.values())
                for thread in threads:
                    with thread.io:
                        if thread.held:
                            thread.lose()
                self.worker = f"langgraph-{uuid.uuid4()}"
        now = time.monotonic()
        with self._lock:
            idle = [one for one in self._threads.values() if one.held and now - one.used_at > self._idle_seconds]
        for thread in idle:
            saver.release(thread.thread_id)
        with self._claiming:
            # Turns of a process of the same name that has died before it could claim them.
            stray = [one for one, at in self._claimed.values() if now - at > 60]
            for one in stray:
                del self._claimed[one.agent_turn_id]
        for one in stray:
            fence = one.fence.model_dump()
            self._client.api.finish_turn(one.agent_turn_id, {"fence": fence, "status": "canceled", "cards": [card("task.deliverable", "not begun")]})

    def close(self, saver: WaybillSaver | None) -> None:
        self._ends.set()
        with self._lock:
            threads = [one for one in self._threads.values() if one.held]
        for thread in threads if saver else []:
            if saver:
                saver.release(thread.thread_id)
        if self._keeper:
            self._client.api.leave({"worker": self.worker}, patience=2)
            self._keeper = None

    @property
    def interval(self) -> float:
        return self._lease_seconds / 3

    def wait(self) -> bool:
        return self._ends.wait(self.interval)


def _keep(saver: weakref.ref[WaybillSaver], shared: Shared) -> None:
    while not shared.wait():
        if (one := saver()) is None:
            return
        try:
            shared.beat(one)
        except WaybillError as error:
            log.warning("heartbeat: %s", error)
        del one


def _at_exit(shared: weakref.ref[Shared]) -> None:
    if one := shared():
        try:
            one.close(None)
        except WaybillError as error:
            log.info("leave: %s", error)
