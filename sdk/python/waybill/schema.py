"""JSON Schemas from Python types, and values of these types from JSON."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, get_type_hints

from .errors import ConfigError


def read_value(kind: Any, value: Any) -> Any:
    """Reads JSON as a type. Without a type, JSON stays as it is."""
    if kind is None:
        return value
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python(value)


def schema_of(kind: Any) -> dict[str, Any]:
    """Returns the JSON Schema of a type, without titles: they cost tokens and say nothing."""
    from pydantic import TypeAdapter

    return plain(TypeAdapter(kind).json_schema())


def result_schema(kind: Any) -> dict[str, Any]:
    """Returns the JSON Schema that a turn's result must fit: an object."""
    if isinstance(kind, dict):
        return typing.cast("dict[str, Any]", kind)
    schema = schema_of(kind)
    if schema.get("type") != "object":
        raise ConfigError(f"`result` must be a type of objects, such as a pydantic model, a dataclass or a TypedDict: {kind!r} is not")
    return schema


def plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [plain(one) for one in typing.cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    said = typing.cast("dict[str, Any]", schema)
    found: dict[str, Any] = {}
    for name, value in said.items():
        if name == "title" and isinstance(value, str):
            continue
        # The names of properties may be anything, also `title`.
        found[name] = {key: plain(one) for key, one in value.items()} if name in ("properties", "$defs") else plain(value)
    return found


class Signature:
    """What a function takes and returns, read from its hints and its docstring."""

    def __init__(self, function: Callable[..., Any], left_out: set[str]) -> None:
        from pydantic import Field, create_model

        self.summary, described = read_docstring(inspect.getdoc(function) or "")
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as error:
            raise ConfigError(f"{function.__qualname__}: a type hint names what is not there: {error}") from error
        fields: dict[str, Any] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if name in left_out:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(f"{function.__qualname__}: `{parameter}` cannot be an argument of a tool: give each argument a name")
            if name not in hints:
                raise ConfigError(f"{function.__qualname__}: `{name}` needs a type hint, from which its JSON Schema is made")
            default = ... if parameter.default is parameter.empty else parameter.default
            # The field has another name: as a parameter, `json` or `_x` is good, but not as a field of a model.
            fields[f"argument_{name}"] = (hints[name], Field(default, alias=name, description=described.get(name)))
        self.model = create_model(f"{function.__name__}_arguments", **fields)
        self.parameters: dict[str, Any] = {"properties": {}} | plain(self.model.model_json_schema())
        self.returned = hints.get("return", Any)

    def read(self, arguments: str) -> dict[str, Any]:
        """Reads arguments as the model wrote them."""
        said = self.model.model_validate_json(arguments or "{}")
        return {name.removeprefix("argument_"): getattr(said, name) for name in type(said).model_fields}

    def result(self) -> dict[str, Any] | None:
        """Returns the JSON Schema of what it returns, or None if it says nothing of it."""
        if self.returned in (Any, None, type(None)):
            return None
        return schema_of(self.returned)


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Returns the description and what is said about each argument, as Google, NumPy or Sphinx write it."""
    described: dict[str, str] = {}
    lines: list[str] = []
    section, name, indent = "", "", 0
    for line in text.splitlines():
        stripped = line.strip()
        if found := re.match(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)", stripped):
            section, name = "sphinx", found[1]
            described[name] = found[2]
        elif re.match(r":(returns?|raises|rtype|type)\b", stripped):
            section = "other"
        elif re.match(r"(Args|Arguments|Parameters|Params):?$", stripped):
            section, name = "arguments", ""
        elif re.match(r"(Returns?|Raises|Yields|Examples?|Notes?):?$", stripped):
            section = "other"
        elif not section:
            lines.append(line)
        elif section in ("arguments", "sphinx") and stripped and not set(stripped) <= {"-"}:
            here = len(line) - len(line.lstrip())
            found = re.match(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)", stripped)
            if section == "arguments" and found and (not name or here <= indent):
                name, indent = found[1], here
                is_numpy = re.match(r"\w+ : ", stripped)
                described[name] = "" if is_numpy else found[2]
            elif name:
                described[name] = f"{described[name]} {stripped}".strip()
    return "\n".join(lines).strip(), described
