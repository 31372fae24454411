"""Waybill for LangChain and LangGraph: `pip install waybill-ai[langchain]`. Names are read when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .._adapter.writers import UntrustedWriter
from ._thread import ThreadTaken
from .saver import WaybillSaver

if TYPE_CHECKING:
    from .middleware import WaybillMiddleware, door
    from .store import WaybillStore

__all__ = ["ThreadTaken", "UntrustedWriter", "WaybillMiddleware", "WaybillSaver", "WaybillStore", "door"]

_PLACES = {"WaybillMiddleware": "middleware", "door": "middleware", "WaybillStore": "store"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module `waybill.langchain` has no {name}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
