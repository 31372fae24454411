"""Agents of LangChain: receipts of what the model saw, tools behind a door, and a store."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.types import Command

from waybill.errors import ConfigError
from waybill.langchain import WaybillMiddleware, WaybillSaver, WaybillStore, door
from waybill.testing import Server

ON = {"configurable": {"thread_id": "t"}}
RULES = [
    {"n_results": 0, "reply": {"calls": [{"name": "pay", "arguments": {"to": "baker", "amount": 7}}]}},
    {"n_results": 1, "reply": {"text": "It is done."}},
]


@pytest.fixture(scope="module")
def server(scripted_model, tmp_path_factory):
    url = scripted_model(RULES)
    providers = tmp_path_factory.mktemp("providers") / "providers.yaml"
    providers.write_text(f"provider: {{name: scripted, adapter: openai_chat, base_url: {url}, record: true}}\n")
    found = Server("--providers", str(providers))
    yield found
    found.remove()


@pytest.fixture
def wb(server, monkeypatch):
    for name in ("WAYBILL_API_URL", "WAYBILL_API_KEY", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return server.project()


def paying(log: Path):
    @tool
    def pay(to: str, amount: int) -> str:
        """Pays somebody."""
        with log.open("a") as out:
            out.write(f"{to} {amount}\n")
        return f"paid {amount} to {to}"

    return pay


def agent_of(saver, middleware, pay):
    model = ChatOpenAI(model="scripted", api_key="sk-test", base_url="http://127.0.0.1:9/is-replaced", max_retries=0)
    return create_agent(model, [pay], middleware=[middleware], checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_model_saw_is_on_record(wb, tmp_path, is_async):
    pay = paying(tmp_path / "paid")
    with WaybillSaver(wb) as saver:
        agent = agent_of(saver, WaybillMiddleware(wb, record="scripted", agent="payer"), pay)
        asked = {"messages": [("user", "Pay the baker.")]}
        found = asyncio.run(agent.ainvoke(asked, ON)) if is_async else agent.invoke(asked, ON)
    assert found["messages"][-1].content == "It is done."
    until = time.monotonic() + 20
    while not (turns := [one for one in wb.turns(label="session=t") if one.n_steps == 2]) and time.monotonic() < until:
        time.sleep(0.1)
    turn = wb.turn(turns[0].agent_turn_id)
    assert turn.refresh().status == "recorded"
    assert [len(call.context().messages) for call in turn.calls] == [1, 3]
    assert b"Pay the baker." in turn.calls[0].request_bytes()
    assert wb.replay(turn).is_same


def test_a_tool_behind_the_door_waits_for_a_person(wb, tmp_path):
    log = tmp_path / "paid"
    pay = paying(log)
    middleware = WaybillMiddleware(wb, record="scripted", doors=[door(pay, approval="always")], wait_seconds=0.5)
    with WaybillSaver(wb) as saver:
        agent = agent_of(saver, middleware, pay)
        found = agent.invoke({"messages": [("user", "Pay the baker.")]}, ON, durability="sync")
        assert found["__interrupt__"][0].value["tool"] == "pay"
        assert not log.exists()
        wb.requests()[0].approve(note="fine")
        while "__interrupt__" in found:
            found = agent.invoke(Command(resume=True), ON, durability="sync")
        assert log.read_text() == "baker 7\n"
        assert found["messages"][-2].content == "paid 7 to baker"
        agent.invoke({"messages": [("user", "Pay again.")]}, {"configurable": {"thread_id": "u"}}, durability="sync")
        wb.requests()[0].reject(note="not today")
        found = agent.invoke(Command(resume=True), {"configurable": {"thread_id": "u"}}, durability="sync")
        while "__interrupt__" in found:
            found = agent.invoke(Command(resume=True), {"configurable": {"thread_id": "u"}}, durability="sync")
        told = next(one for one in found["messages"] if isinstance(one, ToolMessage))
        assert told.status == "error"
        assert "not today" in told.content
        assert log.read_text() == "baker 7\n"
    middleware.close()


def test_doors_with_one_name_are_told_apart_and_a_worker_that_ended_is_started_again(wb, tmp_path):
    one = WaybillMiddleware(wb, doors=[door(paying(tmp_path / "paid"))])
    other = WaybillMiddleware(wb, doors=[door(tool(len, description="Counts."))])

    def pay(key):
        return one._doors.call("pay", {"to": "baker", "amount": 7}, key=key, labels=None).wait(20)

    assert pay("a").is_over
    with pytest.raises(ConfigError, match="doors to len have the name 'langchain', as those to pay"):
        other._doors.call("len", {}, key="b", labels=None)
    one._doors._worker.__exit__()
    assert pay("c").is_over
    with pytest.raises(ConfigError, match="before the first call"):
        one._doors.add(door(tool(len, description="Counts.")))
    one.close()


def test_a_tool_behind_the_door_is_called_once_though_the_process_dies(wb, tmp_path):
    log = tmp_path / "paid"

    def run(dies: bool) -> int:
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = 1
        try:
            pay = paying(log)
            middleware = WaybillMiddleware(wb, record="scripted", doors=[door(pay)])
            if dies:
                inner = middleware._pass

                def die(request):
                    inner(request)
                    os.kill(os.getpid(), signal.SIGKILL)

                middleware._pass = die
            saver = WaybillSaver(wb)
            found = agent_of(saver, middleware, pay).invoke(None if log.exists() else {"messages": [("user", "Pay.")]}, ON, durability="sync")
            code = 0 if found["messages"][-1].content == "It is done." else 2
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)

    assert run(dies=True) == -signal.SIGKILL
    assert run(dies=False) == 0
    assert log.read_text() == "baker 7\n"


def test_a_store_keeps_and_finds(wb):
    store = WaybillStore(wb, external=False)
    store.put(("users", "ü/1"), "likes", {"food": "Bread with salt", "rank": 3, "of": {"kind": "taste"}})
    store.put(("users", "ü/1"), "a.json", {"food": "Rice", "rank": 5}, index=False)
    store.put(("users", "2"), "likes", {"food": "Yeast dumplings", "rank": 1}, index=["food"])
    found = store.get(("users", "ü/1"), "likes")
    assert (found.namespace, found.key, found.value["rank"]) == (("users", "ü/1"), "likes", 3)
    store.put(("users", "ü/1"), "likes", {"food": "Bread with butter", "rank": 4, "of": {"kind": "taste"}})
    again = store.get(("users", "ü/1"), "likes")
    assert again.value["food"] == "Bread with butter"
    assert again.created_at == found.created_at < again.updated_at
    assert store.get(("users",), "likes") is None

    odd = {"text": "␛ and \0 and \ud800"}
    store.put(("odd", "␛/\n"), "../\0\ud800␛", odd)
    assert store.get(("odd", "␛/\n"), "../\0\ud800␛").value == odd
    assert store.list_namespaces(prefix=("odd",)) == [("odd", "␛/\n")]
    store.delete(("odd", "␛/\n"), "../\0\ud800␛")

    def keys(*namespace, **more):
        return [(one.namespace[1], one.key) for one in store.search(namespace, **more)]

    assert sorted(keys("users")) == [("2", "likes"), ("ü/1", "a.json"), ("ü/1", "likes")]
    assert keys("users", "2") == [("2", "likes")]
    assert keys("user") == []
    assert keys("users", filter={"rank": {"$gte": 4, "$lt": 5}}) == [("ü/1", "likes")]
    assert keys("users", filter={"of": {"kind": "taste"}}) == [("ü/1", "likes")]
    assert len(keys("users", limit=2)) == 2
    assert len(keys("users", limit=2, offset=2)) == 1
    assert keys("users", query="Who eats butter?") == [("ü/1", "likes")]
    assert keys("users", query="rice") == []
    assert store.list_namespaces() == [("users", "2"), ("users", "ü/1")]
    assert store.list_namespaces(prefix=("users",), suffix=("2",)) == [("users", "2")]
    assert store.list_namespaces(max_depth=1) == [("users",)]
    store.delete(("users", "ü/1"), "likes")
    assert store.get(("users", "ü/1"), "likes") is None
    assert keys("users", query="butter") == []
    assert asyncio.run(store.aget(("users", "2"), "likes")).value["rank"] == 1
