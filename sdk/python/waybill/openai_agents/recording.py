"""Model calls through Waybill's recorder, with the names of the agents that make them.

config = RunConfig(model_provider=WaybillModelProvider("openai"), group_id="order-1")
result = await Runner.run(agent, "Buy flour.", run_config=config)
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

import httpx2
from agents import (
    AgentSpanData,
    HandoffSpanData,
    Model,
    ModelProvider,
    OpenAIProvider,
    Span,
    Trace,
    TracingProcessor,
    add_trace_processor,
    get_current_span,
    get_current_trace,
)
from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

from .._async.client import AsyncWaybill
from .._sync.client import Waybill

#: Spans that are open, by their ids; and by trace, parent span and agent, which agent handed over to it.
OPEN: dict[str, Span[Any]] = {}
HANDED: dict[str, dict[tuple[str | None, str], str]] = {}
_IS_ADDED: list[bool] = []


class WaybillTracing(TracingProcessor):
    """Keeps the spans that are open, so that a model call can say which agent makes it, and which agent asked that one.

    `WaybillModelProvider` adds one. If nothing is to go to OpenAI's own traces, set no other: `set_trace_processors([WaybillTracing()])`."""

    def on_trace_start(self, trace: Trace) -> None:
        HANDED.setdefault(trace.trace_id, {})

    def on_trace_end(self, trace: Trace) -> None:
        HANDED.pop(trace.trace_id, None)
        for span_id in [span_id for span_id, span in OPEN.copy().items() if span.trace_id == trace.trace_id]:
            OPEN.pop(span_id, None)

    def on_span_start(self, span: Span[Any]) -> None:
        OPEN[span.span_id] = span

    def on_span_end(self, span: Span[Any]) -> None:
        OPEN.pop(span.span_id, None)
        said = span.span_data
        if isinstance(said, HandoffSpanData) and said.to_agent and (above := agents_above(span)):
            HANDED.get(span.trace_id, {})[above[0].parent_id, said.to_agent] = above[0].span_data.name

    def shutdown(self) -> None:
        OPEN.clear()

    def force_flush(self) -> None:
        pass


def agents_above(span: Span[Any] | None) -> list[Span[AgentSpanData]]:
    """Returns the agents that a span is part of, the nearest first."""
    found: list[Span[AgentSpanData]] = []
    while span is not None:
        if isinstance(span.span_data, AgentSpanData):
            found.append(span)
        span = OPEN.get(span.parent_id or "")
    return found


def links(session: str | None = None) -> dict[str, str]:
    """Returns headers for the recorder: the conversation, the agent whose model is asked, and the agent that asked or handed over to it."""
    trace, found = get_current_trace(), agents_above(get_current_span())
    said: dict[str, str | None] = {"x-waybill-session": session or getattr(trace, "group_id", None)}
    if found:
        agent = found[0]
        parent = HANDED.get(agent.trace_id, {}).get((agent.parent_id, agent.span_data.name))
        if parent is None and len(found) > 1:
            parent = found[1].span_data.name
        said |= {"x-waybill-agent": agent.span_data.name, "x-waybill-parent": parent}
        ids = agent.trace_id.removeprefix("trace_"), agent.span_id.removeprefix("span_")[:16]
        said["traceparent"] = f"00-{ids[0]}-{ids[1]}-01"
    # A header is ASCII.
    return {name: "".join(one if " " <= one <= "~" else quote(one, errors="replace") for one in value)[:200] for name, value in said.items() if value}


class WaybillModelProvider(ModelProvider):
    """Asks models through the recorder of a Waybill server. `record` names a provider that the server records, `session` the conversation (if
    omitted, the `group_id` of the run), and `key` is a key of scope `recorder` (if omitted, the client's). `options` are those of `AsyncOpenAI`."""

    def __init__(
        self,
        record: str,
        client: Waybill | AsyncWaybill | None = None,
        *,
        session: str | None = None,
        key: str | None = None,
        use_responses: bool | None = None,
        **options: Any,
    ) -> None:
        config = (Waybill() if client is None else client).config
        self.session, self._use_responses = session, use_responses
        key = key or config.key
        self._options: dict[str, Any] = {"base_url": f"{config.url}/record/{config.project}/{record}/v1", **options}
        self._options["default_headers"] = ({"x-waybill-key": key} if key else {}) | dict(options.get("default_headers") or {})
        # Connections belong to one event loop.
        self._providers: WeakKeyDictionary[asyncio.AbstractEventLoop, OpenAIProvider] = WeakKeyDictionary()
        if not _IS_ADDED:
            _IS_ADDED.append(True)
            add_trace_processor(WaybillTracing())

    def get_model(self, model_name: str | None) -> Model:
        loop = asyncio.get_running_loop()
        if loop not in self._providers:
            http = DefaultAsyncHttpx2Client(event_hooks={"request": [self._link]})
            self._providers[loop] = OpenAIProvider(openai_client=AsyncOpenAI(http_client=http, **self._options), use_responses=self._use_responses)
        return self._providers[loop].get_model(model_name)

    async def _link(self, request: httpx2.Request) -> None:
        for name, value in links(self.session).items():
            request.headers.setdefault(name, value)

    async def aclose(self) -> None:
        if found := self._providers.get(asyncio.get_running_loop()):
            await found.aclose()
