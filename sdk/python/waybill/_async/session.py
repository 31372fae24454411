"""Sessions: conversations of several turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..profile import Profile
from .turn import AsyncTurn

if TYPE_CHECKING:
    from .. import models
    from .client import AsyncWaybill

T = TypeVar("T")


class AsyncSession:
    """A conversation: each turn sees the messages so far, and its deliverable becomes a message."""

    def __init__(self, client: AsyncWaybill, said: models.Session) -> None:
        self.client = client
        self.said = said

    @property
    def id(self) -> str:
        return self.said.session_id

    @overload
    async def run(self, profile: str | Profile, instruction: str, *, result: type[T], key: str | None = None, **more: Any) -> AsyncTurn[T]: ...

    @overload
    async def run(
        self, profile: str | Profile, instruction: str, *, result: Mapping[str, Any] | None = None, key: str | None = None, **more: Any
    ) -> AsyncTurn[Any]: ...

    async def run(self, profile: str | Profile, instruction: str, *, result: Any = None, key: str | None = None, **more: Any) -> AsyncTurn[Any]:
        """Starts a turn of the session, as `Waybill.run` does. With `while_running="steer"` a running turn gets the instruction as a message."""
        return await self.client.run(profile, instruction, result=result, key=key, session_id=self.id, **more)

    async def messages(self) -> list[models.Reading]:
        """Returns the messages so far, oldest first."""
        return await self.client.cards_of(self.said.messages_box_id)

    async def describe(self, title: str) -> AsyncSession:
        self.said = await self.client.api.describe_session(self.id, {"title": title})
        return self

    async def end(self) -> AsyncSession:
        """Ends the session: no more turns can start in it."""
        self.said = await self.client.api.end_session(self.id)
        return self

    async def forget(self) -> None:
        """Deletes its list of messages, its todo list and its summary."""
        await self.client.api.forget_session(self.id)

    def __repr__(self) -> str:
        return f"<Session {self.id}: {self.said.title or 'no title'}, {self.said.n_messages} messages>"
