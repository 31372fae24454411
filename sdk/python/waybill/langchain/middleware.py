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
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from .._turns import WorkerTurn
from ..errors import ConfigError, NotYet
from ..profile import Profile
from ..tools import Tool
from ..wire import uuid7
from ..worker import Worker, card


class _Signature:
    """The parameters of a tool of LangChain."""

    returned = None

    def __init__(self, tool: BaseTool) -> None:
        self.parameters: dict[str, Any] = convert_to_openai_tool(tool)["function"]["parameters"]
        self.summary = tool.description

    def result(self) -> None:
        return None

    def read(self, arguments: str) -> dict[str, Any]:
        return {"arguments": json.loads(arguments)}


class Door(Tool[..., Any]):
    """A tool of LangChain whose calls go through Waybill."""

    def __init__(self, tool: BaseTool, **more: Any) -> None:
        async def call(arguments: dict[str, Any]) -> Any:
            said = await tool.ainvoke(arguments)
            return said.content if isinstance(said, ToolMessage) else said

        super().__init__(call, name=tool.name, description=tool.description, trusted=False, after="suspend", **more)
        self.signature: Any = _Signature(tool)


def door(
    tool: BaseTool,
    *,
    effect: Literal["pure", "idempotent", "once"] = "once",
    approval: Literal["never", "external", "always"] = "never",
    four_eyes: bool = False,
    timeout: float = 60,
) -> Door:
    """Puts a tool behind the door. What its parameters mean is said at `waybill.tool`. The tool gets its arguments, and nothing of the graph."""
    return Door(tool, effect=effect, approval=approval, four_eyes=four_eyes, timeout=timeout, target="langchain-tools")


class WaybillMiddleware(AgentMiddleware[Any, Any, Any]):
    """`record` names a provider that the server records. `agent` is the name under which its conversations are listed; `key` is a key of scope
    `recorder`, by default that of the client. `name` begins the names of the profile and queues of the doors: each application has its own.

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
        self.doors = {one.name: one for one in doors}
        self._door, self._lock = f"{name}-door", threading.Lock()
        self._worker: Worker | None = None
        for one in doors:
            one.target = f"{name}-tools"

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
        return self._pass(request) if request.tool_call["name"] in self.doors else handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        return await (asyncio.to_thread(self._pass, request) if request.tool_call["name"] in self.doors else handler(request))

    def _pass(self, request: ToolCallRequest) -> ToolMessage:
        self._work()
        said = request.tool_call
        config = get_config().get("configurable", {})
        # The task keeps its id when it is run again after a crash.
        place = [_thread_id(), config.get("checkpoint_ns"), config.get("__pregel_task_id"), said["id"]]
        key = f"langchain:{hashlib.sha256(json.dumps(place).encode()).hexdigest()}"
        labels = {"session": thread_id} if (thread_id := _thread_id()) else None
        call = json.dumps({"tool_name": said["name"], "arguments": json.dumps(said["args"])})
        turn = self.client.run(self._door, call, key=key, labels=labels)
        while not turn.is_over:
            try:
                turn.wait(self.wait_seconds)
            except NotYet:
                interrupt({"tool": said["name"], "arguments": said["args"], "waybill_turn": turn.id, "waits_for": "an approval, or the tool"})
        delivered = turn.deliverable
        answer: dict[str, Any] = {"status": turn.status, "result": delivered}
        if isinstance(delivered, dict) and "result" in delivered:
            answer = cast("dict[str, Any]", delivered)
        result = answer["result"]
        text = result if isinstance(result, str) else json.dumps(result)
        status: Literal["success", "error"] = "success" if answer["status"] == "success" else "error"
        return ToolMessage(text, tool_call_id=said["id"], name=said["name"], status=status)

    def _work(self) -> None:
        """Answers calls, in a thread of this process. Any process that has the tools may answer them."""
        with self._lock:
            if self._worker is not None:
                return
            prompt = "Its turns make one call each, for an agent of LangChain."
            tools = list(self.doors.values())
            self.client.apply(Profile(self._door, model="demo/demo", prompt=prompt, tools=tools, target=self._door).scripted([{"say": "No worker."}]))
            worker = Worker(self.client, tools=tools, target=self._door)
            worker.turn(_make_call(self.doors))
            self._worker = worker.__enter__()

    def close(self) -> None:
        """Stops answering calls."""
        if self._worker is not None:
            self._worker.__exit__()
            self._worker = None


def _make_call(doors: dict[str, Door]) -> Callable[[WorkerTurn], Awaitable[Any]]:
    async def make_call(turn: WorkerTurn) -> Any:
        """Makes the call that the turn is for; once it is answered, delivers the answer."""
        for written in await turn.written_cards():
            if written.metadata and written.metadata.type == "tool.result":
                return written.content
        content = json.loads(await turn.query())
        tool, call_id = doors[content["tool_name"]], uuid7()
        made = card("tool.call", content, tool_call_id=call_id)
        # A person may take a day to decide.
        seconds = 86_400 if tool.approval != "never" else min(86_400, round(tool.timeout) + 60)
        call = {"tool_call_id": call_id, "tool_call_card_id": made["card_id"], "target": tool.target, "timeout_seconds": seconds}
        await turn.write(made, calls=[call | {"once": tool.effect == "once"}], suspend=True)
        return None

    return make_call


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
