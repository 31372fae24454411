"""A session for the OpenAI Agents SDK: the items of a conversation are kept on a Waybill server, and of two runs that write at once, one is refused.

    result = await Runner.run(agent, "Buy flour.", session=WaybillSession("order-1"))

A session is a chain of turns, each of which is one write: its cards are the items. A write is one request that starts its turn under an idempotency
key with the id of the turn before it, so only one turn can follow another, and a write is stored whole or not at all. The turns have nothing
left to do; a thread of this process ends them. Turns that a process has left open because it died are ended by the next that writes.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from agents import RunContextWrapper, SessionSettings, TResponseInputItem
from agents.items import ItemHelpers

from .. import models
from .._adapter.chain import dumps
from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from .._turns import card
from ..config import Config
from ..errors import IdempotencyMismatch, WaybillError
from ..wire import uuid7

log = logging.getLogger("waybill.openai_agents")
T = TypeVar("T")

LABEL = "openai-agents.session"
PROFILE = "openai-agents-session"
#: Seconds after which what was read is looked at again before a write: the server knows idempotency keys for a day.
FRESH = 3600
#: Writes that are listed in one request.
PAGE = 100
Run = RunContextWrapper[Any]
#: The run that the task is part of, and the session that it has read.
PLACE: ContextVar[tuple[Run, WaybillSession] | None] = ContextVar("waybill_place", default=None)


class SessionTaken(WaybillError):
    """Another run has written to the session: nothing of this write was stored. Do not go on with this run; start a new one, which reads it."""


class WaybillSession:
    """A conversation with the name `session_id`. The key must be of scope `admin`. `session_settings` may have a limit of the items that a run reads.

    Objects are cheap: make one for each request that you serve. Any number of processes may have one for the same conversation."""

    def __init__(
        self, session_id: str, client: Waybill | AsyncWaybill | None = None, *, session_settings: SessionSettings | dict[str, Any] | None = None
    ) -> None:
        self.session_id = session_id
        self.session_settings = SessionSettings(**session_settings) if isinstance(session_settings, dict) else session_settings
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self._label = digest(session_id)
        self._lock = threading.Lock()
        #: How many writes there were when each run has read the session, or has written to it last.
        self._bases: WeakKeyDictionary[Run, int] = WeakKeyDictionary()
        #: What `once` was last asked for: the run that follows writes its input under this name, and builds on what `once` has seen.
        self._request: str | None = None
        self._pinned: int | None = None
        self._forget()

    # What the framework calls.

    async def get_items(self, limit: int | None = None, wrapper: Run | None = None) -> list[TResponseInputItem]:
        """Returns the items, or the newest `limit` of them. A run that has read the session may write to it until another one has written."""
        items = await asyncio.to_thread(self._get, wrapper)
        PLACE.set(wrapper and (wrapper, self))
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            return items
        return items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[TResponseInputItem], wrapper: Run | None = None) -> None:
        """Appends items, all or none. Raises SessionTaken if another run has written to the session since this one has read it."""
        if items:
            await asyncio.to_thread(self._write, "add", wrapper, [dumps(item) for item in items])

    async def pop_item(self, wrapper: Run | None = None) -> TResponseInputItem | None:
        """Removes the newest item, and returns it."""
        found = await asyncio.to_thread(self._write, "pop", wrapper)
        return None if found is None else json.loads(found)

    async def clear_session(self, wrapper: Run | None = None) -> None:
        """Removes all items. Their cards stay on record until retention or an erasure removes them."""
        await asyncio.to_thread(self._write, "clear", wrapper)

    async def once(self, request: str, input: str | list[TResponseInputItem]) -> list[TResponseInputItem] | None:
        """Returns what to give to a run, so that this request is answered once, however often it is made: the input if it is new, nothing to add if a
        run was cut off after it was stored, and None if its answer is there. `request` is a name of the request within the session."""
        last: list[Any] = await self.get_items(limit=1)
        self._request, self._pinned = digest(request), self._n
        requests = [named for _, named in self._items if named]
        if self._request not in requests:
            return ItemHelpers.input_to_new_input_list(input)
        if requests[-1] != self._request or last[0].get("role") == "assistant":
            self._pinned = None
        self._request = None
        return None if self._pinned is None else []

    def place(self, run: Run) -> int:
        """Returns how many writes the run builds on."""
        return self._bases.get(run, self._n)

    # Reading.

    def _forget(self) -> None:
        #: How many writes there were, the turn of the last one, and who writes.
        self._n, self._last, self._by = 0, "", ""
        #: The items that are left, each with the request that it came with.
        self._items: list[tuple[str, str | None]] = []
        self._read_at = 0.0
        #: Whether nothing may be written until the session has been read again.
        self._is_stale = False

    def _get(self, run: Run | None) -> list[TResponseInputItem]:
        with self._lock:
            if self._is_stale:
                self._forget()
            self._read()
            if run and run not in self._bases:
                pinned, self._pinned = self._pinned, None
                if pinned not in (None, self._n):
                    raise self._taken()
                self._bases[run] = self._n
            return [json.loads(text) for text, _ in self._items]

    def _read(self) -> None:
        """Reads what is new: one request if nothing is."""
        read_at, behind = time.time(), list[models.Summary]()
        after, most = None, 1 if self._last else PAGE
        while True:
            page = self.client.api.list_turns(label=f"{LABEL}={self._label}", after=after, most=most)
            behind += page.items
            after, most = page.next, PAGE
            if after is None or any(one.agent_turn_id == self._last for one in page.items):
                break
        # By their numbers: the clocks of two servers may differ. A turn without one is no write of a session.
        numbered = [one for one in behind if re.fullmatch("[0-9]{1,15}", label(one, "n"))]
        new = sorted(((int(label(one, "n")), one) for one in numbered), key=lambda one: (one[0], one[1].agent_turn_id))
        self._by = self._by or (new[0][1].started_by or "" if new else "")
        new = [(n, one) for n, one in new if n >= self._n and one.started_by == self._by]
        if self._last and [n for n, _ in new] != list(range(self._n, self._n + len(new))):
            self._forget()
            return self._read()
        cleared = max((n for n, one in new if label(one, "op") == "clear"), default=-1)
        texts = self._texts([card_id for n, one in new if n > cleared for card_id in one.query_card_ids[1:]])
        for n, one in new:
            added = [texts.get(card_id) for card_id in one.query_card_ids[1:]] if n > cleared else []
            self._apply(n, one.agent_turn_id, label(one, "op"), [text for text in added if text is not None], label(one, "request") or None)
        self._read_at = read_at

    def _texts(self, card_ids: list[str]) -> dict[str, str | None]:
        """Reads cards. One that was erased has no text."""
        texts: dict[str, str | None] = {}
        while card_ids:
            said = self.client.api.show_cards({"card_ids": card_ids[:1000]})
            texts |= {one.card_id: one.content if one.state == "live" else None for one in said.found}
            card_ids = said.left_card_ids + card_ids[1000:]
        return texts

    def _apply(self, n: int, turn_id: str, op: str, texts: Sequence[str], request: str | None) -> None:
        self._n, self._last = n + 1, turn_id
        if op == "clear":
            self._items = []
        elif op == "pop":
            self._items = self._items[:-1]
        self._items += [(text, request) for text in texts]

    # Writing.

    def _write(self, op: str, run: Run | None, texts: Sequence[str] = ()) -> str | None:
        with self._lock:
            # A call that belongs to no run follows what this object knows.
            base = self._bases.get(run) if run else self._n if self._read_at else None
            if base is None or time.time() - self._read_at > FRESH:
                self._read()
            if self._is_stale or base not in (None, self._n):
                self._is_stale = self._is_stale or run is None
                raise self._taken()
            if call_id := self._answered([json.loads(text) for text in texts]):
                raise self._taken(f"its call {call_id} has been answered, by a run that was resumed from the same state")
            popped = self._items[-1][0] if op == "pop" and self._items else None
            if op != "add" and not self._items:
                return None
            request, self._request = (self._request, None) if op == "add" else (None, self._request)
            at = time.time()
            self._apply(self._n, self._start(op, texts, request), op, texts, request)
            self._read_at = at
            if run:
                self._bases[run] = self._n
            return popped

    def _start(self, op: str, texts: Sequence[str], request: str | None) -> str:
        """Writes: starts the turn that follows the last one."""
        server = _server(self.client.config)
        if (self._by or server.name) != server.name:
            # Idempotency keys are apart for each of them.
            raise WaybillError(f"session {self.session_id} is written by {self._by}, and this is {server.name}: use an API key of the same name")
        names = [f"item_{n}" for n in range(len(texts))]
        labels = {LABEL: self._label, f"{LABEL}.n": str(self._n), f"{LABEL}.op": op} | ({f"{LABEL}.request": request} if request else {})
        what = f"{len(texts)} items" if op == "add" else op
        start: dict[str, Any] = {
            "profile_name": PROFILE,
            # The last line differs for each write, so that of two with the same key only one can be stored.
            "instruction": f"OpenAI Agents session {dumps(self.session_id)[1:-1]}: {what}\n{uuid7()}",
            "arguments": dict(zip(names, texts, strict=True)),
            "handover": {"context_packing_config": {"pack_arguments": [{"arg_key": one} for one in ("instruction", *names)]}},
            "labels": labels,
            "external": True,  # an item may come from anywhere
        }
        for one in start["handover"]["context_packing_config"]["pack_arguments"][1:]:
            one["as_card_type"] = "openai_agents.item"
        try:
            turn_id = server.client.api.start_turn(start, key=f"openai-agents:{self._label}:{self._last}").agent_turn_id
        except IdempotencyMismatch as error:
            self._is_stale = True
            raise self._taken() from error
        server.end_turns()
        return turn_id

    def _answered(self, items: Sequence[dict[str, Any]]) -> str | None:
        """Returns the id of a call to which these items have another answer."""
        for n, item in enumerate(items):
            before = itertools.chain(reversed(items[:n]), (json.loads(text) for text, _ in reversed(self._items)))
            said: dict[str, Any] | None = next((one for one in before if one.get("call_id") == item["call_id"]), None) if is_answer(item) else None
            if said and is_answer(said):
                return item["call_id"]
        return None

    def _taken(self, why: str = "another run has written to it since this one has read it") -> SessionTaken:
        return SessionTaken(f"session {self.session_id}: {why}. Nothing of this write was stored; start a new run to go on from what is there")


class Server:
    """What the sessions of one process share."""

    def __init__(self, config: Config) -> None:
        self.client = Waybill.of(config)
        #: As the server names who starts a turn. `waybill dev` needs no key.
        self.name = self.client.me().actor if config.key else "loopback"
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="waybill session")
        self._is_asked = threading.Event()
        prompt = "Each of its turns is a write to a session of the OpenAI Agents SDK, and has nothing to do."
        llm = {"provider": "demo", "model": "demo", "params": {"script": [{"say": "stored"}]}}
        manifest = {"name": PROFILE, "worker_target": PROFILE, "llm_config": llm, "system_prompt_template": prompt}
        self.client.api.apply_resources({"manifests": [{"profile": manifest}]})

    def end_turns(self) -> None:
        """Ends the turns of all writes, soon. It is for tidiness: what was written is stored."""
        if not self._is_asked.is_set():
            self._is_asked.set()
            self._threads.submit(self._end)

    def _end(self) -> None:
        self._is_asked.clear()
        api, worker = self.client.api, f"openai-agents-{uuid7()}"
        try:
            claim = {"worker": worker, "target": PROFILE, "most": 100, "lease_seconds": 10}
            while claimed := api.claim_turns(claim, patience=5).turns:
                for one in claimed:
                    said = {"fence": one.fence.model_dump(), "status": "success", "cards": [card("task.deliverable", "stored")]}
                    api.finish_turn(one.agent_turn_id, said, patience=5)
            api.leave({"worker": worker}, patience=2)
        except WaybillError as error:
            log.info("turns of sessions were not ended, and will be with the next write: %s", error)


SERVERS: dict[tuple[Any, ...], Server] = {}


def _server(config: Config) -> Server:
    # A forked child has none of its parent's threads, so each process has its own.
    key = config.url, config.project, config.key, os.getpid()
    if key not in SERVERS:
        SERVERS[key] = Server(config)
    return SERVERS[key]


def is_answer(item: dict[str, Any]) -> bool:
    return "call_id" in item and str(item.get("type")).endswith("_output")


def label(turn: models.Summary, name: str) -> str:
    return turn.labels.model_dump().get(f"{LABEL}.{name}", "")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]
