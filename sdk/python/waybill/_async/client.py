"""The client: what a program does with a project."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from .._runtime_async import sleep
from ..config import Config, find
from ..errors import ApiError, ConfigError, NotFound, Unanswered, from_problem
from ..profile import Profile
from ..schema import result_schema
from ..tools import Tool
from ..views import Comparison, Replay
from ..wire import EventReader, Pauses, Received, read_json
from .folder import AsyncArtifacts, AsyncKnowledge
from .operations import OPERATIONS, AsyncOperations
from .session import AsyncSession
from .transport import AsyncTransport
from .turn import AsyncEvent, AsyncRequest, AsyncTurn

if TYPE_CHECKING:
    from .. import models
    from ..worker import Worker

T = TypeVar("T")


class AsyncWaybill:
    """A project on a Waybill server.

    Without arguments, the address, the key and the project come from WAYBILL_API_URL, WAYBILL_API_KEY and WAYBILL_PROJECT, or from the folder
    `.waybill` that `waybill dev` writes. `wb.api` has every operation of the API as a method.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        project: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 60.0,
        proxy: str | None = None,
        ca_file: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        settings = {"timeout": timeout, "patience": patience, "proxy": proxy, "ca_file": ca_file, "headers": dict(headers or {})}
        self._set(find(url, key, project, **settings))

    def _set(self, config: Config) -> None:
        self.config = config
        self.transport = AsyncTransport(config)
        self.api = AsyncOperations(self.transport)
        self.artifacts = AsyncArtifacts(self.api)
        self.knowledge = AsyncKnowledge(self.api)

    @classmethod
    def of(cls, config: Config) -> AsyncWaybill:
        made = cls.__new__(cls)
        made._set(config)
        return made

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> AsyncWaybill:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def me(self) -> models.Me:
        """Returns who the caller is, what its key may do, and until when."""
        return await self.api.show_me()

    async def apply(self, *what: Profile | Tool[..., Any] | Mapping[str, Any], dry_run: bool = False) -> list[models.Applied]:
        """Applies profiles with their tools, tools, and manifests such as `{"settings": {…}}`: all, or none. The same again changes nothing."""
        manifests: list[dict[str, Any]] = []
        for one in what:
            if isinstance(one, Profile):
                manifests += [{"tool": own.manifest()} for own in one.own_tools()]
                manifests.append({"profile": one.manifest()})
            elif isinstance(one, Tool):
                manifests.append({"tool": one.manifest()})
            else:
                manifests.append(dict(one))
        unique = [one for n, one in enumerate(manifests) if one not in manifests[:n]]
        return await self.api.apply_resources({"manifests": unique, "dry_run": dry_run})

    @overload
    async def run(self, profile: str | Profile, instruction: str, *, result: type[T], key: str | None = None, **more: Any) -> AsyncTurn[T]: ...

    @overload
    async def run(
        self, profile: str | Profile, instruction: str, *, result: Mapping[str, Any] | None = None, key: str | None = None, **more: Any
    ) -> AsyncTurn[Any]: ...

    async def run(self, profile: str | Profile, instruction: str, *, result: Any = None, key: str | None = None, **more: Any) -> AsyncTurn[Any]:
        """Starts a turn: an agent works on an instruction. It does not wait: see `wait`, `result` and `watch` of the turn.

        `result` is the type of the result: a pydantic model, dataclass or TypedDict, or a JSON Schema. `key` makes the start happen once: the same
        key with the same start gives the same turn. `more` are fields of the API's start: `labels`, `limits`, `session_id`, `on_behalf_of`,
        `external`, `agent_id`, `context_box_ids`, `arguments`, `handover`, `while_running`, `channel`.
        """
        started = await self.api.start_turn(start_of(profile, instruction, result, more), key=key)
        return AsyncTurn(self, started.agent_turn_id, result if isinstance(result, type) else None)

    async def run_many(
        self, profile: str | Profile, instructions: Mapping[str, str], *, result: Any = None, **more: Any
    ) -> dict[str, AsyncTurn[Any] | ApiError]:
        """Starts up to 1,000 turns: one for each key and instruction. A start that is refused does not stop the others."""
        starts = [{"key": key, "start": start_of(profile, text, result, more)} for key, text in instructions.items()]
        found: dict[str, AsyncTurn[Any] | ApiError] = {}
        for outcome in (await self.api.start_turns({"starts": starts})).outcomes:
            problem = getattr(outcome, "problem", None)
            if problem is not None:
                found[outcome.key] = from_problem(problem.status, problem.model_dump(), "start_turns")
            else:
                turn_id: str = outcome.agent_turn_id  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType, reportUnknownMemberType]
                found[outcome.key] = AsyncTurn(self, str(turn_id), result if isinstance(result, type) else None)  # pyright: ignore[reportUnknownArgumentType]
        return found

    async def handoff(self, profile: str | Profile, package: Mapping[str, Any], *, key: str | None = None, **more: Any) -> AsyncTurn[Any]:
        """Hands a package to an agent, and starts a turn for it: `{"handoff_type": "release", "notes_path": "notes.md"}`. `version` and `timestamp`
        are filled in. A package that is not valid is refused, with everything that is wrong. `more`: `instruction`, `agent_id`, `session_id`,
        `external`, `on_behalf_of`."""
        if key is not None and "timestamp" not in package:
            raise ConfigError("with a key, give the package a `timestamp` of its own: the same key goes with the same package")
        filled = {"version": "2.0", "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"), **package}
        name = profile if isinstance(profile, str) else profile.name
        return AsyncTurn(self, (await self.api.send_handoff({"profile_name": name, "package": filled, **more}, key=key)).agent_turn_id)

    @overload
    def turn(self, turn_id: str, result: type[T]) -> AsyncTurn[T]: ...

    @overload
    def turn(self, turn_id: str) -> AsyncTurn[Any]: ...

    def turn(self, turn_id: str, result: Any = None) -> AsyncTurn[Any]:
        """Returns a turn by its id, without reading it."""
        return AsyncTurn(self, turn_id, result)

    async def turns(self, **filters: Any) -> AsyncIterator[models.Summary]:
        """Lists turns, newest first, page by page. Filters are those of the API: `label="team=blue"`, `status`, `profile`, `session`, `since`, …"""
        after: str | None = None
        while True:
            page = await self.api.list_turns(after=after, **filters)
            for one in page.items:
                yield one
            after = page.next
            if after is None:
                return

    async def session(self, session_id: str | None = None, *, title: str | None = None, labels: Sequence[str] | None = None) -> AsyncSession:
        """Opens a session, or a known one: a conversation of several turns."""
        if session_id is not None:
            try:
                return AsyncSession(self, await self.api.show_session(session_id))
            except NotFound:
                pass
        said = {"session_id": session_id, "title": title, "labels": None if labels is None else list(labels)}
        return AsyncSession(self, await self.api.open_session({name: value for name, value in said.items() if value is not None}))

    async def requests(self, state: str | None = None) -> list[AsyncRequest]:
        """Lists what people are asked: approvals and questions that wait, or with `state` those that were decided."""
        page = await self.api.list_requests(state=state, most=1000)
        return [AsyncRequest(self, one.tool_call_id, one) for one in page.items]

    async def compare(self, *turns: AsyncTurn[Any] | str) -> Comparison:
        """Compares runs: a turn and its forks, or any other turns. The first is what the others are compared with."""
        ids = [one if isinstance(one, str) else one.id for one in turns]
        return Comparison(await self.api.compare_forks(turns=",".join(ids)))

    async def replay(self, *turns: AsyncTurn[Any] | str) -> Replay:
        """Composes the model calls of turns again from the record, and compares them with their receipts."""
        found: list[models.VerifiedCall] = []
        for one in turns:
            turn = AsyncTurn[Any](self, one) if isinstance(one, str) else one
            found += (await turn.replay()).calls
        return Replay(found)

    async def cards_of(self, box_id: str) -> list[models.Reading]:
        """Returns the cards of a box, in order."""
        found: list[models.Reading] = []
        after: int | None = None
        while True:
            page = await self.api.list_cards(box_id, after=after, most=1000)
            found += [one.reading for one in page.items]
            if page.next is None:
                return found
            after = int(page.next)

    async def events(self, *, after: int | None = None, kinds: Sequence[str] | None = None, root: str | None = None) -> AsyncIterator[AsyncEvent]:
        """Tells what happens in the project, without end: from now on, or after the number of an event. It goes on after a lost connection."""
        reader, pauses = EventReader(after), Pauses(self.config.patience)
        while True:
            n_seen = 0
            try:
                params = {"kinds": kinds, "root": root, "after": reader.after}
                async for received in self.transport.stream(OPERATIONS["watch_project"], {}, reader, params):
                    n_seen += 1
                    if event := await self.event(received):
                        yield event
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    raise
            if n_seen:
                pauses = Pauses(self.config.patience)
            pause = pauses.pause()
            if pause is None:
                raise Unanswered(f"watch_project: no stream from {self.config.url} stays open")
            await sleep(pause)

    async def event(self, received: Received) -> AsyncEvent | None:
        """Reads an event of a stream. Of a request, what is asked is read too. Returns None for one of a kind that this version does not know."""
        found = read_json(received.data, "watch")
        if not isinstance(found, dict) or "agent_turn_id" not in found:
            return None
        said = cast("dict[str, Any]", found)
        request: AsyncRequest | None = None
        if received.kind == "request":
            request = await self._asked(said["agent_turn_id"], said.get("card_id"))
        return AsyncEvent(received.kind, said["agent_turn_id"], said, received.id, said.get("status"), said.get("text", ""), request)

    async def _asked(self, turn_id: str, card_id: str | None) -> AsyncRequest | None:
        """Returns the open request of an event; None if it was decided by now."""
        for one in await self.requests():
            said = one.said
            if said and said.agent_turn_id == turn_id and (card_id is None or said.request_card_id == card_id) and said.decided is None:
                return one
        return None

    def worker(self, tools: Sequence[Tool[..., Any]] = (), **more: Any) -> Worker:
        """Returns a worker, which answers calls of tools here: `with wb.worker([weather]): …`, or `.run()`."""
        from ..worker import Worker

        return Worker(self, tools=tools, **more)

    def __repr__(self) -> str:
        return f"<Waybill {self.config.base}>"


def start_of(profile: str | Profile, instruction: str, result: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    start: dict[str, Any] = {"profile_name": profile if isinstance(profile, str) else profile.name, "instruction": instruction}
    known = {
        "labels",
        "limits",
        "session_id",
        "on_behalf_of",
        "external",
        "agent_id",
        "context_box_ids",
        "arguments",
        "handover",
        "while_running",
        "channel",
        "result_fields",
    }
    if unknown := set(more) - known:
        raise ConfigError(f"a start has no {', '.join(sorted(unknown))}: it has {', '.join(sorted(known))}")
    if result is not None:
        start["result_schema"] = result_schema(result)
    return start | {name: value for name, value in more.items() if value is not None}
