"""Durable execution for Pydantic AI: each model request, tool call and MCP call is a unit, and its result is kept on a Waybill server.

    durability = WaybillDurability()
    agent = Agent("openai:gpt-5-mini", name="clerk", tools=[stock], capabilities=[durability])
    with durability.run("order-4711"):
        print(agent.run_sync("How much flour is there?").output)

After a crash, start the same program again with the same key: what is on record is not done again. Outside of `run`, agents run as always.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, Literal, cast

from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied, ToolFailed
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    conversation_id_from_run_id,
    record_durable_unit,
    replay_scope,
)
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import to_json
from typing_extensions import Self

from .._adapter.chain import digest
from .._adapter.door import Doors, answer_of
from .._adapter.lease import Holder
from .._adapter.log import Log
from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from ..errors import ConfigError, NotYet
from ..tools import tool
from ._record import Recorded
from ._run import KIND, SCOPE, DurableRun, MaybeMade, Record, Scope

#: Says in the metadata of a tool how its calls are units: `{"waybill": {"effect": "once"}}`, or False for none.
CONFIG = "waybill"
Config = Mapping[str, Any]


def config_of(_: DurableOperationId, tool: object | None, name: str) -> Config | Literal[False]:
    said: Any = (cast("ToolsetTool[Any]", tool).tool_def.metadata or {}).get(CONFIG, {}) if tool else {}
    if said is not False and (not isinstance(said, dict) or cast("Config", said).get("effect") not in (None, "pure", "idempotent", "once")):
        raise ConfigError(f'tool {name}: its metadata says {CONFIG}={said!r}. Write {{"effect": "once"}}, "idempotent" or "pure", or False')
    return cast("Config | Literal[False]", said)


class Backend(JournalCallableOperationBackend[Config]):
    async def execute(
        self, *, operation_id: DurableOperationId, name: str, body: Callable[[], Awaitable[object]], cache_key: tuple[object, ...], config: Config
    ) -> object:
        scope = current()
        context = next((cast("RunContext[Any]", one) for one in cache_key if isinstance(one, RunContext)), None)
        place: list[Any] = [name]
        if context is not None:
            place = [context.run_id, context.run_step, name, context.tool_call_id, context.retry]
        asked: str | None = None
        if isinstance(operation_id, ModelRequestId):
            prompts, calls = told(next(cast("list[ModelMessage]", one) for one in cache_key if isinstance(one, list)))
            asked = digest(prompts).hex()
            place.append(digest(calls).hex()[:12])
        once = config.get("effect") == "once"
        try:
            result, is_new = await scope.run.unit(scope, "/".join(str(one) for one in place if one not in (None, "")), body, asked=asked, once=once)
        except MaybeMade as error:
            record_durable_unit(executed=False)
            # Each time it is started again, the model is told the same.
            raise ToolFailed("This call was begun before, and failed or was cut off: it may have been made, or not. It is not made again.") from error
        record_durable_unit(executed=is_new)
        return result


@tool(name="approve_call", effect="pure", approval="always", after="suspend")
def approve_call(tool: str, arguments: dict[str, Any]) -> str:
    """Lets an agent call a tool that a person must approve."""
    return "approved"


class WaybillDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes runs of agents durable. One may be shared by several agents of a process; the key must be of scope `admin`.

    `record` names a provider that the server records: then models are asked through the recorder, so each call is on record byte for byte;
    `recorder_key` is a key of scope `recorder`, by default that of the client. `models`, `event_stream_handler` and `name` are those of every engine
    of Pydantic AI: more models by their ids, a handler of events, and a name for the agent's units that never changes.

    With `approvals`, people decide in Waybill about calls that need an approval. If that takes longer than `wait_seconds`, the agent's run ends with
    `DeferredToolRequests`; start it again to go on. `profile` begins the names of the profiles and queues: each application has its own.

    What callers other than keys of scope `admin` have written is refused with UntrustedWriter. `trusted` names more callers, such as `user:ada`;
    `ignored_turns` names turns that are not read.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Waybill",
        durable_unit_noun="unit",
        durable_container_noun="run",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=CONFIG,
    )

    def __init__(
        self,
        client: Waybill | AsyncWaybill | None = None,
        *,
        record: str | None = None,
        recorder_key: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
        approvals: bool = False,
        wait_seconds: float = 20,
        profile: str = "pydantic-ai",
        lease_seconds: float = 30,
        trusted: Collection[str] = (),
        ignored_turns: Collection[str] = (),
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self.record, self.recorder_key, self.lease_seconds = record, recorder_key or self.client.config.key, lease_seconds
        self.approvals, self.wait_seconds, self.profile = approvals, wait_seconds, profile
        self.trusted, self.ignored_turns = tuple(trusted), tuple(ignored_turns)
        self._approvals = Doors(self.client, profile, "Pydantic AI", [copy.copy(approve_call)])
        # In a list, so that the copies that agents make of a capability have the same.
        self._home = [self._hold()]

    def _hold(self) -> Holder[Record]:
        log = Log(self.client, KIND, Record, trusted=self.trusted, ignored_turns=self.ignored_turns)
        return Holder(log, self.profile, lease_seconds=self.lease_seconds, idle_seconds=float("inf"))

    @property
    def _holder(self) -> Holder[Record]:
        # A forked child has a lease and runs of its own.
        if self._home[0].pid != os.getpid():
            self._home[0] = self._hold()
        return self._home[0]

    def run(self, key: str) -> DurableRun:
        """Returns a durable run, for `with` or `async with`: what agents do in it is on record under the key."""
        if not (0 < len(key) <= 200 and key.isascii() and key.isprintable()):
            raise ConfigError(f"{key!r} is no key of a run: a key has 1 to 200 visible ASCII characters")
        return DurableRun(self._holder, key)

    def close(self) -> None:
        """Lets go of all runs, ends the lease of this process, and stops waiting for approvals."""
        self._approvals.close()
        self._holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # What Pydantic AI calls.

    @property
    def in_durable_context(self) -> bool:
        return SCOPE.get() is not None

    def get_durable_operation_backend(self) -> Backend:
        none: Config = {}
        config = RoleBasedOperationConfig[Config](model=none, event=none, capability=none, tool=none, resolve_tool=config_of)
        return Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def get_default_run_id(self) -> str | None:
        scope = SCOPE.get()
        return None if scope is None else f"{scope.run.key}:{scope.next('run')}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        if not self.in_durable_context:
            return None

        async def now() -> str:
            return datetime.now(timezone.utc).isoformat()

        scope = current()
        return datetime.fromisoformat((await scope.run.unit(scope, f"{run_id}/started", now))[0])

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        if not self.in_durable_context:
            return await super().wrap_run(ctx, handler=handler)
        with replay_scope():
            return await super().wrap_run(ctx, handler=handler)

    def get_wrapper_model(self, model: Model) -> Model | None:
        if self.record is None:
            return None
        scope = SCOPE.get()
        headers = {"x-waybill-session": scope.run.key if scope else None, "x-waybill-agent": self.name, "x-waybill-key": self.recorder_key}
        url = f"{self.client.config.url}/record/{self.client.config.project}/{self.record}"
        return Recorded(model, url, {name: value for name, value in headers.items() if value})

    async def handle_deferred_tool_calls(self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests) -> DeferredToolResults | None:
        if not self.approvals or not self.in_durable_context or not requests.approvals:
            return None
        key, until = current().run.key, time.monotonic() + self.wait_seconds

        def decide() -> dict[str, ToolApproved | ToolDenied]:
            asked = {
                one.tool_call_id: self._approvals.call(
                    approve_call.name,
                    {"tool": one.tool_name, "arguments": one.args_as_dict()},
                    # The call keeps its id when the program is started again.
                    key=f"pydantic-ai:{hashlib.sha256(json.dumps([key, ctx.run_id, one.tool_call_id]).encode()).hexdigest()}",
                    labels={"session": key},
                )
                for one in requests.approvals
            }
            decided = dict[str, ToolApproved | ToolDenied]()
            for call_id, turn in asked.items():
                with suppress(NotYet):
                    is_approved, text = answer_of(turn.wait(max(0.1, until - time.monotonic())))
                    decided[call_id] = ToolApproved() if is_approved else ToolDenied(text)
            return decided

        return requests.build_results(approvals=await asyncio.to_thread(decide))


def current() -> Scope:
    scope = SCOPE.get()
    assert scope is not None
    return scope


def told(messages: list[ModelMessage]) -> tuple[str, str]:
    """Returns what users say in messages, and the ids of the calls that are answered in them."""
    parts = [part for message in messages if message.kind == "request" for part in message.parts]
    prompts = [part.content for part in parts if part.part_kind == "user-prompt"]
    calls = [getattr(part, "tool_call_id", None) for part in parts]
    return to_json(prompts).decode(), to_json(calls).decode()
