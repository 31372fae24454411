"""Calls of tools as calls of Waybill: the same key is called once, also if the process dies, and a person may have to agree first."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast
from weakref import WeakValueDictionary

from .._sync.client import Waybill
from .._sync.turn import Turn
from .._turns import WorkerTurn
from ..errors import ConfigError
from ..profile import Profile
from ..tools import Tool
from ..wire import uuid7
from ..worker import Worker, card

#: By server, project and name: the doors of this process whose calls are answered.
AT_WORK: WeakValueDictionary[tuple[str, str | None, str], Doors] = WeakValueDictionary()
NAMES = threading.Lock()


class _Signature:
    """Parameters that a framework has worked out."""

    returned = None

    def __init__(self, parameters: dict[str, Any], summary: str) -> None:
        self.parameters, self.summary = parameters, summary

    def result(self) -> None:
        return None

    def read(self, arguments: str) -> dict[str, Any]:
        return {"arguments": json.loads(arguments)}


class Door(Tool[..., Any]):
    """A tool of a framework whose calls go through Waybill. `call` gets the arguments of a call."""

    def __init__(
        self, name: str, description: str, parameters: dict[str, Any], call: Callable[[dict[str, Any]], Awaitable[Any]], **more: Any
    ) -> None:
        async def made(arguments: dict[str, Any]) -> Any:
            return await call(arguments)

        super().__init__(made, name=name, description=description, trusted=False, after="suspend", target="set-by-its-doors", **more)
        self.signature: Any = _Signature(parameters, description)


class Doors:
    """Tools of an application that are called through Waybill, and the worker that answers the calls. `name` begins the names of the
    profile and queues: each set of tools has its own."""

    def __init__(self, client: Waybill, name: str, program: str, tools: Iterable[Tool[..., Any]] = ()) -> None:
        self.client, self.program = client, program
        self.tools: dict[str, Tool[..., Any]] = {}
        self._name, self._profile, self._target, self._lock = name, f"{name}-door", f"{name}-tools", threading.Lock()
        self._key = client.config.url, client.config.project, name
        self._worker: Worker | None = None
        for one in tools:
            self.add(one)

    def add(self, tool: Tool[..., Any]) -> None:
        if self._worker is not None and tool.name not in self.tools:
            raise ConfigError(f"{tool.name}: put it behind the door before the first call of another tool behind it, or behind a door of its own")
        tool.target = self._target
        self.tools[tool.name] = tool

    def call(self, tool: str, arguments: Mapping[str, Any], *, key: str, labels: dict[str, str] | None) -> Turn[Any]:
        """Returns the turn that makes a call. The same key is the same call."""
        self.work()
        return self.client.run(self._profile, json.dumps({"tool_name": tool, "arguments": json.dumps(arguments)}), key=key, labels=labels)

    def work(self) -> None:
        """Answers calls, in a thread of this process, which is started again if it has ended. Any process that has the tools may answer them."""
        with NAMES:
            other = AT_WORK.setdefault(self._key, self)
        if other.tools.keys() != self.tools.keys():
            raise ConfigError(
                f"doors to {', '.join(self.tools)} have the name {self._name!r}, as those to {', '.join(other.tools)} in this process have: "
                f"their calls would get mixed up. Give each set of doors a name of its own"
            )
        with self._lock:
            if self._worker is not None and self._worker.is_at_work:
                return
            prompt = f"Its turns make one call each, for an agent of {self.program}."
            tools = list(self.tools.values())
            profile = Profile(self._profile, model="demo/demo", prompt=prompt, tools=tools, target=self._profile)
            self.client.apply(profile.scripted([{"say": "No worker."}]))
            worker = Worker(self.client, tools=tools, target=self._profile)
            worker.turn(_make_call(self.tools))
            self._worker = worker.__enter__()

    def close(self) -> None:
        """Stops answering calls."""
        with NAMES:
            if AT_WORK.get(self._key) is self:
                del AT_WORK[self._key]
        if self._worker is not None:
            self._worker.__exit__()
            self._worker = None


def answer_of(turn: Turn[Any]) -> tuple[bool, str]:
    """Returns whether the call of a turn that is over has succeeded, and what came of it."""
    delivered = turn.deliverable
    answer: dict[str, Any] = {"status": turn.status, "result": delivered}
    if isinstance(delivered, dict) and "result" in delivered:
        answer = cast("dict[str, Any]", delivered)
    result = answer["result"]
    return answer["status"] == "success", result if isinstance(result, str) else json.dumps(result)


def _make_call(tools: Mapping[str, Tool[..., Any]]) -> Callable[[WorkerTurn], Awaitable[Any]]:
    async def make_call(turn: WorkerTurn) -> Any:
        """Makes the call that the turn is for; once it is answered, delivers the answer."""
        for written in await turn.written_cards():
            if written.metadata and written.metadata.type == "tool.result":
                return written.content
        content = json.loads(await turn.query())
        tool, call_id = tools[content["tool_name"]], uuid7()
        made = card("tool.call", content, tool_call_id=call_id)
        # A person may take a day to decide.
        seconds = 86_400 if tool.approval != "never" else min(86_400, round(tool.timeout) + 60)
        call = {"tool_call_id": call_id, "tool_call_card_id": made["card_id"], "target": tool.target, "timeout_seconds": seconds}
        await turn.write(made, calls=[call | {"once": tool.effect == "once"}], suspend=True)
        return None

    return make_call
