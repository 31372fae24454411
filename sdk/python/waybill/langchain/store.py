"""A store for LangGraph: items are artifacts, and with a question they are found as knowledge.

    graph = builder.compile(store=WaybillStore())

Each item is a JSON file, so it has versions, an author and a label that says whether its content came from outside. What is indexed of it is a
document beside it, which agents of Waybill find too.
"""

from __future__ import annotations

import asyncio
import json
import operator
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, cast
from urllib.parse import unquote

from langgraph.store.base import BaseStore, GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, Result, SearchItem, SearchOp, get_text_at_path

from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from ..errors import ApiError, NotFound
from ._codec import dumps

#: The most passages that a search is asked for.
MOST_FOUND = 20


class WaybillStore(BaseStore):
    """`folder` is where the items are, below the project's artifacts and documents. A search without a question reads every item below its namespace.
    With `external=False`, content does not count as coming from outside, which the key must be allowed to say."""

    def __init__(self, client: Waybill | AsyncWaybill | None = None, *, folder: str = "langgraph", external: bool | None = None) -> None:
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self.folder, self.external = folder, external

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        # The last put of an item is the one that counts, and gets see what was there before.
        ops = list(ops)
        answers: list[Result] = [None if isinstance(op, PutOp) else self._answer(op) for op in ops]
        for op in {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}.values():
            self._put(op)
        return answers

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    def _answer(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            return self._read(self._path(op.namespace, op.key))
        return self._search(op) if isinstance(op, SearchOp) else self._namespaces(cast("ListNamespacesOp", op))

    def _path(self, namespace: tuple[str, ...], key: str | None = None) -> str:
        return "/".join([self.folder, *(f"n-{escaped(one)}" for one in namespace), *([] if key is None else [f"k-{escaped(key)}.json"])])

    def _read(self, path: str) -> Item | None:
        try:
            said = json.loads(self.client.artifacts.text(path))
        except ApiError as error:
            if error.code in ("not_found", "no_artifact"):
                return None
            raise
        times = [datetime.fromisoformat(said[name]) for name in ("created_at", "updated_at")]
        return Item(value=said["value"], key=said["key"], namespace=tuple(said["namespace"]), created_at=times[0], updated_at=times[1])

    def _put(self, op: PutOp) -> None:
        path = self._path(op.namespace, op.key)
        before, document = self._read(path), path.removesuffix(".json")
        text = "" if op.value is None or op.index is False else text_of(op.value, op.index)
        if op.value is None:
            if before is not None:
                self.client.artifacts.remove(path)
        else:
            now = datetime.now(timezone.utc)
            said: dict[str, Any] = {"namespace": op.namespace, "key": op.key, "value": op.value, "updated_at": now.isoformat()}
            said["created_at"] = (before.created_at if before else now).isoformat()
            self.client.artifacts.put(path, dumps(said), media_type="application/json", external=self.external)
        if text:
            self.client.knowledge.put(document, text, title=printable(op.key), external=self.external)
        elif before is not None:
            with suppress(NotFound):  # it was not indexed
                self.client.knowledge.remove(document)

    def _search(self, op: SearchOp) -> list[SearchItem]:
        folder = self._path(op.namespace_prefix)
        if op.query:
            said = self.client.knowledge.search(op.query, [folder], most=MOST_FOUND)
            paths = list(dict.fromkeys(f"{one.path}.json" for one in said))
        else:
            paths = [one.path for one in self.client.artifacts.list(f"{folder}/")]
        found: list[SearchItem] = []
        for path in paths:
            item = self._read(path)
            if item is not None and all(fits(item.value.get(name), wanted) for name, wanted in (op.filter or {}).items()):
                # Only the order says how well it fits: no score is known.
                found.append(SearchItem(item.namespace, item.key, item.value, item.created_at, item.updated_at))
            if len(found) == op.offset + op.limit:
                break
        return found[op.offset :]

    def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found: dict[tuple[str, ...], None] = {}
        for one in self.client.artifacts.list(f"{self.folder}/"):
            parts = one.path.removeprefix(f"{self.folder}/").split("/")[:-1]
            namespace = tuple(unescaped(part[2:]) for part in parts)
            if all(matches(condition, namespace) for condition in op.match_conditions or ()):
                found[namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]


def escaped(text: str) -> str:
    """Returns text as a part of a path: letters, digits, `_` and `-`, and everything else as `=` and its code."""
    return "".join(
        one if re.fullmatch(r"[A-Za-z0-9_-]", one) else "".join(f"={byte:02x}" for byte in one.encode(errors="surrogatepass")) for one in text
    )


def unescaped(text: str) -> str:
    return unquote(text.replace("=", "%"), errors="surrogatepass")


def text_of(value: Mapping[str, Any], fields: list[str] | None) -> str:
    """Returns what a search looks through: the named fields, or all text in the value."""
    texts = [text for one in fields or ["$"] for text in get_text_at_path(value, one)]
    return "\n\n".join(printable(text) for text in texts if text.strip())


def printable(text: str) -> str:
    """Returns text without what a document cannot have."""
    return re.sub("[\0␛\ud800-\udfff]", " ", text)


def matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return len(namespace) >= len(path) and all(wanted in ("*", one) for one, wanted in zip(part, path, strict=True))


def fits(value: Any, wanted: Any) -> bool:
    """Says whether a field of an item is as a filter wants it: a value, or `{"$gt": 3}`."""
    if not isinstance(wanted, dict):
        return value == wanted
    said = cast("dict[str, Any]", wanted)
    if not any(name.startswith("$") for name in said):
        return isinstance(value, dict) and all(fits(cast("dict[str, Any]", value).get(name), one) for name, one in said.items())
    tests = {"$eq": operator.eq, "$ne": operator.ne, "$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}
    if unknown := said.keys() - tests.keys():
        raise ValueError(f"a filter has no {', '.join(sorted(unknown))}: it has {', '.join(tests)}")
    try:
        return all(tests[name](value, one) for name, one in said.items())
    except TypeError:
        return False  # such as a text, and whether it is greater than a number
