"""Tools: functions that agents may call. Name, description and JSON Schemas come from the function."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import enum
import inspect
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from .errors import ConfigError
from .schema import Signature

P = ParamSpec("P")
R = TypeVar("R")

#: The queue of tools that are answered by processes of this package, unless they name another.
TARGET = "python-tools"
#: Characters that the model is told of a failure.
MOST_EXPLAINED = 20_000


class Approval(str, enum.Enum):
    """When a person must agree before a tool is called."""

    NEVER = "never"
    #: If the turn has seen content from outside.
    EXTERNAL = "external"
    ALWAYS = "always"


class Effect(str, enum.Enum):
    """What calling a tool twice does."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    #: A call that may have been made is never made again.
    ONCE = "once"


@dataclass(frozen=True)
class Call:
    """The call that a tool answers. A tool that has a parameter named `call` gets it."""

    #: The same for each attempt, also in another process: do the work once for each key.
    idempotency_key: str
    tool_call_id: str
    agent_turn_id: str
    agent_id: str
    deadline_at: datetime.datetime
    #: The user for whom the turn was started, if the caller named one.
    on_behalf_of: str | None = None
    #: How often the call was taken from a worker that was lost.
    n_lost_leases: int = 0
    _is_lost: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the call by now, or its time is over. Long work should look at it now and then, and stop."""
        return self._is_lost()


class Tool(Generic[P, R]):
    """A function that agents may call. Calling it here calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None,
        description: str | None,
        effect: str,
        approval: str,
        four_eyes: bool,
        timeout: float,
        target: str,
        trusted: bool,
        after: str,
    ) -> None:
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.takes_call = "call" in inspect.signature(function).parameters
        self.signature = Signature(function, {"call"})
        self.name = name or function.__name__
        self.description = description or self.signature.summary
        if not self.description:
            raise ConfigError(f"tool {self.name}: write a docstring, which says to the model what the tool does")
        self.effect, self.approval, self.after = str(Effect(effect).value), str(Approval(approval).value), after
        self.four_eyes, self.timeout, self.target, self.trusted = four_eyes, timeout, target, trusted
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def manifest(self) -> dict[str, Any]:
        """Returns the manifest of the tool, as `waybill apply` reads it."""
        said: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.signature.parameters,
            "target": self.target,
            "effect": self.effect,
            "timeout_seconds": max(1, round(self.timeout)),
        }
        if (result := self.signature.result()) is not None:
            said["result"] = result
        more = {"approval": (self.approval, "never"), "four_eyes": (self.four_eyes, False), "trusted": (self.trusted, False)}
        said |= {name: value for name, (value, usual) in more.items() if value != usual}
        if self.after != "suspend":
            said["after_execution"] = self.after
        return said

    async def answer(self, arguments: str, call: Call) -> Any:
        """Calls the function with arguments as the model wrote them, and returns the result as JSON."""
        said = self.signature.read(arguments)
        if self.takes_call:
            said["call"] = call
        function: Callable[..., Any] = self.function
        result = await function(**said) if self.is_async else await in_thread(function, said)
        if inspect.isawaitable(result):  # of a decorator that hides the `async def` behind it
            result = await result
        return self._as_json(result)

    def _as_json(self, result: Any) -> Any:
        from pydantic import TypeAdapter
        from pydantic_core import to_jsonable_python

        if self.signature.returned in (Any, None, type(None)):
            return to_jsonable_python(result)
        return TypeAdapter(self.signature.returned).dump_python(result, mode="json")

    def __repr__(self) -> str:
        arguments = ", ".join(self.signature.parameters.get("properties", {}))
        return f"<Tool {self.name}({arguments}): {self.effect}, target {self.target}>"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | Literal["pure", "idempotent", "once"] = "once",
    approval: Approval | Literal["never", "external", "always"] = "never",
    four_eyes: bool = False,
    timeout: float = 60,
    target: str = TARGET,
    trusted: bool = False,
    after: Literal["suspend", "terminate"] = "suspend",
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str = "once",
    approval: str = "never",
    four_eyes: bool = False,
    timeout: float = 60,
    target: str = TARGET,
    trusted: bool = False,
    after: str = "suspend",
) -> Any:
    """Makes a tool of a function: `@tool` or `@tool(effect="pure", timeout=10)`.

    The name, the description and the schemas come from the function, its docstring and its type hints. `effect` says what calling it twice does,
    `approval` when a person must agree first, `timeout` how many seconds a call may take, `target` which queue its calls go to, `after` whether the
    turn ends with its result. `trusted` results do not count as content from outside.
    """

    def make(function: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(
            function,
            name=name,
            description=description,
            effect=effect,
            approval=approval,
            four_eyes=four_eyes,
            timeout=timeout,
            target=target,
            trusted=trusted,
            after=after,
        )

    return make if function is None else make(function)


async def in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Calls a plain function in a thread of its own. A process that ends does not wait for one that hangs."""
    loop, here = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, failed = None, None
        try:
            result = here.run(function, **arguments)
        except BaseException as error:
            # A future cannot carry a StopIteration, and others would end the worker.
            failed = error if isinstance(error, Exception) and not isinstance(error, StopIteration) else RuntimeError(repr(error))
        if not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name=f"waybill tool {getattr(function, '__name__', '')}", daemon=True).start()
    return await future


def explain(error: Exception) -> str:
    """Returns what the model is told about a failure."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()]
        return "the arguments do not fit: " + "; ".join(wrong)
    if isinstance(error, json.JSONDecodeError):
        return f"the arguments are not JSON: {error}"
    try:
        said = str(error) or type(error).__name__
    except Exception:
        said = type(error).__name__
    return said[:MOST_EXPLAINED].encode(errors="backslashreplace").decode()
