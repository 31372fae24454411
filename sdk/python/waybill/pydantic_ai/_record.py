"""Models that ask their provider through the recorder."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from ..errors import ConfigError


class Recorded(WrapperModel):
    """A model whose requests go through the recorder."""

    def __init__(self, wrapped: Model, url: str, headers: dict[str, str]) -> None:
        super().__init__(wrapped)
        self.url, self.headers = url, headers

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        return await through(self.wrapped, self.url, self.headers).request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        model = through(self.wrapped, self.url, self.headers)
        async with model.request_stream(messages, model_settings, model_request_parameters, run_context) as stream:
            yield stream


def through(model: Model, url: str, headers: dict[str, str]) -> Model:
    """Returns a copy of a model that asks its provider through the recorder."""
    made: Any = copy.copy(model)
    if isinstance(model, FallbackModel):
        made.models = [through(one, url, headers) for one in model.models]
        return made
    if isinstance(model, WrapperModel):
        made.wrapped = through(model.wrapped, url, headers)
        return made
    client = getattr(model, "client", None)
    base = {"AsyncOpenAI": f"{url}/v1", "AsyncAnthropic": url}.get(type(client).__name__)
    if client is None or base is None:
        raise ConfigError(f"{type(model).__name__} cannot be pointed at the recorder: set its address yourself, and leave out `record`")
    made._provider = copy.copy(made._provider)
    made._provider._client = client.with_options(base_url=base, default_headers=headers)
    return made
