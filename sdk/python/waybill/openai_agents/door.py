"""Tools behind a door: each call is made once, also if the process dies, and a person may have to agree first.

door = WaybillDoor()
agent = Agent("buyer", tools=[door(order, approval="always")])
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections import Counter
from typing import Any, Literal
from weakref import WeakKeyDictionary

from agents import AgentsException, FunctionTool
from agents.tool_context import ToolContext

from .._adapter.door import Door, Doors, answer_of
from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from ..errors import ConfigError, NotYet, WaybillError
from ..wire import uuid7
from .session import PLACE, Run

#: For each run, how often it has made the same call at the same place.
MADE: WeakKeyDictionary[Run, Counter[str]] = WeakKeyDictionary()


class StillWaiting(WaybillError, AgentsException):
    """A call of a tool is not answered yet, because a person is asked or the tool is slow: the run ends. Go on with a new run of the same session."""


class WaybillDoor:
    """Puts tools behind the door. `name` begins the names of its profile and queues: each set of doors has its own. If a call takes longer than
    `wait_seconds`, the run ends with StillWaiting; if that is None, it waits."""

    def __init__(self, client: Waybill | AsyncWaybill | None = None, *, name: str = "openai-agents", wait_seconds: float | None = None) -> None:
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self.wait_seconds = wait_seconds
        self._doors = Doors(self.client, name, "the OpenAI Agents SDK")

    def __call__(
        self,
        tool: FunctionTool,
        *,
        effect: Literal["pure", "idempotent", "once"] = "once",
        approval: Literal["never", "external", "always"] = "never",
        four_eyes: bool = False,
        timeout: float = 60,
    ) -> FunctionTool:
        """Returns the tool, behind the door. What the parameters mean is said at `waybill.tool`. The tool gets its arguments, nothing of the run."""

        if tool.needs_approval is not False:
            raise ConfigError(
                f"{tool.name}: say `approval` at the door, and not `needs_approval`, with which a run that is resumed calls a tool again"
            )

        async def call(arguments: dict[str, Any]) -> Any:
            said = json.dumps(arguments)
            context: ToolContext[Any] = ToolContext(context=None, tool_name=tool.name, tool_call_id=uuid7(), tool_arguments=said)
            return await tool.on_invoke_tool(context, said)

        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            return await self._call(context, tool.name, json.loads(arguments))

        more: dict[str, Any] = {"effect": effect, "approval": approval, "four_eyes": four_eyes, "timeout": timeout}
        self._doors.add(Door(tool.name, tool.description, tool.params_json_schema, call, **more))
        return dataclasses.replace(tool, on_invoke_tool=invoke, timeout_seconds=None)

    async def _call(self, context: ToolContext[Any], tool: str, arguments: dict[str, Any]) -> str:
        key, session_id = place_of(context, tool, arguments)
        labels = {"session": session_id} if session_id else None
        turn = await asyncio.to_thread(self._doors.call, tool, arguments, key=key, labels=labels)
        until = None if self.wait_seconds is None else time.monotonic() + self.wait_seconds
        while not turn.is_over:
            try:
                await asyncio.to_thread(turn.wait, 1)
            except NotYet as error:
                if until and time.monotonic() > until:
                    raise StillWaiting(f"{tool}: turn {turn.id} waits for a person, or for the tool") from error
                await asyncio.to_thread(self._doors.work)
                await asyncio.sleep(0.5)
        return answer_of(turn)[1]

    def close(self) -> None:
        """Stops answering calls."""
        self._doors.close()


def place_of(context: ToolContext[Any], tool: str, arguments: dict[str, Any]) -> tuple[str, str | None]:
    """Returns a key that a call has again when its run is made again from what is in the session, and the session."""
    run, session = PLACE.get() or (None, None)
    if run is None or session is None or run.usage is not context.usage:
        return f"openai-agents:{uuid7()}", None
    place = json.dumps([session.session_id, session.place(run), tool, arguments])
    made = MADE.setdefault(run, Counter())
    made[place] += 1
    return f"openai-agents:{hashlib.sha256(f'{place} {made[place]}'.encode()).hexdigest()}", session.session_id
