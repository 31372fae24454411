"""A checkpoint saver for LangGraph: what a graph has done is kept on a Waybill server, and of two processes that run one thread, one is refused.

    graph = builder.compile(checkpointer=WaybillSaver())

A write is sent under the fence of the turn that this process holds (see `_adapter/chain.py`). A run may write if nothing but
the run itself has written to the thread since it began. If another run has begun on the thread, here or elsewhere, its writes raise ThreadTaken.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from .._adapter.chain import Texts, digest, dumps
from .._adapter.lease import MOST_CARD, Holder
from .._async.client import AsyncWaybill
from .._sync.client import Waybill
from .._turns import card
from ..wire import uuid7
from ._codec import Codec, cards_of, id_of, is_same, messages_in, ref
from ._log import ThreadLog
from ._thread import KIND, Job, Key, Listed, Run, Thread

log = logging.getLogger("waybill.langchain")
T = TypeVar("T")

#: In the config that `get_tuple` returns: what was read. LangGraph hands it on to the writes that follow from it, also where there is no run.
RUN = "__waybill_run"

#: Characters from which a value is a card of its own.
LONG = 400
#: Seconds that the writes of a task wait for the checkpoint that follows: both then go in one request.
LINGER = 0.002


class Cards:
    """Cards that are about to be written."""

    def __init__(self, texts: Texts) -> None:
        self.cards: list[dict[str, Any]] = []
        self._texts = texts

    def add(self, card_type: str, text: str) -> str:
        made = card(card_type, text)
        self.cards.append(made)
        self._texts.keep(made["card_id"], text)
        return made["card_id"]

    def long(self, card_type: str, text: str) -> list[str]:
        return [self.add(card_type, text[at : at + MOST_CARD]) for at in range(0, len(text), MOST_CARD)]


class WaybillSaver(BaseCheckpointSaver[int]):
    """Keeps checkpoints of LangGraph on a Waybill server.

    Use one for the whole process, from any thread or event loop. The key must be of scope `admin`. `name` begins the names of the profile and the
    queue of this process. `serde` may be one that encrypts. A thread that is idle for `idle_seconds` is let go; a run that goes on takes it up again.

    What callers other than keys of scope `admin` have written is refused with UntrustedWriter. `trusted` names more callers, such as `user:ada`;
    `ignored_turns` names turns that are not read.
    """

    def __init__(
        self,
        client: Waybill | AsyncWaybill | None = None,
        *,
        name: str = "langgraph",
        lease_seconds: float = 30,
        idle_seconds: float = 600,
        serde: SerializerProtocol | None = None,
        trusted: Collection[str] = (),
        ignored_turns: Collection[str] = (),
    ) -> None:
        super().__init__(serde=serde)
        self.client = Waybill() if client is None else Waybill.of(client.config)
        self.lease_seconds, self.idle_seconds = lease_seconds, idle_seconds
        self.trusted, self.ignored_turns = tuple(trusted), tuple(ignored_turns)
        self._name = name
        # In a list, so that the copies that LangGraph makes of a saver have the same.
        self._home = [self._hold()]

    def _hold(self) -> Holder[Thread]:
        log = ThreadLog(self.client, KIND, Thread, trusted=self.trusted, ignored_turns=self.ignored_turns)
        return Holder(log, self._name, lease_seconds=self.lease_seconds, idle_seconds=self.idle_seconds)

    # What LangGraph calls.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        thread, ns, checkpoint_id = self._of(config)
        with thread.io:
            if ns == "" or thread.held is None:
                self._log.refresh(thread)
            thread.seen = thread.position
            token, control = None, control_of(config)
            if control is None:
                token = uuid7()
                thread.begin(token, None)
            elif id(control) not in thread.runs:
                thread.begin(id(control), control)
            if checkpoint_id is None:
                checkpoint_id = thread.latest(ns)
                if checkpoint_id is None and thread.is_partial:
                    self._log.load(thread)
                    checkpoint_id = thread.latest(ns)
            elif not thread.has((ns, checkpoint_id)) and thread.is_partial:
                self._log.load(thread)
            if checkpoint_id is None or not thread.has((ns, checkpoint_id)) or (ns, checkpoint_id) in thread.hidden:
                return None
            if (said := self._log.kept(thread, (ns, checkpoint_id)).said) is None:
                return None
            found = self._tuple(thread, said)
            if token is not None:
                found.config.get("configurable", {})[RUN] = token
            return found

    def list(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None, before: RunnableConfig | None = None, limit: int | None = None
    ) -> Iterator[CheckpointTuple]:
        n_left = math.inf if limit is None else limit
        ns = config.get("configurable", {}).get("checkpoint_ns") if config else None
        only = get_checkpoint_id(config) if config else None
        upto = get_checkpoint_id(before) if before else None
        for thread in [self._of(config)[0]] if config else self._log.chains():
            with thread.io:
                self._log.refresh(thread)
                if thread.is_partial:
                    self._log.load(thread)
                keys = [(one, checkpoint_id) for one in thread.order if ns is None or one == ns for checkpoint_id in reversed(thread.order[one])]
            for at, key in enumerate(keys):
                if at % 100 == 0:
                    with thread.io:
                        self._log.fetch_kept(thread, keys[at : at + 100])
                if key in thread.hidden or (only and key[1] != only) or (upto and key[1] >= upto):
                    continue
                if n_left <= 0:
                    return
                with thread.io:
                    if not thread.has(key) and thread.is_partial:  # it was let go in the meantime
                        self._log.load(thread)
                    said = self._log.kept(thread, key).said
                    metadata: dict[str, Any] = self._codec.unpack(said["md"]) if said else {}
                    if said is None or any(metadata.get(name) != value for name, value in (filter or {}).items()):
                        continue
                    found = self._tuple(thread, said)
                n_left -= 1
                yield found

    def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions) -> RunnableConfig:
        thread, ns, _ = self._of(config)
        self._write(thread, Job("checkpoint", config, (checkpoint, metadata, new_versions)))
        return {"configurable": {"thread_id": thread.name, "checkpoint_ns": ns, "checkpoint_id": checkpoint["id"]}}

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        thread, _, _ = self._of(config)
        self._write(thread, Job("writes", config, (writes, task_id, task_path)), linger=LINGER)

    def delete_thread(self, thread_id: str) -> None:
        """Deletes what the thread has. Nothing can be read any more; the cards stay on record until retention or an erasure removes them."""
        self._edit(thread_id, lambda thread: {"op": "delete"} if thread.order or thread.is_partial else None)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = set(run_ids)

        def hide(thread: Thread) -> dict[str, Any] | None:
            keys = [key for key in thread.cards if thread.has(key)]
            self._log.fetch_kept(thread, keys)
            said = ((key, self._log.kept(thread, key).said) for key in keys)
            found = [key for key, one in said if one and self._codec.unpack(one["md"]).get("run_id") in wanted]
            return {"op": "hide", "ids": found} if found else None

        for thread in self._log.chains() if wanted else []:
            self._edit(thread.name, hide)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Makes the target go on from the source. No card is copied: the target names the ranges of the source's boxes."""
        source = self._log.chain(source_thread_id)
        with source.io:
            self._log.refresh(source)
            self._log.load(source)
            boxes = [[one.box_id, one.place] for one in source.tenures.values()]
        if source.order:
            target = self._log.chain(target_thread_id)
            self.release(target_thread_id)
            target.inherits = [str(box_id) for box_id, _ in boxes]
            self._edit(target_thread_id, lambda _: {"op": "copy", "boxes": boxes})

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Hides all checkpoints but the latest of each namespace, or all. What a DeltaChannel is made of stays readable for it."""

        def hide(thread: Thread) -> dict[str, Any] | None:
            kept = {(ns, thread.latest(ns)) for ns in thread.order}
            found = [key for key in thread.cards if thread.has(key) and key not in kept and key not in thread.hidden]
            return {"op": "hide", "ids": found} if found else None

        for thread_id in thread_ids:
            if strategy == "keep_latest":
                self._edit(thread_id, hide)
            elif strategy == "delete":
                self.delete_thread(thread_id)
            else:
                raise ValueError(f"strategy {strategy!r} is unknown: use `keep_latest` or `delete`")

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        thread, ns, checkpoint_id = self._of(config)
        with thread.io:
            if checkpoint_id is None:
                self._log.refresh(thread)
                checkpoint_id = thread.latest(ns)
            self._log.fetch_kept(thread, [(ns, one) for one in thread.order.get(ns, ())[-100:]])
            # From the target's parent back to where each channel has a value.
            wanted, seeds = set(channels), dict[str, dict[str, Any]]()
            path: list[tuple[Key, set[str]]] = []
            at = self._known(thread, ns, checkpoint_id)
            while at and wanted and at["parent"] and (parent := self._known(thread, ns, at["parent"])):
                at = parent
                path.append(((ns, at["id"]), set(wanted)))
                found = wanted & at["values"].keys()
                seeds |= {channel: at["values"][channel] for channel in found}
                wanted -= found
            written = [(task, channel, packed) for key, of in reversed(path) for task, channel, packed in self._written(thread, key) if channel in of]
            self._log.fetch_values(thread, [packed for _, _, packed in written] + [*seeds.values()])
            history: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
            for task, channel, packed in written:
                history[channel]["writes"].append((task, channel, self._unpack(packed, thread)))
            for channel, packed in seeds.items():
                history[channel]["seed"] = self._unpack(packed, thread)
            return history

    def get_next_version(self, current: int | str | None, channel: None) -> int:
        # Other savers count with text, of which the first part is a number.
        return 1 if current is None else int(str(current).split(".")[0]) + 1

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._away(self.get_tuple, config)

    async def alist(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None, before: RunnableConfig | None = None, limit: int | None = None
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (one := await self._away(lambda: next(found, None))) is not None:
            yield one

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        return await self._away(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        await self._away(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await self._away(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._away(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._away(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._away(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        return await self._away(lambda: self.get_delta_channel_history(config=config, channels=channels))

    async def _away(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function in a thread. A write that was begun is finished, also if the task that waits for it is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._shared.pool, function, *arguments)

    def release(self, thread_id: str) -> None:
        """Lets go of a thread: its turn ends. The next write to it, here or elsewhere, begins another one."""
        self._shared.release(self._log.chain(thread_id))

    def close(self) -> None:
        """Lets go of all threads."""
        self._shared.close()

    def __enter__(self) -> WaybillSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading.

    @property
    def _shared(self) -> Holder[Thread]:
        # A forked child has a lease and threads of its own.
        if self._home[0].pid != os.getpid():
            self._home[0] = self._hold()
        return self._home[0]

    @property
    def _log(self) -> ThreadLog:
        return cast("ThreadLog", self._shared.log)

    @property
    def _codec(self) -> Codec:
        return Codec(self.serde)

    def _of(self, config: RunnableConfig) -> tuple[Thread, str, str | None]:
        said = config.get("configurable", {})
        return self._log.chain(said["thread_id"]), said.get("checkpoint_ns", ""), said.get("checkpoint_id")

    def _known(self, thread: Thread, ns: str, checkpoint_id: str | None) -> dict[str, Any] | None:
        """Returns a checkpoint as it was written, also one that was pruned."""
        if checkpoint_id is None:
            return None
        if not thread.has((ns, checkpoint_id)) and thread.is_partial:
            self._log.load(thread)
        return self._log.kept(thread, (ns, checkpoint_id)).said

    def _written(self, thread: Thread, key: Key) -> list[tuple[str, str, dict[str, Any]]]:
        known = self._log.kept(thread, key).writes
        return [(one[0], known[one][0], known[one][1]) for one in sorted(known, key=lambda one: writes_sort_key(known[one][2], *one))]

    def _tuple(self, thread: Thread, said: dict[str, Any]) -> CheckpointTuple:
        key = ns, checkpoint_id = said["ns"], said["id"]
        written = self._written(thread, key)
        self._log.fetch_values(thread, [*said["values"].values(), *(packed for _, _, packed in written)])
        checkpoint = self._codec.unpack(said["ck"])
        checkpoint["channel_values"] = {name: self._unpack(packed, thread, (ns, name)) for name, packed in said["values"].items()}
        config = {"thread_id": thread.name, "checkpoint_ns": ns}
        return CheckpointTuple(
            config={"configurable": {**config, "checkpoint_id": checkpoint_id}},
            checkpoint=cast("Checkpoint", checkpoint),
            metadata=cast("CheckpointMetadata", self._codec.unpack(said["md"])),
            parent_config={"configurable": {**config, "checkpoint_id": said["parent"]}} if said["parent"] else None,
            pending_writes=[(task, channel, self._unpack(packed, thread)) for task, channel, packed in written],
        )

    def _unpack(self, packed: dict[str, Any], thread: Thread, name: Key | None = None) -> Any:
        if "c" in packed:
            return self._codec.unpack(json.loads(self._log.text(thread, packed["c"])))
        if "l" not in packed:
            return self._codec.unpack(packed)
        refs, codec = self._log.refs(thread, packed["l"]), self._codec
        if name and name not in thread.lists:
            thread.keep_list(name, Listed(refs, [None] * len(refs), packed["l"]["base"], packed["l"]["keep"]))
        found = [codec.message_of(self._log.text(thread, cards_of(one)), id_of(one)) for one in refs]
        return found if packed["l"].get("is", "list") == "list" else found[0]

    # Writing.

    def _write(self, thread: Thread, job: Job, linger: float = 0) -> None:
        """Sends a write, with all that wait by then."""
        with thread.mutex:
            thread.queue.append(job)
        if linger:
            time.sleep(linger)
        with thread.io:
            if not job.is_done:
                with thread.mutex:
                    jobs, thread.queue = thread.queue, []
                self._send_all(thread, jobs)
        if job.error:
            raise job.error

    def _send_all(self, thread: Thread, jobs: Sequence[Job]) -> None:
        cards, unsent = Cards(self._log.texts), list[Job]()

        def send() -> None:
            try:
                if cards.cards:
                    self._shared.write(thread, cards.cards)
            except BaseException as error:
                for job in unsent:
                    job.error = error
            for job in unsent:
                job.is_done = True
            cards.cards = []
            unsent.clear()

        for job in jobs:
            # Whether a run may begin depends on what was written before.
            if unsent and job.config and run_of(thread, job.config) is not thread.run:
                send()
            try:
                self._enter(thread, job)
                {"checkpoint": self._checkpoint, "writes": self._writes, "edit": self._edited}[job.kind](thread, job, cards)
                unsent.append(job)
            except BaseException as error:
                job.error, job.is_done = error, True
        send()

    def _enter(self, thread: Thread, job: Job) -> None:
        """Checks that a write belongs to the run that has the thread, or lets its run have it."""
        if thread.held and thread.held.worker != self._shared.worker:
            thread.lose()
        run = run_of(thread, job.config) if job.config else None
        if run and run.is_dead:
            raise KIND.taken(thread, "another run has begun on it")
        if thread.held is None:
            self._shared.acquire(thread, run.read if run else thread.seen)
        elif run and run is not thread.run and run.read != thread.position:
            run.is_dead = True
            raise KIND.taken(thread, "another run has written to it since this one has read it")
        if run and run is not thread.run:
            thread.give(run)

    def _checkpoint(self, thread: Thread, job: Job, cards: Cards) -> None:
        checkpoint, metadata, new_versions = job.arguments
        said = job.config["configurable"]
        ns, parent = said.get("checkpoint_ns", ""), said.get("checkpoint_id")
        before = self._log.kept(thread, (ns, parent)).said if parent and thread.has((ns, parent)) else None
        values, packed = checkpoint["channel_values"], dict[str, Any]()
        versions: dict[str, Any] = self._codec.unpack(before["ck"])["channel_versions"] if before else {}
        for name, version in checkpoint["channel_versions"].items():
            if name not in new_versions and before and name in before["values"] and versions.get(name) == version:
                packed[name] = before["values"][name]
            elif name in values:
                packed[name] = self._pack(thread, cards, values[name], (ns, name))
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        made = {"ns": ns, "id": checkpoint["id"], "parent": parent, "values": packed}
        made["md"] = self._codec.pack(get_checkpoint_metadata(job.config, metadata))
        made["ck"] = self._codec.pack(rest)
        cards.add("langgraph.checkpoint", dumps(made))

    def _writes(self, thread: Thread, job: Job, cards: Cards) -> None:
        writes, task_id, task_path = job.arguments
        said = job.config["configurable"]
        ns, checkpoint_id = said.get("checkpoint_ns", ""), said["checkpoint_id"]
        known = self._log.kept(thread, (ns, checkpoint_id)).writes if (ns, checkpoint_id) in thread.cards else {}
        made: list[tuple[int, str, Any]] = []
        for at, (channel, value) in enumerate(writes):
            n = WRITES_IDX_MAP.get(channel, at)
            if n < 0 or (task_id, n) not in known:
                made.append((n, channel, self._pack(thread, cards, value)))
        if made:
            cards.add("langgraph.writes", dumps({"ns": ns, "id": checkpoint_id, "task": task_id, "path": task_path, "w": made}))

    def _edited(self, thread: Thread, job: Job, cards: Cards) -> None:
        if (said := job.arguments[0](thread)) is not None:
            cards.add("langgraph.edit", dumps(said))

    def _edit(self, thread_id: str, edit: Callable[[Thread], dict[str, Any] | None]) -> None:
        """Writes a change of the thread as a whole, if there is something to change. A run that is under way is refused from then on."""
        thread = self._log.chain(thread_id)
        with thread.io:
            self._log.refresh(thread)
            self._log.load(thread)
            if edit(thread) is None:
                return
            thread.give(None)
            thread.seen = thread.position
        self._write(thread, Job("edit", None, (edit,)))

    def _pack(self, thread: Thread, cards: Cards, value: Any, name: Key | None = None) -> dict[str, Any]:
        """Returns a value as it stands in a checkpoint: itself if it is short, or the cards that have it."""
        if self._codec.is_plain and isinstance(value, BaseMessage):
            return {"l": {"base": None, "keep": 0, "add": [self._message(thread, cards, value)[0]], "is": "one"}}
        if self._codec.is_plain and (messages := messages_in(value)):
            return {"l": self._list(thread, cards, messages, name)}
        packed = self._codec.pack(value)
        text = dumps(packed)
        return packed if len(text) <= LONG else {"c": cards.long("langgraph.value", text)}

    def _list(self, thread: Thread, cards: Cards, messages: Sequence[BaseMessage], name: Key | None) -> dict[str, Any]:
        """Writes the messages of a list that are not the same as those that the list had before."""
        before = thread.lists.get(name) if name else None
        refs, known = list[str](), list[BaseMessage | None]()
        n_same, codec = 0, self._codec
        if before:
            for message, named, seen in zip(messages, before.refs, before.messages, strict=False):
                if seen is None:
                    seen = before.messages[n_same] = codec.message_of(self._log.text(thread, cards_of(named)), id_of(named))
                if not is_same(message, seen):
                    break
                n_same += 1
            refs, known = before.refs[:n_same], before.messages[:n_same]
        for message in messages[n_same:]:
            named, seen = self._message(thread, cards, message)
            refs.append(named)
            known.append(seen)
        base, n_base = (before.base, min(before.n_base, n_same)) if before and before.base else (None, 0)
        if name and len(refs) - n_base > max(16, math.isqrt(len(refs))):
            base, n_base = cards.add("langgraph.list", dumps(refs)), len(refs)
        if name:
            thread.keep_list(name, Listed(refs, known, base, n_base))
        return {"base": base, "keep": n_base, "add": refs[n_base:]}

    def _message(self, thread: Thread, cards: Cards, message: BaseMessage) -> tuple[str, BaseMessage]:
        text, message_id, again = self._codec.message(message)
        body = digest(text)
        card_ids = thread.known_body(body)
        if card_ids is None:
            card_ids = cards.long("langgraph.message", text)
            thread.keep_body(body, card_ids)
        return ref(card_ids, message_id), again


def control_of(config: RunnableConfig) -> object:
    """Returns an object that a run of a graph hands to each read and write, also from its subgraphs."""
    return getattr(config.get("configurable", {}).get("__pregel_runtime"), "control", None)


def run_of(thread: Thread, config: RunnableConfig) -> Run | None:
    """Returns the run that a write belongs to, if it belongs to one. A run that is not known here may not write."""
    control, token = control_of(config), config.get("configurable", {}).get(RUN)
    found = thread.runs.get(id(control)) or thread.runs.get(token)
    return found or (None if control is None and token is None else Run((None, 0), is_dead=True))
