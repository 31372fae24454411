"""Profiles: what an agent is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ConfigError
from .tools import Tool


@dataclass(frozen=True)
class Profile:
    """An agent: its prompt, its model, what it may call, and what a turn of it may spend.

        Profile("reporter", model="openai_chat/gpt-5.2", prompt="You report the weather.", tools=[weather], limits={"steps": 12})

    `model` is `PROVIDER/MODEL`. `tools` are tools of this program, or names of tools that the project has. Fields that are not named here go into
    `more`, with their names in the manifest.
    """

    name: str
    model: str
    prompt: str
    tools: Sequence[Tool[..., Any] | str] = ()
    limits: Mapping[str, int] | None = None
    description: str = ""
    #: The workers that run it: `llm` for those of `waybill dev` and `waybill worker`.
    target: str = "llm"
    #: Parameters of the provider's API, such as `temperature`.
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: Name of the secret with the provider's key. If omitted, the operator's for this provider.
    api_key: str | None = None
    #: Models that are called in this order, if the ones before them cannot answer.
    fallbacks: Sequence[str] = ()
    #: Names of profiles that it may delegate to.
    delegates_to: Sequence[str] = ()
    #: Tools of Waybill itself that it may call, such as `ask_expert`.
    internal_tools: Sequence[str] = ()
    must_end_with: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest of the profile, as `waybill apply` reads it."""
        said: dict[str, Any] = {
            "name": self.name,
            "worker_target": self.target,
            "system_prompt_template": self.prompt,
            "llm_config": self._model(self.model) | ({"fallbacks": [self._model(one) for one in self.fallbacks]} if self.fallbacks else {}),
            "allowed_tools": sorted({one if isinstance(one, str) else one.name for one in self.tools}),
        }
        if self.description:
            said["description"] = self.description
        if self.limits:
            said["limits"] = dict(self.limits)
        if self.delegates_to:
            said["delegation_policy"] = {"target_profiles": list(self.delegates_to)}
        if self.internal_tools:
            said["allowed_internal_tools"] = list(self.internal_tools)
        if self.must_end_with:
            said["must_end_with"] = list(self.must_end_with)
        return said | dict(self.more)

    def _model(self, name: str) -> dict[str, Any]:
        provider, slash, model = name.partition("/")
        if not slash or not model:
            raise ConfigError(f"profile {self.name}: `model` is PROVIDER/MODEL, such as openai_chat/gpt-5-mini: {name!r}")
        said: dict[str, Any] = {"provider": provider, "model": model}
        if self.api_key:
            said["api_key"] = {"secret": self.api_key}
        if self.params:
            said["params"] = dict(self.params)
        return said

    def scripted(self, script: Sequence[Mapping[str, Any]]) -> Profile:
        """Returns the same profile with a model that follows a script: no provider and no key is needed. Each line is
        `{"say": …}`, `{"call": {TOOL: ARGUMENTS}}` or both; `{{query}}` and `{{result}}` stand for the last question and the last result."""
        return replace(self, model="demo/demo", params={"script": [dict(line) for line in script]}, api_key=None, fallbacks=())

    def own_tools(self) -> list[Tool[..., Any]]:
        return [one for one in self.tools if isinstance(one, Tool)]
