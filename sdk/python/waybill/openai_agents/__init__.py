"""Waybill for the OpenAI Agents SDK: `pip install waybill-ai[openai-agents]`."""

from .door import StillWaiting, WaybillDoor
from .recording import WaybillModelProvider, WaybillTracing
from .session import SessionTaken, WaybillSession

__all__ = ["SessionTaken", "StillWaiting", "WaybillDoor", "WaybillModelProvider", "WaybillSession", "WaybillTracing"]
