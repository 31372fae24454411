"""A middleware for LangChain's agents: receipts of each model call, and tools behind a door.

    waybill = WaybillMiddleware(record="openai", doors=[door(pay, approval="always")])
    agent = create_agent(ChatOpenAI(model="gpt-5-mini"), [search, pay], middleware=[waybill])

The model is asked through Waybill's recorder, so what it saw is on record byte for byte, with a receipt. A call of a tool behind a door is a
call of Waybill: the same call of the same task is made once, also if the process dies, and a person may have to agree first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from .._adapter.door import Door, Doors, answer_of
from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from ..errors import ConfigError, NotYet


def door(
    tool: BaseTool,
    *,
    effect: Literal["pure", "idempotent", "once"] = "once",
    approval: Literal["never", "external", "always"] = "never",
    four_eyes: bool = False,
    timeout: float = 60,
) -> Door:
    """Puts a tool behind the door. What its parameters mean is said at `waybill.tool`. The tool gets its arguments, and nothing of the graph."""

    async def call(arguments: dict[str, Any]) -> Any:
        said = await tool.ainvoke(arguments)
        return said.content if isinstance(said, ToolMessage) else said

    parameters = convert_to_openai_tool(tool)["function"]["parameters"]
    return Door(tool.name, tool.description, parameters, call, effect=effect, approval=approval, four_eyes=four_eyes, timeout=timeout)


class WaybillMiddleware(AgentMiddleware[Any, Any, Any]):
    """`record` names a provider that the server records. `agent` is the name under which its conversations are listed; `key` is a key of scope
    `recorder`, by default that of the client. `name` begins the names of the profile and queues of the doors: each set of doors has its own.

    If a call takes longer than `wait_seconds`, because a person is asked, the graph is interrupted. Go on with `Command(resume=True)`."""

    def __init__(
        self,
        client: Waybill | AsyncWaybill | None = None,
        *,
        record: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        doors: Sequence[Door] = (),
        name: str = "langchain",
        wait_seconds: float = 20,
    ) -> None:
        super().__init__()
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self.record, self.agent, self.key, self.wait_seconds = record, agent, key or self.client.config.key, wait_seconds
        self._doors = Doors(self.client, name, "LangChain", doors)

    # Receipts.

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]) -> ModelResponse[Any]:
        return handler(self._recorded(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._recorded(request))

    def _recorded(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if self.record is None:
            return request
        headers = {"x-waybill-session": _thread_id(), "x-waybill-agent": self.agent, "x-waybill-key": self.key}
        headers = {name: value for name, value in headers.items() if value}
        url = f"{self.client.config.url}/record/{self.client.config.project}/{self.record}"
        return request.override(model=through(request.model, url, headers))

    # Tools.

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        return self._pass(request) if request.tool_call["name"] in self._doors.tools else handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        return await (asyncio.to_thread(self._pass, request) if request.tool_call["name"] in self._doors.tools else handler(request))

    def _pass(self, request: ToolCallRequest) -> ToolMessage:
        said = request.tool_call
        config = get_config().get("configurable", {})
        # The task keeps its id when it is run again after a crash.
        place = [_thread_id(), config.get("checkpoint_ns"), config.get("__pregel_task_id"), said["id"]]
        key = f"langchain:{hashlib.sha256(json.dumps(place).encode()).hexdigest()}"
        labels = {"session": thread_id} if (thread_id := _thread_id()) else None
        turn = self._doors.call(said["name"], said["args"], key=key, labels=labels)
        while not turn.is_over:
            try:
                turn.wait(self.wait_seconds)
            except NotYet:
                interrupt({"tool": said["name"], "arguments": said["args"], "waybill_turn": turn.id, "waits_for": "an approval, or the tool"})
        is_success, text = answer_of(turn)
        status: Literal["success", "error"] = "success" if is_success else "error"
        return ToolMessage(text, tool_call_id=said["id"], name=said["name"], status=status)

    def close(self) -> None:
        """Stops answering calls."""
        self._doors.close()


def _thread_id() -> str | None:
    thread_id = get_config().get("configurable", {}).get("thread_id")
    return None if thread_id is None else str(thread_id)


def through(model: BaseChatModel, url: str, headers: dict[str, str]) -> BaseChatModel:
    """Returns a copy of a model that asks its provider through the recorder."""
    said: Any = model
    copy: Any = model.model_copy()
    if hasattr(said, "root_client") and hasattr(said, "root_async_client"):  # ChatOpenAI and its like
        to: dict[str, Any] = {"base_url": f"{url}/v1", "default_headers": headers}
        copy.root_client, copy.root_async_client = said.root_client.with_options(**to), said.root_async_client.with_options(**to)
        copy.client, copy.async_client = copy.root_client.chat.completions, copy.root_async_client.chat.completions
        return copy
    if hasattr(type(model), "_client") and hasattr(type(model), "_async_client"):  # ChatAnthropic
        for name in ("_client", "_async_client"):
            copy.__dict__[name] = getattr(said, name).with_options(base_url=url, default_headers=headers)
        return copy
    raise ConfigError(f"{type(model).__name__} cannot be pointed at the recorder: set its address yourself, and leave out `record`")
