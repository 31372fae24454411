"""Who may have written what a chain is read from.

A process believes what it reads of a chain. LangGraph's serializer makes objects of any class that a checkpoint names, so a caller that writes a
checkpoint can run code in the process that reads it; a caller that writes an answer of a model makes an agent of Pydantic AI call its tools.
A process that writes to chains needs a key of scope `admin`; what other callers have written is refused before it is read. The server says who
started a turn and who wrote a card: a writer cannot choose it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from threading import Lock

from .. import models
from .._sync.client import Waybill
from ..errors import Forbidden, WaybillError
from .chain import Kind

#: A request that was under way when its key ended is still carried out.
LATE = timedelta(seconds=30)


class UntrustedWriter(WaybillError):
    """What is on record has a turn or a card of a caller that cannot have written there. Nothing of it was read; nothing was written."""


class Writers:
    """The callers whose turns may be read: keys of scope `admin`, a user who is an admin, and those that the program names."""

    def __init__(self, client: Waybill, kind: Kind, trusted: Collection[str]) -> None:
        self._client, self._adapter = client, kind.adapter
        # Where callers on the server's own machine need no key, they are all admins.
        self._trusted = {"loopback", *trusted}
        #: For each name that an admin's key has: when keys of other scopes had it.
        self._others: dict[str, list[tuple[datetime, datetime | None]]] = {}
        #: By the server's clock: when what was read last was written, and from when on the names may have changed since they were asked for.
        self._newest = self._asked = datetime.min.replace(tzinfo=timezone.utc)
        self._lock = Lock()

    def read(self, times: Iterable[datetime | None]) -> None:
        """Notes when what was just read was written, so that the names are asked for once for all of it."""
        with self._lock:
            self._newest = max([self._newest, *filter(None, times)])

    def check(self, what: str, turn_id: str, writer: str | None, at: datetime | None) -> None:
        if not self._trusts(writer, at):
            raise UntrustedWriter(
                f"{what} is of {writer}, which had no key of scope `admin`: no {self._adapter} wrote it, so it was not read. If you do not know "
                f"why it is there, revoke that key, and go on with {self._adapter}(ignored_turns=[{turn_id!r}]). "
                f"If you trust what {writer} writes as you trust your own program: {self._adapter}(trusted=[{writer!r}])"
            )

    def _trusts(self, writer: str | None, at: datetime | None) -> bool:
        if writer in self._trusted:
            return True
        if writer is None or at is None:
            return False
        with self._lock:
            # A key that was made since may have the name of an admin's.
            if writer not in self._others or at > self._asked:
                self._newest = max(self._newest, at)
                self._ask(writer)
            return (
                writer in self._trusted
                or writer in self._others
                and not any(begun <= at and (ended is None or at < ended + LATE) for begun, ended in self._others[writer])
            )

    def _ask(self, writer: str) -> None:
        if writer.startswith("user:"):
            me = self._client.me()
            self._trusted |= {me.actor} if me.scope == "admin" else set()
            return
        keys, after, self._asked = defaultdict[str, list[models.Key]](list), None, datetime.min.replace(tzinfo=timezone.utc)
        with suppress(Forbidden):  # the caller only reads: it trusts those that it names
            while True:
                page = self._client.api.list_keys(after=after, most=1000)
                for key in page.items:
                    keys[f"key:{key.name}"].append(key)
                if (after := page.next) is None:
                    self._asked = self._newest
                    break
        self._others = {
            name: [(one.created_at, min(filter(None, (one.expires_at, one.revoked_at)), default=None)) for one in alike if one.scope != "admin"]
            for name, alike in keys.items()
            if any(one.scope == "admin" for one in alike)
        }
