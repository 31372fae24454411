"""How values of a graph become the text of cards, and come back.

What JSON can say is JSON, so that people can read it; everything else goes through the serializer of the saver. A message is a card of its own,
without its id: LangGraph gives some messages their id only after they were first written, and the same message is to be stored once.
"""

from __future__ import annotations

import base64
import json
import math
import uuid
import zlib
from collections.abc import Iterable
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from .._adapter.chain import dumps

MESSAGES: dict[str, type[BaseMessage]] = {
    one.__name__: one for one in (AIMessage, AIMessageChunk, ChatMessage, FunctionMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage)
}
#: Bytes from which it is worth trying to compress.
WORTH = 256


def is_json(value: Any) -> bool:
    """Says whether JSON gives exactly this value back."""
    kind = cast("type[Any]", type(value))
    if value is None or kind in (str, bool, int):
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(map(is_json, value))
    return kind is dict and all(type(key) is str and is_json(one) for key, one in value.items())


def copied(value: Any) -> Any:
    """Returns a copy of JSON: graphs change what they are given."""
    if type(value) is dict:
        return {key: copied(one) for key, one in cast("dict[str, Any]", value).items()}
    return [copied(one) for one in cast("list[Any]", value)] if type(value) is list else value


class Codec:
    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        #: Another serializer, such as one that encrypts, is given every value.
        self.is_plain = type(serde) is JsonPlusSerializer

    def pack(self, value: Any) -> dict[str, Any]:
        if self.is_plain and is_json(value):
            return {"j": value}
        kind, data = self.serde.dumps_typed(value)
        small = zlib.compress(data, 1) if len(data) > WORTH else data
        name, data = ("z", small) if len(small) < len(data) else ("b", data)
        return {"s": kind, name: base64.b64encode(data).decode()}

    def unpack(self, said: dict[str, Any]) -> Any:
        if "j" in said:
            return copied(said["j"])
        data = zlib.decompress(base64.b64decode(said["z"])) if "z" in said else base64.b64decode(said["b"])
        return self.serde.loads_typed((said["s"], data))

    def message(self, message: BaseMessage) -> tuple[str, str | None, BaseMessage]:
        """Returns the text of a message, its id if that is not in the text, and the message as it will be read."""
        kind = type(message)
        if self.is_plain and MESSAGES.get(kind.__name__) is kind:
            data = message.model_dump(exclude={"id", "type"}, exclude_defaults=True)
            if is_json(data):
                # A copy: what the graph changes in the message later must not change it.
                text = dumps({"m": kind.__name__, "d": data})
                again = self.message_of(text, message.id)
                if is_same(message, again):
                    # The same texts, so that they are there once, and are compared at once.
                    vars(again).update((name, value) for name, value in vars(message).items() if type(value) is str)
                    return text, message.id, again
        text = dumps(self.pack(message))
        return text, None, self.message_of(text, None)

    def message_of(self, text: str, message_id: str | None) -> BaseMessage:
        said = json.loads(text)
        if "m" in said:
            return MESSAGES[said["m"]](**said["d"], id=message_id)
        return self.unpack(said)


def is_same(one: BaseMessage, other: BaseMessage) -> bool:
    """Compares two messages, field by field."""
    return type(one) is type(other) and one.__dict__ == other.__dict__ and one.__pydantic_extra__ == other.__pydantic_extra__


def messages_in(value: Any) -> list[AnyMessage] | None:
    """Returns the value if it is a list of messages, and of nothing else."""
    if type(value) is list and value and all(isinstance(one, BaseMessage) for one in cast("Iterable[Any]", value)):
        return cast("list[AnyMessage]", value)
    return None


def short(name: str) -> str | None:
    """Returns a UUID in 22 characters. None if it is not spelled as one."""
    try:
        named = uuid.UUID(name)
    except ValueError:
        return None
    return base64.urlsafe_b64encode(named.bytes).decode()[:22] if str(named) == name else None


def whole(name: str) -> str:
    return str(uuid.UUID(bytes=base64.urlsafe_b64decode(name + "==")))


def ref(card_ids: list[str], message_id: str | None) -> str:
    """Returns how a list names a message: the cards that have its text, and its id."""
    cards = ",".join(str(short(one)) for one in card_ids)
    if message_id is None:
        return cards
    return f"{cards}|u{named}" if (named := short(message_id)) else f"{cards}|s{message_id}"


def cards_of(ref: str) -> list[str]:
    return [whole(one) for one in ref.partition("|")[0].split(",")]


def id_of(ref: str) -> str | None:
    _, is_given, message_id = ref.partition("|")
    if not is_given:
        return None
    return whole(message_id[1:]) if message_id[0] == "u" else message_id[1:]
