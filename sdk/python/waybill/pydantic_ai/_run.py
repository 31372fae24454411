"""A durable run: a chain of turns (see `_adapter/chain.py`) whose cards are the results of its units.

    pydantic_ai.tenure  who holds the turn
    pydantic_ai.unit    the result of a unit: a model request, a tool call, an MCP call
    pydantic_ai.part    a piece of a long result
    pydantic_ai.begun   a call that is made at most once was about to be made

A program that is started again does all again, from its beginning. Units that are on record return their results; the first one that is not takes the
run over. So what a unit is called must be the same each time: the run of the agent, the step, the name, and for a tool call its id, which the model's
answer says, and that is on record.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

from .._adapter.chain import Chain, Kind, digest, dumps
from .._adapter.lease import MOST_CARD, Holder
from .._turns import card
from ..errors import WaybillError

log = logging.getLogger("waybill.pydantic_ai")


class RunTaken(WaybillError):
    """Another process has begun the same run: nothing more of this one is written. Do not go on with it."""


class RunChanged(WaybillError):
    """The run is on record with other prompts."""


class MaybeMade(WaybillError):
    """A call that is made at most once was begun, and its result is not on record."""


KIND = Kind("pydantic_ai", "run", "Pydantic AI", "WaybillDurability", RunTaken, "start the run again to go on from what is on record")


@dataclass
class Record(Chain):
    """What is on record of a run."""

    #: Who may write to it in this process.
    owner: object = None
    #: A unit whose result is gone would be run again.
    may_lack_cards: ClassVar[bool] = False

    @property
    def is_busy(self) -> bool:
        return self.held is not None or self.owner is not None

    def forget(self) -> None:
        self.units: dict[str, str] = {}
        self.begun: set[str] = set()

    def apply(self, card_type: str, text: str, card_id: str) -> list[Any]:
        if card_type == "pydantic_ai.unit":
            self.units.setdefault(json.loads(text)["unit"], text)
        elif card_type == "pydantic_ai.begun":
            self.begun.add(text)
        return []


class Scope:
    """Where units are counted: the run, or a unit in which another agent runs."""

    def __init__(self, run: DurableRun, path: str) -> None:
        self.run, self.path, self.taken = run, path, set[str]()

    def next(self, name: str) -> str:
        """Returns a name that is free."""
        unit = next(one for one in (f"{self.path}{name}:{n}" for n in itertools.count(1)) if one not in self.taken)
        self.taken.add(unit)
        return unit


SCOPE: ContextVar[Scope | None] = ContextVar("waybill.pydantic_ai", default=None)


class DurableRun:
    """A run under a key: what agents do within `with durability.run(key):` is on record. `n_executed` and `n_replayed` count units."""

    def __init__(self, holder: Holder[Record], key: str) -> None:
        self.key = key
        self.n_executed = self.n_replayed = 0
        self._holder = holder
        self._record = holder.log.chain(key)
        self._before: Scope | None = None
        self._is_lost = False

    def __enter__(self) -> DurableRun:
        self._read()
        self._before = SCOPE.get()
        SCOPE.set(Scope(self, ""))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        SCOPE.set(self._before)
        self._end(error)

    async def __aenter__(self) -> DurableRun:
        await self._away(self._read)
        self._before = SCOPE.get()
        SCOPE.set(Scope(self, ""))
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        SCOPE.set(self._before)
        await self._away(self._end, error)

    async def unit(
        self, scope: Scope, name: str, body: Callable[[], Awaitable[Any]], *, asked: str | None = None, once: bool = False
    ) -> tuple[Any, bool]:
        """Returns the result of a unit, and whether it was made just now."""
        unit = scope.next(name)
        found = await self._away(self._begin, unit, once)
        if found is not None:
            if asked and found.get("asked", asked) != asked:
                raise RunChanged(f"run {self.key} is on record with other prompts. Start it with those, or give this run a key of its own")
            self.n_replayed += 1
            return found["result"], False
        token = SCOPE.set(Scope(self, f"{digest(unit).hex()[:12]}/"))
        try:
            result = await body()
        except BaseException:
            # It is tried again, under the same name.
            scope.taken.discard(unit)
            raise
        finally:
            SCOPE.reset(token)
        await self._away(self._write, {"unit": unit} | ({"asked": asked} if asked else {}), result)
        self.n_executed += 1
        return result, True

    # In threads.

    async def _away(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in a thread. A write that was begun is finished, also if the task that waits for it is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._holder.pool, function, *arguments)

    def _read(self) -> None:
        with self._record.io:
            self._holder.log.refresh(self._record)
            self._holder.log.load(self._record)
            self._record.owner = self

    def _check(self) -> None:
        if self._record.owner is not self:
            raise KIND.taken(self._record, "it was begun once more in this process")
        if (held := self._record.held) and held.worker != self._holder.worker:
            self._record.lose()
            self._is_lost = True
        if self._is_lost:
            raise KIND.taken(self._record, "another process has taken it over, or this one was not heard of for too long")

    def _begin(self, unit: str, once: bool) -> dict[str, Any] | None:
        """Returns what is on record of a unit. If nothing is, the run belongs to this process afterwards."""
        record = self._record
        with record.io:
            self._check()
            if unit not in record.units:
                if record.held is None:
                    self._acquire()
                if unit not in record.units and once and unit in record.begun:
                    raise MaybeMade(unit)
                is_begun = once and unit not in record.units
                self._send([card("pydantic_ai.begun", unit)] if is_begun else [])
            text = record.units.get(unit)
        if text is None:
            return None
        said = json.loads(text)
        if "parts" in said:
            said["result"] = json.loads(self._holder.log.text(record, said["parts"]))
        return said

    def _write(self, said: dict[str, Any], result: Any) -> None:
        text, parts = dumps(result), list[dict[str, Any]]()
        if len(text) < MOST_CARD / 2:
            said["result"] = result
        else:
            parts = [card("pydantic_ai.part", text[at : at + MOST_CARD]) for at in range(0, len(text), MOST_CARD)]
            said["parts"] = [one["card_id"] for one in parts]
        with self._record.io:
            self._check()
            self._send([*parts, card("pydantic_ai.unit", dumps(said))])

    def _acquire(self) -> None:
        try:
            self._holder.acquire(self._record)
        except RunTaken:
            self._is_lost = True
            raise

    def _send(self, cards: list[dict[str, Any]]) -> None:
        try:
            self._holder.write(self._record, cards)
        except BaseException:
            self._is_lost = True
            raise

    def _end(self, error: BaseException | None) -> None:
        record = self._record
        with record.io:
            if record.owner is not self:
                return
            record.owner = None
            try:
                # Not what it says: that may be anything, such as a password.
                said = f"the run ended with {type(error).__name__}" if error else "the run ended"
                self._holder.release(record, status="failed" if error else "success", said=said)
            except WaybillError as refused:
                record.lose()
                log.warning("run %s: its turn was not ended: %s", self.key, refused)
            record.drop()
