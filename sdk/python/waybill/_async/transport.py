"""Requests: sent again where that does no harm, over connections that survive a fork and another event loop."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx2

from .. import __version__
from .._runtime_async import is_gone, place, sleep
from ..config import Config
from ..errors import ApiError, ConfigError, OlderServer, Unanswered
from ..wire import (
    EventReader,
    Operation,
    Pauses,
    Received,
    body_bytes,
    check_key,
    clock_ahead,
    error_of,
    knows,
    may_help,
    query,
    read_answer,
    trace_headers,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

log = logging.getLogger("waybill")

#: A stream that is silent for so long is opened again. The server sends a comment every 15 seconds.
SILENCE = 45.0
#: The request did not leave this machine.
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
#: The request cannot leave this machine, however often it is tried.
NEVER_SENT = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)


class AsyncTransport:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._clients: dict[object, httpx2.AsyncClient] = {}
        self._pid = os.getpid()
        self._document: Any = None
        self._is_reached = False
        #: Seconds by which the server's clock is ahead.
        self.clock_ahead = 0.0

    def client(self) -> httpx2.AsyncClient:
        """Returns the connections of this process. A forked child gets its own: a connection that two processes use mixes up their answers."""
        if self._pid != os.getpid():
            # A thread of the parent may have held the lock.
            self._lock, self._clients, self._pid = threading.Lock(), {}, os.getpid()
        here = place()
        with self._lock:
            if here not in self._clients:
                self._clients = {there: client for there, client in self._clients.items() if not is_gone(there)}
                self._clients[here] = httpx2.AsyncClient(**self.config.httpx())
            return self._clients[here]

    async def close(self) -> None:
        if self._pid == os.getpid() and (client := self._clients.pop(place(), None)):
            await client.aclose()

    async def call(
        self,
        operation: Operation,
        parts: Mapping[str, Any],
        *,
        params: Mapping[str, Any] | None = None,
        body: BaseModel | Mapping[str, Any] | str | bytes | None = None,
        media_type: str = "application/json",
        key: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        patience: float | None = None,
        within: float | None = None,
    ) -> Any:
        """Sends a request, again if that may help and does no harm, and reads the answer with its model. An attempt may be silent for `within`."""
        content = None if body is None else body_bytes(body)
        sent = {name: value for name, value in (headers or {}).items() if value is not None} | trace_headers()
        if content is not None:
            sent["content-type"] = media_type
        repeatable = operation.repeatable
        if operation.keyed:
            sent["idempotency-key"] = str(uuid.uuid4()) if key is None else check_key(key)
            repeatable = True
        url = operation.url(self.config.url, self.config.base, parts)
        pauses = Pauses(self.config.patience if patience is None else patience)
        wait = float((params or {}).get("wait_seconds") or 0) if params else 0.0
        attempt = self.config.timeout if within is None else min(self.config.timeout, within)
        timeout = httpx2.Timeout(attempt, read=attempt + max(wait, 30.0 if "claim" in operation.name else 0.0))
        while True:
            retry_after: float | None = None
            try:
                response = await self.client().request(
                    operation.method, url, params=query(params or {}), content=content, headers=sent, timeout=timeout
                )
            except NEVER_SENT:
                # What httpx says of it has the header, and so the key.
                raise ConfigError(f"{operation.name}: this cannot be sent: check the address, and the characters of the headers") from None
            except httpx2.RequestError as error:
                if self.config.is_default and not self._is_reached:
                    raise Unanswered(f"no server is at {self.config.url}: run `waybill dev` in this folder, or set WAYBILL_API_URL") from None
                if not (repeatable or isinstance(error, NOT_SENT)):
                    raise Unanswered(f"{operation.name}: no answer from {self.config.url}: {error!r}") from error
                failure: Exception = Unanswered(f"{operation.name}: no answer from {self.config.url}: {error!r}")
                failure.__cause__ = error
            else:
                self._is_reached = True
                log.debug("%s %s: %s", operation.method, url, response.status_code)
                self.clock_ahead = clock_ahead(response.headers.get("date"))
                if response.status_code in (204, 304):
                    return None
                if response.is_success:
                    return read_answer(operation.answer, response.content, operation.name)
                refusal = error_of(response, operation.name)
                if not may_help(refusal, repeatable):
                    raise await self._explained(refusal, operation)
                failure, retry_after = refusal, refusal.retry_after
            pause = pauses.pause(retry_after)
            if pause is None:
                raise failure
            log.info("%s: trying again in %.1f s: %s", operation.name, pause, failure)
            await sleep(pause)

    async def _explained(self, refusal: ApiError, operation: Operation) -> ApiError:
        """Says so if the server is too old for the request."""
        is_field = refusal.code == "invalid" and "unknown field" in refusal.detail
        if not is_field and refusal.status not in (404, 405):
            return refusal
        try:
            if self._document is None:
                self._document = (await self.client().get(f"{self.config.url}/openapi.json")).json()
            document = self._document
            if (is_field and document["info"]["version"] == __version__) or (not is_field and knows(document, operation)):
                return refusal
            said = f"{refusal.detail}: the server is version {document['info']['version']}, this package is {__version__}"
        except (httpx2.HTTPError, ValueError, KeyError, TypeError):
            return refusal
        return OlderServer(refusal.status, refusal.code, said, operation=operation.name)

    async def stream(
        self, operation: Operation, parts: Mapping[str, Any], reader: EventReader, params: Mapping[str, Any], silence: float = SILENCE
    ) -> AsyncIterator[Received]:
        """Reads server-sent events until the server or the network ends the stream. Call it again with the same reader to go on from there."""
        url = operation.url(self.config.url, self.config.base, parts)
        headers = {"accept": "text/event-stream"} | trace_headers()
        if reader.after is not None:
            headers["last-event-id"] = str(reader.after)
        timeout = httpx2.Timeout(self.config.timeout, read=silence)
        reader.cut()
        reader.is_cut = False
        try:
            async with self.client().stream(operation.method, url, params=query(params), headers=headers, timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response, operation.name)
                async for line in response.aiter_lines():
                    for event in reader.take(line):
                        yield event
        except httpx2.RequestError as error:
            reader.is_cut = not isinstance(error, httpx2.ReadTimeout)
            log.info("%s: the stream was cut: %r", operation.name, error)
