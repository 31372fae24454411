"""Waybill for Pydantic AI: `pip install waybill-ai[pydantic-ai]`. Runs of agents that survive the death of their process."""

from .._adapter.writers import UntrustedWriter
from ._run import DurableRun, RunChanged, RunTaken
from .durability import WaybillDurability

__all__ = ["DurableRun", "RunChanged", "RunTaken", "UntrustedWriter", "WaybillDurability"]
