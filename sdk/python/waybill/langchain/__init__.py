"""Waybill for LangChain and LangGraph: `pip install waybill-ai[langchain]`."""

from __future__ import annotations

from ._thread import ThreadTaken
from .saver import WaybillSaver

__all__ = ["ThreadTaken", "WaybillSaver"]
