"""Workers: processes that answer calls of tools, and run turns of their own.

    Worker(wb, tools=[weather]).run()

A worker keeps nothing that matters: it may be killed at any time, and another one goes on. It claims as much as it has room for (`at_once`), keeps
its lease apart from the work, and on SIGTERM stops claiming, finishes what it holds for up to `drain_seconds`, and gives the rest back.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import inspect
import logging
import random
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ._async.client import AsyncWaybill
from ._async.operations import OPERATIONS
from ._lease import Held, Lease, Lost
from ._turns import Step, WorkerTurn, card, is_dropped
from .errors import ApiError, ConfigError, ToolError, Unanswered, Unseen, WaybillError
from .tools import Call, Tool, explain
from .wire import body_bytes, uuid7

if TYPE_CHECKING:
    from . import models
    from ._sync.client import Waybill

__all__ = ["Step", "Worker", "WorkerTurn", "card"]

log = logging.getLogger("waybill.worker")

#: Seconds that a claim waits for work.
CLAIM_WAIT = 20.0
#: The body that a server takes, unless its operator lets it take more.
MOST_BYTES = 4 << 20
Handler = Callable[[WorkerTurn], Awaitable[Any]]


class Worker:
    def __init__(
        self,
        client: Waybill | AsyncWaybill,
        tools: Sequence[Tool[..., Any]] = (),
        *,
        target: str | None = None,
        at_once: int = 16,
        lease_seconds: float = 30,
        drain_seconds: float = 25,
        register: bool = False,
    ) -> None:
        """`tools` are answered here. `target` is the queue of turns that `@worker.turn` runs. With `register`, tools are registered when the worker
        starts, which a key of scope `tool` may do for its targets."""
        self.config = client.config
        self.tools = {one.name: one for one in tools}
        if len(self.tools) != len(tools):
            raise ConfigError("two tools have the same name")
        self.target = target
        self.at_once, self.lease_seconds, self.drain_seconds, self.register = at_once, lease_seconds, drain_seconds, register
        self._handler: Handler | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._failed: BaseException | None = None
        self._stopping: asyncio.Event | None = None

    def turn(self, handler: Handler) -> Handler:
        """Names the function that runs turns of `target`: `async def think(turn)`. What it returns is delivered, unless the turn has ended."""
        if self.target is None:
            raise ConfigError('name the queue of turns: Worker(wb, target="mine")')
        if not inspect.iscoroutinefunction(handler):
            raise ConfigError(f"{getattr(handler, '__name__', handler)} must be an `async def`")
        self._handler = handler
        return handler

    def run(self) -> None:
        """Works until SIGTERM or Ctrl-C. A second signal ends it at once."""
        asyncio.run(self.serve(signals=True))

    @property
    def is_at_work(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> Worker:
        """Works in a thread of this process until the block ends."""
        if self.is_at_work:
            raise ConfigError("this worker is at work already")
        self._up, self._failed = threading.Event(), None
        self._thread = threading.Thread(target=self._in_thread, name="waybill worker", daemon=True)
        self._thread.start()
        self._up.wait()
        if self._failed:
            raise self._failed
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self.stop()
        if self._thread:
            self._thread.join(self.drain_seconds + 15)
        if self._failed and kind is None:
            raise self._failed

    def _in_thread(self) -> None:
        try:
            asyncio.run(self.serve())
        except BaseException as error:
            self._failed = error
            log.error("the worker ended: %s", error)
        finally:
            self._up.set()

    def stop(self) -> None:
        """Lets the worker finish what it holds, and then end. Any thread may call it."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, *, signals: bool = False) -> None:
        """Works until `stop`, in the event loop of the caller."""
        if not self.tools and self._handler is None:
            raise ConfigError("a worker needs `tools`, or a function that runs turns: `@worker.turn`")
        if self.at_once < len(self._targets()):
            raise ConfigError(f"`at_once` must be at least {len(self._targets())}: one for each target")
        stopping = self._stopping = asyncio.Event()
        self._loop, self._room = asyncio.get_running_loop(), asyncio.Semaphore(self.at_once)
        if signals:
            self._catch_signals(self._loop, stopping)
        async with AsyncWaybill.of(self.config) as client:
            if self.register:
                for one in self.tools.values():
                    await client.api.register_tool(one.name, one.manifest())
            log.info("waiting for %s", ", ".join([*self.tools, *([f"turns of {self.target}"] if self._handler else [])]))
            self._up.set()
            while not stopping.is_set():
                lease = Lease(client, self.lease_seconds)
                try:
                    await self._under(lease, client, stopping)
                except Lost as lost:
                    log.warning("going on under another name: %s", lost)
                    await asyncio.sleep(random.uniform(0.2, 1))  # a server that refuses everything is not asked without end
                finally:
                    await lease.end()

    def _targets(self) -> list[tuple[str, str]]:
        targets = {("call", one.target) for one in self.tools.values()}
        if self._handler and self.target:
            targets.add(("turn", self.target))
        return sorted(targets)

    def _catch_signals(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        def caught() -> None:
            if stopping.is_set():
                raise SystemExit(1)
            log.info("finishing what is held")
            stopping.set()

        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, caught)

    async def _under(self, lease: Lease, client: AsyncWaybill, stopping: asyncio.Event) -> None:
        """Claims and works under one lease, until it is lost or the worker is to end."""
        work: set[asyncio.Task[None]] = set()
        loops = [asyncio.create_task(self._claim(lease, client, kind, target, work)) for kind, target in self._targets()]
        loops.append(asyncio.create_task(self._adopt(lease, client, work)))
        ends = [asyncio.create_task(lease.is_lost.wait()), asyncio.create_task(stopping.wait())]
        try:
            done, _ = await asyncio.wait([*loops, *ends], return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
            if lease.is_lost.is_set():
                raise Lost("the lease has lapsed")
            for one in loops:
                one.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._drain(lease, client, work)
        finally:
            for one in (*loops, *ends, *work):
                one.cancel()
            await asyncio.gather(*loops, *ends, *work, return_exceptions=True)

    async def _drain(self, lease: Lease, client: AsyncWaybill, work: set[asyncio.Task[None]]) -> None:
        if work:
            lost = asyncio.create_task(lease.is_lost.wait())
            finishing = asyncio.gather(*work, return_exceptions=True)
            await asyncio.wait([finishing, lost], timeout=self.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
        for held in list(lease.held.values()):
            log.info("a %s is given back", held.kind)

    async def _claim(self, lease: Lease, client: AsyncWaybill, kind: str, target: str, work: set[asyncio.Task[None]]) -> None:
        """Claims as much as there is room for, again and again. A worker without room does not claim: others do."""
        while True:
            # One place is kept while waiting for work, so that the queues do not take the room from each other.
            await self._room.acquire()
            n_places, wait_seconds = 1, CLAIM_WAIT
            while n_places and await self._claim_once(lease, client, kind, target, work, n_places, wait_seconds):
                # There may be more: now as much as there is room for, without waiting.
                n_places, wait_seconds = 0, 0.0
                while not self._room.locked():
                    await self._room.acquire()
                    n_places += 1

    async def _claim_once(
        self, lease: Lease, client: AsyncWaybill, kind: str, target: str, work: set[asyncio.Task[None]], n_places: int, wait_seconds: float
    ) -> bool:
        """Claims once, into places that are taken, and frees those that are left. Returns whether there was work."""
        n_taken = 0
        try:
            body = lease.claim_body(target, min(n_places, 100), wait_seconds)
            if kind == "turn":
                claimed: Sequence[Any] = (await client.api.claim_turns(body | {"include": ["query", "profile", "limits"]}, patience=0)).turns
            else:
                claimed = (await client.api.claim_calls(body, patience=0)).calls
            for one in claimed:
                if held := lease.take(kind, one):
                    n_taken += 1
                    self._start(held, client, work)
            if claimed:
                lease.begin()
            return bool(claimed)
        except (ApiError, Unanswered) as error:
            await self._claim_failed(lease, error)
            return False
        finally:
            for _ in range(n_places - n_taken):
                self._room.release()

    async def _claim_failed(self, lease: Lease, error: WaybillError) -> None:
        if isinstance(error, ApiError):
            if error.code == "lease_lost":
                raise Lost(error.detail)
            if error.status < 500 and error.status != 429:
                raise error  # the key, the project or the target is wrong: nothing that waiting would mend
        log.warning("claim: %s", error)
        await asyncio.sleep(random.uniform(0.5, 1) * (getattr(error, "retry_after", None) or 1))
        # The server may have claimed, and only its answer was lost. Another claim would not bring it: heartbeats list it.
        try:
            await lease.beat()
            lease.begin()
            await asyncio.sleep(0.2)
            await lease.beat()
        except ApiError as refused:
            if refused.code == "lease_lost":
                # There is no lease yet, or no more.
                raise Lost(refused.detail) from error
        except Unanswered:
            pass

    async def _adopt(self, lease: Lease, client: AsyncWaybill, work: set[asyncio.Task[None]]) -> None:
        while True:
            held = await lease.found.get()
            await self._room.acquire()
            self._start(held, client, work)

    def _start(self, held: Held, client: AsyncWaybill, work: set[asyncio.Task[None]]) -> None:
        task = asyncio.create_task(self._do(held, client))
        work.add(task)

        def done(task: asyncio.Task[None]) -> None:
            work.discard(task)
            held.lease.drop(held)
            self._room.release()
            if not task.cancelled() and (error := task.exception()):
                log.error("a %s was dropped: %r", held.kind, error)
                # A call has its deadline. A turn would be nobody's as long as the lease lives.
                if isinstance(error, Lost) or held.kind == "turn":
                    held.lease.is_lost.set()

        task.add_done_callback(done)

    async def _do(self, held: Held, client: AsyncWaybill) -> None:
        try:
            await (self._run_turn(held, client) if held.kind == "turn" else self._answer(held, client))
        except Unanswered as error:
            # Whether it was written is not known: others may have it, and go on from there.
            raise Lost(str(error)) from error
        except ApiError as error:
            if not is_dropped(error):
                raise
            log.info("a %s was taken over, or is over: %s", held.kind, error.detail)
            if error.code == "lease_lost":
                held.lease.is_lost.set()

    async def _run_turn(self, held: Held, client: AsyncWaybill) -> None:
        turn = WorkerTurn(client, held)
        assert self._handler is not None
        try:
            try:
                await self._think(turn, self._handler)
            except Unseen:
                # A message came while it thought. The second time it can read it.
                await self._think(turn, self._handler)
        except (Lost, Unanswered):
            raise
        except Exception as error:
            if is_dropped(error):
                raise
            log.exception("turn %s: an attempt failed", turn.id)
            if not turn.is_let_go:
                await turn.give_back(f"{type(error).__name__}: {explain(error)}", backoff_seconds=2)

    async def _think(self, turn: WorkerTurn, handler: Handler) -> None:
        returned = await contained(handler(turn))
        if turn.is_let_go:
            return
        if returned is None and not turn.stop_asked:
            raise ConfigError("the function of `@worker.turn` returned nothing: return the deliverable, or answer the steps of the turn")
        if turn.stop_asked:
            await turn.finish(returned if returned is not None else "I was asked to stop.", status="canceled")
        else:
            await turn.finish(returned)

    async def _answer(self, held: Held, client: AsyncWaybill) -> None:
        said = held.claimed
        call = Call(
            said.idempotency_key,
            said.tool_call_id,
            said.agent_turn_id,
            said.agent_id,
            said.deadline_at,
            said.on_behalf_of,
            said.n_lost_leases,
            lambda: not held.lease.is_good or seconds_until(said.deadline_at, client) < 0,
        )
        status, result = await self._call(said, call, seconds_until(said.deadline_at, client))
        if not held.lease.is_good:
            raise Lost(f"call {said.tool_call_id}: the lease was lost")
        report = {"worker": held.lease.worker, "claim_token": said.claim_token, "card_id": uuid7(), "status": status, "result": result}
        try:
            reported = await self._report(client, said.tool_call_id, report)
        except (ApiError, Unanswered, ValueError) as error:
            is_refused = isinstance(error, (TooMuch, ValueError)) or (isinstance(error, ApiError) and error.code in ("invalid", "too_large"))
            if not is_refused:
                raise
            log.error("the result of %s cannot be stored: %s", said.tool_name, explain(error))
            report |= {"status": "failed", "result": f"{said.tool_name} was called, but its result cannot be stored: {explain(error)}"}
            reported = await self._report(client, said.tool_call_id, report)
        log.info("call %s of %s: %s, %s", said.tool_call_id, said.tool_name, report["status"], reported.outcome)

    async def _report(self, client: AsyncWaybill, call_id: str, report: dict[str, Any]) -> models.Reported:
        body = body_bytes(report)
        patience = None if len(body) <= MOST_BYTES else 3.0
        try:
            return await client.transport.call(OPERATIONS["report_call"], {"call": call_id}, body=body, patience=patience)
        except Unanswered as error:
            if patience is None:
                raise
            # A server that refuses a body because of its size may close the connection before all of it was sent.
            raise TooMuch(f"it has {len(body):,} bytes. Store it as an artifact, and return its path") from error

    async def _call(self, said: Any, call: Call, seconds: float) -> tuple[str, Any]:
        """Calls the function. What cannot be done is an answer, too: the model reads it, and may call again."""
        known = self.tools.get(said.tool_name)
        if known is None:
            log.error("a call of %s came, which this worker does not have: give tools of other programs another `target`", said.tool_name)
            return "failed", f"no worker of this target has the tool {said.tool_name}"
        try:
            return "success", await contained(known.answer(said.arguments, call), max(0.1, min(seconds, known.timeout)))
        except OutOfTime:
            return "timeout", f"{known.name} did not answer within {min(seconds, known.timeout):.1f} s"
        except ToolError as error:
            return "failed", explain(error)
        except Exception as error:
            log.exception("tool %s failed", known.name)
            return "failed", explain(error)


class TooMuch(Unanswered):
    """A result is too large for the server, as far as can be known here."""


class OutOfTime(Exception):
    """A function of the user did not end in time."""


async def contained(work: Awaitable[Any], seconds: float | None = None) -> Any:
    """Runs a function of the user, which may do what it likes: exit, cancel itself, or refuse to be canceled. It does not hold the worker up."""

    async def run() -> Any:
        try:
            return await work
        except (Exception, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            raise RuntimeError(repr(error)) from error

    task = asyncio.ensure_future(run())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise OutOfTime
    if task.cancelled():
        raise RuntimeError("it was canceled, by itself or by what it called")
    return task.result()


def seconds_until(at: datetime.datetime, client: AsyncWaybill) -> float:
    """Returns the seconds until a time of the server's clock, which need not be the time here."""
    return (at - datetime.datetime.now(datetime.timezone.utc)).total_seconds() - client.transport.clock_ahead
