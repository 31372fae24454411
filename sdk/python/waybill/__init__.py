"""Waybill, a context kernel for multi-agent LLM systems: the client, tools, workers, and the program that comes with this package.

    from waybill import Waybill, Profile, Worker, tool

Names are read when they are first used, so that running the program needs none of what the client needs.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Approval",
    "AsyncTurn",
    "AsyncWaybill",
    "Call",
    "Effect",
    "Profile",
    "Tool",
    "ToolError",
    "Turn",
    "TurnFailed",
    "Waybill",
    "WaybillError",
    "Worker",
    "__version__",
    "errors",
    "find_binary",
    "models",
    "tool",
]

if TYPE_CHECKING:
    from . import errors, models
    from ._async.client import AsyncWaybill
    from ._async.turn import AsyncTurn
    from ._sync.client import Waybill
    from ._sync.turn import Turn
    from .errors import ToolError, TurnFailed, WaybillError
    from .profile import Profile
    from .tools import Approval, Call, Effect, Tool, tool
    from .worker import Worker

_PLACES = {
    "AsyncWaybill": "_async.client",
    "AsyncTurn": "_async.turn",
    "Waybill": "_sync.client",
    "Turn": "_sync.turn",
    "ToolError": "errors",
    "TurnFailed": "errors",
    "WaybillError": "errors",
    "Profile": "profile",
    "Approval": "tools",
    "Call": "tools",
    "Effect": "tools",
    "Tool": "tools",
    "tool": "tools",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "models"):
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module `waybill` has no {name}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def find_binary() -> Path:
    """Returns the path of the program `waybill`: the one that WAYBILL_BINARY names, or else that of this package. Raises FileNotFoundError if there
    is none for this platform."""
    if named := os.environ.get("WAYBILL_BINARY"):
        return Path(named).absolute()
    path = Path(__file__).parent / "bin" / "waybill"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: this package has no program for this platform")
    return path


def main() -> None:
    """Replaces this process with the program, so that signals and the exit code are its own."""
    try:
        path = os.fspath(find_binary())
    except FileNotFoundError as error:
        sys.exit(f"waybill: {error}: install a wheel of waybill-ai, or set WAYBILL_BINARY to a program that you have built")
    os.execv(path, [path, *sys.argv[1:]])
