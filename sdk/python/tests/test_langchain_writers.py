"""What a key that is no admin's can put into a thread, and that none of it is read: a checkpoint names the functions that reading it calls."""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from test_langchain import ON, says, stepping

from waybill import Waybill
from waybill.langchain import ThreadTaken, UntrustedWriter, WaybillSaver
from waybill.wire import uuid7

LABELS = {"langgraph": "thread", "langgraph.thread": hashlib.sha256(b"t").hexdigest()[:40]}


def trap(made: Path) -> dict[str, Any]:
    """Returns a value of a checkpoint that makes a folder when it is read."""
    data = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(made)))))
    return {"s": "msgpack", "z": b64encode(zlib.compress(data)).decode()}


def card(kind: str, content: Any) -> dict[str, Any]:
    return {"card_id": uuid7(), "type": f"langgraph.{kind}", "role": "assistant", "content": json.dumps(content)}


def tenure() -> dict[str, Any]:
    return card("tenure", {"thread": "t", "fence": None, "worker": "w", "prev": None})


def checkpoint(done: dict[str, Any]) -> dict[str, Any]:
    ck = {"v": 4, "id": uuid7(), "ts": "2026-01-01", "channel_versions": {"done": 1}, "versions_seen": {}, "updated_channels": None}
    said = {"ns": "", "id": ck["id"], "parent": None, "values": {"done": done}, "md": {"j": {"step": 0}}, "ck": {"j": ck}}
    return card("checkpoint", said)


class Project:
    """A project with a profile whose turns a worker of another program runs, and its keys."""

    def __init__(self, waybill: Waybill, labels: dict[str, str] = LABELS) -> None:
        self.admin, self.labels = waybill, labels
        llm = {"provider": "demo", "model": "demo", "params": {"script": [{"say": "x"}]}}
        profile = {"name": "errand", "worker_target": "errands", "llm_config": llm, "system_prompt_template": "Run errands."}
        waybill.api.apply_resources({"manifests": [{"profile": profile}]})

    def key(self, name: str, scope: str) -> Waybill:
        said = {"name": name, "scope": scope, "bounds": {"targets": ["errands"]} if scope == "worker" else {}}
        return Waybill(self.admin.config.url, self.admin.api.create_key(said).key, self.admin.config.project)

    def turn(self, starter: Waybill, writer: Waybill | None = None, *cards: dict[str, Any]) -> str:
        """Starts a turn whose labels say that it belongs to the thread or run, with cards of the writer."""
        turn_id = starter.api.start_turn({"profile_name": "errand", "instruction": "x", "labels": self.labels}, key=uuid7()).agent_turn_id
        if writer:
            (claimed,) = writer.api.claim_turns({"worker": uuid7(), "target": "errands", "wait_seconds": 5}).turns
            assert claimed.agent_turn_id == turn_id
            fence = claimed.fence.model_dump()
            writer.api.write_step(turn_id, {"fence": fence, "step_id": uuid7(), "cards": cards})
            writer.api.finish_turn(turn_id, {"fence": fence, "status": "success", "cards": [card("end", "") | {"type": "task.deliverable"}]})
        return turn_id


@pytest.mark.parametrize("has_history", [True, False])
def test_a_checkpoint_of_an_operator_and_a_worker_is_not_read(waybill: Waybill, tmp_path: Path, has_history):
    project, made = Project(waybill), tmp_path / "made"
    app = project.key("app", "admin")
    with WaybillSaver(app) as saver, WaybillSaver(app) as known:
        if has_history:
            stepping(known, says("a")).invoke({"done": []}, ON)
            known.release("t")
        turn_id = project.turn(project.key("ada", "operator"), project.key("bob", "worker"), tenure(), checkpoint(trap(made)))
        for one in (saver, known):
            reads = [
                lambda one=one: one.get_tuple(ON),
                lambda one=one: list(one.list(ON)),
                lambda one=one: list(one.list(None)),
                lambda one=one: stepping(one, says("b")).invoke({"done": []}, ON),
                lambda one=one: one.copy_thread("t", "u"),
                lambda one=one: one.delete_thread("t"),
            ]
            for read in reads * 2:
                with pytest.raises(UntrustedWriter, match=rf"turn {turn_id} .* of key:ada"):
                    read()
    assert not made.exists()
    WaybillSaver(app, trusted=["key:ada", "key:bob"]).get_tuple(ON)
    assert made.exists()  # so it would have been called
    made.rmdir()
    # What the error says to do.
    with WaybillSaver(app, ignored_turns=[turn_id]) as saver:
        found = stepping(saver, says("b")).invoke({"done": []}, ON)
        assert found["done"] == (["a", "b"] if has_history else ["b"])
        assert list(saver.list(None))
    assert not made.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_a_card_of_a_worker_is_not_read_whoever_started_its_turn_or_names_it(waybill: Waybill, tmp_path: Path, whole):
    project, made = Project(waybill), tmp_path / "made"
    app, worker = project.key("app", "admin"), project.key("bob", "worker")
    if whole:
        project.turn(app, worker, tenure(), checkpoint(trap(made)))
    else:
        value = card("value", trap(made))
        errand = {"profile_name": "errand", "instruction": "x"}
        turn_id = app.api.start_turn(errand, key=uuid7()).agent_turn_id
        (claimed,) = worker.api.claim_turns({"worker": uuid7(), "target": "errands", "wait_seconds": 5}).turns
        worker.api.write_step(turn_id, {"fence": claimed.fence.model_dump(), "step_id": uuid7(), "cards": [value]})
        theirs = project.key("theirs", "admin")
        project.turn(theirs, theirs, tenure(), checkpoint({"c": [value["card_id"]]}))
    with WaybillSaver(app) as saver:
        for _ in range(2):
            with pytest.raises(UntrustedWriter, match=r"card .* of key:bob"):
                saver.get_tuple(ON)
    assert not made.exists()
    WaybillSaver(app, trusted=["key:bob"]).get_tuple(ON)
    assert made.exists()


def test_a_thread_can_be_blocked_before_it_begins_and_not_for_good(waybill: Waybill):
    project = Project(waybill)
    app, ada = project.key("app", "admin"), project.key("ada", "operator")
    # With the very key of the saver: those of another caller are other keys.
    start = {"profile_name": "errand", "instruction": "x", "labels": LABELS}
    turn_id = ada.api.start_turn(start, key=f"langgraph:{LABELS['langgraph.thread']}:").agent_turn_id
    with WaybillSaver(app) as saver, pytest.raises(UntrustedWriter, match=turn_id):
        stepping(saver, says("a")).invoke({"done": []}, ON)
    with WaybillSaver(app, ignored_turns=[turn_id]) as saver:
        assert stepping(saver, says("a")).invoke({"done": []}, ON)["done"] == ["a"]


def revoke_all(waybill: Waybill) -> None:
    for key in waybill.api.list_keys().items:
        if key.revoked_at is None:
            waybill.api.revoke_key(key.key_id)


def test_admins_read_what_other_admins_wrote_also_after_their_keys_ended(waybill: Waybill):
    project = Project(waybill)
    for name in ("one", "two"):
        with WaybillSaver(project.key(name, "admin")) as saver:
            stepping(saver, says(name)).invoke({"done": []}, ON)
        revoke_all(waybill)
    with WaybillSaver(project.key("three", "admin")) as saver:
        assert saver.get_tuple(ON).checkpoint["channel_values"]["done"] == ["one", "two"]
    # A key that only reads cannot ask for the keys' scopes.
    reader = project.key("reader", "reader")
    with pytest.raises(UntrustedWriter, match="key:"):
        WaybillSaver(reader).get_tuple(ON)
    assert WaybillSaver(reader, trusted=["key:one", "key:two"]).get_tuple(ON)


def test_a_name_counts_with_the_scope_that_it_had_then(waybill: Waybill, monkeypatch):
    monkeypatch.setattr("waybill._adapter.writers.LATE", timedelta(0))
    project = Project(waybill)
    turn_id = project.turn(project.key("app", "operator"))
    revoke_all(waybill)
    app = project.key("app", "admin")
    with WaybillSaver(app) as saver, pytest.raises(UntrustedWriter, match=turn_id):
        saver.get_tuple(ON)
    for done in (["a"], ["a", "a"]):
        with WaybillSaver(app, ignored_turns=[turn_id]) as saver:
            assert stepping(saver, says("a")).invoke({"done": []}, ON)["done"] == done


def test_a_name_that_an_admin_had_is_not_believed_of_another_key(waybill: Waybill, monkeypatch):
    monkeypatch.setattr("waybill._adapter.writers.LATE", timedelta(0))
    project = Project(waybill)
    with WaybillSaver(project.key("app", "admin")) as saver:
        stepping(saver, says("a")).invoke({"done": []}, ON)
    with WaybillSaver(project.key("other", "admin")) as saver:
        assert saver.get_tuple(ON)
        revoke_all(waybill)
        again = WaybillSaver(project.key("third", "admin"))
        saver._log.client, saver._log._writers._client = again.client, again.client
        turn_id = project.turn(project.key("app", "operator"))
        with pytest.raises(UntrustedWriter, match=turn_id):
            saver.get_tuple(ON)


def test_of_two_processes_with_different_keys_that_begin_at_once_one_at_most_goes_on(waybill: Waybill, monkeypatch):
    project, both = Project(waybill), threading.Barrier(2)
    savers = [WaybillSaver(project.key(name, "admin")) for name in ("one", "two")]
    outcomes: list[Any] = []

    def run(saver):
        start = saver.client.api.start_turn

        def together(*arguments, **more):
            both.wait(20)
            try:
                return start(*arguments, **more)
            finally:
                both.wait(20)

        monkeypatch.setattr(saver.client.api, "start_turn", together)
        try:
            outcomes.append(stepping(saver, says("a")).invoke({"done": []}, ON)["done"])
        except ThreadTaken as taken:
            outcomes.append(str(taken))

    threads = [threading.Thread(target=run, args=(one,)) for one in savers]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sum("at the same moment" in one for one in outcomes) >= 1, outcomes
    assert len(outcomes) == 2
    for saver in savers:
        monkeypatch.undo()
        saver.close()
    with WaybillSaver(waybill) as saver:
        assert stepping(saver, says("b")).invoke({"done": []}, ON)["done"] == [*max((one for one in outcomes if one == ["a"]), default=[]), "b"]
