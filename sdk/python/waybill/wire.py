"""What goes over the wire: bodies, answers, ids, pauses between attempts."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

from .errors import NOT_DONE, ApiError, ConfigError, OlderServer, from_problem

if TYPE_CHECKING:
    import httpx2
    from pydantic import BaseModel


FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


def uuid7() -> str:
    """Returns a time-ordered id: 48 bits of milliseconds, the version, 12 random bits, the variant, 62 random bits."""
    rest = int.from_bytes(os.urandom(10), "big")
    bits = (time.time_ns() // 1_000_000) << 80 | 7 << 76 | (rest >> 68) << 64 | 2 << 62 | (rest & ((1 << 62) - 1))
    return str(uuid.UUID(int=bits & ((1 << 128) - 1)))


@dataclass(frozen=True)
class Operation:
    """An operation of the API, as its document describes it."""

    name: str
    method: str
    path: str
    #: Whether the same request may be sent again without doing something twice.
    repeatable: bool
    #: Whether it takes an `Idempotency-Key`.
    keyed: bool
    #: Name of the model of the answer; with `[]` behind it for a list, `text` or `bytes` for other content.
    answer: str

    def url(self, root: str, base: str, parts: Mapping[str, Any]) -> str:
        from urllib.parse import quote

        path = self.path.replace("/v1/projects/{project}", base, 1) if self.path.startswith("/v1/projects/{project}") else root + self.path
        for name, value in parts.items():
            if str(value) in ("", ".", ".."):
                raise ConfigError(f"{self.name}: {value!r} is no {name}: in an address it names something else")
            path = path.replace("{" + name + "}", quote(str(value), safe=""))
        return path


def query(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns query parameters as they are sent. What is None is left out."""
    found: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            found[name] = ",".join(str(one) for one in cast("list[Any]", value))
        elif isinstance(value, datetime.datetime):
            found[name] = value.isoformat()
        elif value is not None:
            found[name] = str(value)
    return found


def body_bytes(body: BaseModel | Mapping[str, Any] | str | bytes) -> bytes:
    """Returns a body as it is sent. It is made once, so that each attempt sends the same bytes."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python

    if isinstance(body, BaseModel):
        return body.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return json.dumps(to_jsonable_python(body, by_alias=True), ensure_ascii=False).encode()


def trace_headers() -> dict[str, str]:
    """Returns the headers of the trace that the program is in, if it uses OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate  # pyright: ignore

    carrier: dict[str, str] = {}
    propagate.inject(carrier)  # pyright: ignore
    return {name: value for name, value in carrier.items() if name == "traceparent"}


def error_of(response: httpx2.Response, operation: str) -> ApiError:
    try:
        problem = json.loads(response.content)
    except ValueError:
        problem = response.text
    error = from_problem(response.status_code, problem, operation)
    if error.retry_after is None and response.headers.get("retry-after", "").isdecimal():
        error.retry_after = float(response.headers["retry-after"])
    return error


def check_key(key: str) -> str:
    """Checks an idempotency key before it is sent."""
    if not re.fullmatch(r"[!-~]{1,200}", key):
        raise ConfigError(f"`key` must have 1 to 200 visible ASCII characters, without spaces: {key[:220]!r}")
    return key


def clock_ahead(date: str | None) -> float:
    """Returns by how many seconds the clock of the server is ahead of the one here. A few seconds are as good as none."""
    try:
        ahead = parsedate_to_datetime(date or "").timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return ahead if abs(ahead) > 5 else 0.0


def may_help(error: ApiError, repeatable: bool) -> bool:
    """Says whether the same request may succeed if it is sent again."""
    if error.code in NOT_DONE:
        return True
    # Quotas name the time when they have room again, which may be next month.
    return repeatable and error.code not in ("quota",) and (error.status >= 500 or error.status == 429)


class Pauses:
    """The pauses between attempts: each longer than the one before, not less than the server asks for, and not the same for all clients."""

    def __init__(self, patience: float) -> None:
        self.until = time.monotonic() + patience
        self.next = FIRST_PAUSE

    def pause(self, retry_after: float | None = None) -> float | None:
        """Returns the seconds to wait before the next attempt, or None if there is no time left for it."""
        seconds = self.next * random.uniform(0.5, 1)
        if retry_after:
            seconds = retry_after * random.uniform(1, 1.25)
        self.next = min(self.next * 2, LONGEST_PAUSE)
        return seconds if time.monotonic() + seconds < self.until else None


def read_json(content: str | bytes, operation: str) -> Any:
    """Reads JSON from the server. What is none came from something in between."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        text = content if isinstance(content, str) else content.decode(errors="replace")
        raise from_problem(200, text, operation) from None


def read_answer(kind: str, content: bytes, operation: str) -> Any:
    """Reads an answer with its model."""
    if kind == "bytes":
        return content
    if kind == "text":
        return content.decode(errors="replace")
    said = read_json(content, operation)
    if kind == "any":
        return said
    from . import models

    model: type[BaseModel] = getattr(models, kind.removesuffix("[]"))
    if not kind.endswith("[]"):
        return _read(model, said, operation)
    if not isinstance(said, list):
        raise from_problem(200, said, operation)
    return [_read(model, one, operation) for one in cast("list[Any]", said)]


def _read(model: type[BaseModel], said: Any, operation: str) -> BaseModel:
    from pydantic import ValidationError

    try:
        return model.model_validate(said)
    except ValidationError as error:
        if any(one["type"] != "missing" for one in error.errors()):
            raise OlderServer(200, "unreadable", f"the answer is not a {model.__name__}: {error}", operation=operation) from error
        return construct(model, said)


def is_model(kind: Any) -> bool:
    from pydantic import BaseModel

    return isinstance(kind, type) and issubclass(kind, BaseModel)


def construct(model: Any, said: Any) -> Any:
    """Reads what an older server sends: without the fields that it does not know. Reading one of these is an AttributeError."""
    origin, parameters = get_origin(model), get_args(model)
    if isinstance(said, list) and origin is list:
        return [construct(parameters[0], one) for one in cast("list[Any]", said)]
    if origin is not None:
        # Of what may be None, the rest.
        kinds = [kind for kind in parameters if is_model(kind) and isinstance(said, dict) or get_origin(kind) is list and isinstance(said, list)]
        return construct(kinds[0], said) if len(kinds) == 1 else cast(Any, said)
    if not is_model(model) or not isinstance(said, dict):
        return cast(Any, said)
    known = {field.alias or name: (name, field) for name, field in model.model_fields.items()}
    values: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", said).items():
        name, field = known.get(key, (key, None))
        values[name] = construct(field.annotation, value) if field else value
    made = model.model_construct(_fields_set=set(values), **values)
    for name, field in model.model_fields.items():
        if name not in values and field.is_required():
            made.__dict__.pop(name, None)
    return made


@dataclass(frozen=True)
class Received:
    """A server-sent event."""

    kind: str
    data: str
    id: int | None


class EventReader:
    """Reads server-sent events line by line, and remembers after which one an interrupted stream goes on."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        #: Whether the network ended the stream, and not the server, or silence.
        self.is_cut = False
        self._kind = ""
        self._data: list[str] = []
        self._id: int | None = None

    def take(self, line: str) -> Iterator[Received]:
        if not line:
            if self._id is not None:
                self.after = self._id
            if self._data:
                yield Received(self._kind or "message", "\n".join(self._data), self._id)
            self._kind, self._data, self._id = "", [], None
            return
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and value.isdecimal():
            self._id = int(value)

    def cut(self) -> None:
        """Forgets an event of which only a part arrived."""
        self._kind, self._data, self._id = "", [], None


def knows(document: Any, operation: Operation) -> bool:
    """Says whether a server's document has an operation, whatever it calls its parameters."""

    def plain(path: str) -> str:
        return re.sub(r"\{[^}]*\}", "{}", path)

    for path, item in document.get("paths", {}).items():
        if plain(path) == plain(operation.path) and operation.method.lower() in item:
            return True
    return False
