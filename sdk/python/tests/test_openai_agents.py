"""Agents of the OpenAI Agents SDK: sessions that cannot double, receipts of what the models saw, and tools behind a door."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from agents import (
    Agent,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    Session,
    SessionSettings,
    SQLiteSession,
    function_tool,
    set_trace_processors,
    set_tracing_disabled,
)
from agents.testing import ScriptedModel, assistant_message, function_call

from waybill import Waybill
from waybill.errors import ConfigError, WaybillError
from waybill.openai_agents import SessionTaken, StillWaiting, WaybillDoor, WaybillModelProvider, WaybillSession, WaybillTracing
from waybill.openai_agents.recording import HANDED, OPEN
from waybill.testing import Server
from waybill.wire import uuid7

RULES = [
    {"contains": "Buy", "reply": {"calls": [{"name": "transfer_to_buyer", "arguments": {}}]}},
    {"contains": '"buyer"', "reply": {"calls": [{"name": "stock", "arguments": {"item": "flour"}}]}},
    {"contains": "12 kg", "reply": {"text": "There is enough."}},
    {"contains": "Ask", "reply": {"calls": [{"name": "ask_expert", "arguments": {"input": "Is bread baked in Lyon?"}}]}},
    {"contains": "Lyon", "reply": {"text": "Certainly."}},
    {"contains": "Certainly", "reply": {"text": "The expert says so."}},
]
TAKEN = 7


@pytest.fixture(scope="module")
def server(scripted_model, tmp_path_factory):
    url = scripted_model(RULES)
    providers = tmp_path_factory.mktemp("providers") / "providers.yaml"
    one = "provider: {{name: {}, adapter: openai_{}, base_url: {}, record: true}}\n"
    providers.write_text("---\n".join(one.format(name, name, url) for name in ("chat", "responses")))
    found = Server("--providers", str(providers))
    yield found
    found.remove()


@pytest.fixture
def wb(server, monkeypatch):
    for name in ("WAYBILL_API_URL", "WAYBILL_API_KEY", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    set_trace_processors([WaybillTracing()])
    return server.project()


def said(text, role="user"):
    return {"role": role, "content": text}


def texts(items):
    """Returns who said what, in short."""
    return [
        one.get("content") if isinstance(one.get("content"), str) else one.get("output") or one.get("name") or one["content"][0]["text"]
        for one in items
    ]


@function_tool
def stock(item: str) -> str:
    """Says how much there is."""
    return "12 kg"


def until(found, seconds=20):
    ends = time.monotonic() + seconds
    while not (this := found()) and time.monotonic() < ends:
        time.sleep(0.1)
    return this


async def run(agent, input, is_streamed=False, **more):
    if not is_streamed:
        return await Runner.run(agent, input, **more)
    result = Runner.run_streamed(agent, input, **more)
    async for _ in result.stream_events():
        pass
    return result


# Sessions.


def test_a_session_does_what_the_frameworks_own_does(wb, tmp_path):
    odd = [
        said("␛ and \0 and \\u0000 and é"),
        said("\ud800"),
        {"type": "function_call_output", "call_id": "c", "output": "", "n": 1.5, "deep": [{"b": 1, "a": None}]},
    ]

    async def use(make):
        seen = []
        session = make(None)
        assert isinstance(session, Session)
        seen.append(await session.get_items())
        seen.append(await session.pop_item())
        await session.clear_session()
        await session.add_items([])
        await session.add_items([said("one"), said("two")])
        await session.add_items([said("three")])
        seen.append(await make(None).get_items())
        seen.append(await session.get_items(limit=2))
        seen.append(await session.get_items(limit=9))
        seen.append(await session.get_items(limit=0))
        seen.append(await make(SessionSettings(limit=1)).get_items())
        seen.append(await session.pop_item())
        seen.append(await session.pop_item())
        await session.add_items(odd)
        seen.append(await make(None).get_items())
        await session.clear_session()
        seen.append(await make(None).get_items())
        await session.add_items([said("four")])
        seen.append(await make(None).get_items())
        return json.dumps(seen)

    ours = asyncio.run(use(lambda settings: WaybillSession("ü ␛ 1", wb, session_settings=settings)))
    theirs = asyncio.run(use(lambda settings: SQLiteSession("1", tmp_path / "theirs.db", session_settings=settings)))
    assert ours == theirs
    assert asyncio.run(WaybillSession("another", wb).get_items()) == []
    # Nothing stays open, and each item is one card.
    turns = until(lambda: all(one.status == "success" for one in wb.turns()) and list(wb.turns()))
    assert sum(len(one.query_card_ids) - 1 for one in turns) == 7


def test_a_long_session_is_read_whole(wb, monkeypatch):
    monkeypatch.setattr("waybill.openai_agents.session.PAGE", 3)
    session = WaybillSession("long", wb)
    wanted = [said(str(n) * 10) for n in range(1500)] + [said("x" * 2_000_000), said("y" * 2_500_000)]

    async def go():
        await session.add_items(wanted[:1500])
        for one in wanted[1500:]:
            await session.add_items([one])
        for n in range(7):
            await session.add_items([said(f"then {n}")])
        return await WaybillSession("long", wb).get_items()

    assert asyncio.run(go()) == wanted + [said(f"then {n}") for n in range(7)]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("are_two", [False, True])
def test_of_two_runs_at_once_one_is_refused(wb, is_streamed, are_two):
    async def go():
        first = WaybillSession("s", wb)
        second = WaybillSession("s", wb) if are_two else first
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slowly(_):
            begun.set()
            await ended.wait()
            return [assistant_message("slow")]

        slow = asyncio.create_task(run(Agent("slow", model=ScriptedModel([{"responder": slowly}])), "first", is_streamed, session=first))
        await begun.wait()
        await run(Agent("fast", model=ScriptedModel([[assistant_message("fast")]])), "second", is_streamed, session=second)
        ended.set()
        with pytest.raises(SessionTaken, match="start a new run"):
            await slow
        assert texts(await WaybillSession("s", wb).get_items()) == ["first", "second", "fast"]
        # A new run goes on.
        await run(Agent("slow", model=ScriptedModel([[assistant_message("new")]])), "third", is_streamed, session=first)
        assert texts(await second.get_items()) == ["first", "second", "fast", "third", "new"]

    asyncio.run(go())


def test_what_was_read_before_another_has_written_cannot_be_built_on(wb):
    async def go():
        one, other = WaybillSession("s", wb), WaybillSession("s", wb)
        await one.add_items([said("a")])
        assert await other.get_items() == [said("a")]
        await one.add_items([said("b")])
        for write in (other.add_items([said("b")]), other.pop_item(), other.clear_session()):
            with pytest.raises(SessionTaken):
                await write
        assert await other.get_items() == [said("a"), said("b")]
        await other.add_items([said("c")])
        assert await WaybillSession("s", wb).pop_item() == said("c")
        # A run keeps to what it has read first.
        context = RunContextWrapper(None)
        await one.get_items(wrapper=context)
        await one.add_items([said("d")])
        assert await one.get_items(limit=1, wrapper=context) == [said("d")]
        with pytest.raises(SessionTaken):
            await one.add_items([said("e")], wrapper=context)

    asyncio.run(go())


def test_a_run_that_is_resumed_twice_is_stored_once(wb):
    @function_tool(needs_approval=True)
    def pay(to: str) -> str:
        """Pays somebody."""
        return f"paid {to}"

    def answer(call):
        is_paid = call.input[-1].get("type") == "function_call_output"
        return [assistant_message("It is done.")] if is_paid else [function_call("pay", {"to": "baker"}, call_id="same")]

    agent = Agent("payer", model=ScriptedModel([{"responder": answer}] * 9), tools=[pay])

    async def go():
        stopped = await run(agent, "Pay.", session=WaybillSession("s", wb))
        kept = stopped.to_state().to_string()

        async def resume():
            state = await RunState.from_string(agent, kept)
            for one in state.get_interruptions():
                state.approve(one)
            return await run(agent, state, session=WaybillSession("s", wb))

        assert (await resume()).final_output == "It is done."
        with pytest.raises(SessionTaken, match="same has been answered"):
            await resume()
        wanted = ["Pay.", "pay", "paid baker", "It is done."]
        assert texts(await WaybillSession("s", wb).get_items()) == wanted
        # A model may use the id of a call again.
        call = {"type": "function_call", "call_id": "same", "name": "pay", "arguments": "{}"}
        await WaybillSession("s", wb).add_items([call, {"type": "function_call_output", "call_id": "same", "output": "again"}])
        assert texts(await WaybillSession("s", wb).get_items()) == [*wanted, "pay", "again"]

    asyncio.run(go())
    with pytest.raises(ConfigError, match="needs_approval"):
        WaybillDoor(wb)(pay)


def test_a_turn_of_another_program_with_the_label_of_a_session_is_ignored(wb):
    session = WaybillSession("s", wb)
    asyncio.run(session.add_items([said("a")]))
    for more in ({}, {"openai-agents.session.n": "-1"}, {"openai-agents.session.n": "x"}):
        labels = {"openai-agents.session": session._label} | more
        wb.api.start_turn({"profile_name": "openai-agents-session", "instruction": "x", "labels": labels}, key=uuid7())
        assert asyncio.run(WaybillSession("s", wb).get_items()) == asyncio.run(session.get_items()) == [said("a")]


def test_a_session_belongs_to_keys_of_one_name(wb):
    keys = [wb.api.create_key({"name": name, "scope": "admin"}).key for name in ("one", "other")]
    one, other = (WaybillSession("s", Waybill(wb.config.url, key, wb.config.project)) for key in keys)

    async def go():
        await one.add_items([said("a")])
        assert await other.get_items() == [said("a")]
        with pytest.raises(WaybillError, match="key:one"):
            await other.add_items([said("b")])

    asyncio.run(go())


def test_a_request_is_answered_once(wb):
    session = WaybillSession("s", wb)

    async def go():
        assert await session.once("1", "one") == [said("one")]
        await session.add_items([said("one")])
        assert await WaybillSession("s", wb).once("1", "one") == []
        await session.add_items([said("two", "assistant")])
        assert await WaybillSession("s", wb).once("1", "one") is None
        assert await session.once("2", "three") == [said("three")]
        await session.add_items([said("three")])
        # It cannot be answered any more.
        assert await WaybillSession("s", wb).once("1", "one") is None
        assert await WaybillSession("s", wb).once("2", "three") == []
        # A run builds on what `once` has seen, also if another one has answered before it begins.
        late = WaybillSession("s", wb)
        assert await late.once("2", "three") == []
        await session.add_items([said("four", "assistant")])
        with pytest.raises(SessionTaken):
            await run(Agent("late", model=ScriptedModel([])), [], session=late)
        assert await late.once("2", "three") is None
        await session.pop_item()
        await session.pop_item()
        assert await WaybillSession("s", wb).once("2", "three") == [said("three")]

    asyncio.run(go())


def test_a_write_that_is_sent_twice_is_stored_once(wb, monkeypatch):
    session = WaybillSession("s", wb)
    asyncio.run(session.add_items([said("a")]))
    from waybill.openai_agents.session import SERVERS

    api = SERVERS[wb.config.url, wb.config.project, wb.config.key, os.getpid()].client.api
    start = type(api).start_turn

    def twice(self, body, **more):
        start(self, body, **more)
        return start(self, body, **more)

    monkeypatch.setattr(type(api), "start_turn", twice)
    asyncio.run(session.add_items([said("b")]))
    assert asyncio.run(WaybillSession("s", wb).get_items()) == [said("a"), said("b")]


#: Two tools run at once, and each boundary has a number of its own.
BOUNDARY = threading.Lock()


class Killed(WaybillSession):
    """Ends its process at one of the boundaries of its writes."""

    log: Path
    at: int | None

    def boundary(self, name):
        with BOUNDARY:
            n = len(self.log.read_text().splitlines()) if self.log.exists() else 0
            with self.log.open("a") as log:
                log.write(name + "\n")
            if n == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def _start(self, op, texts, request):
        self.boundary(f"before {op}")
        done = super()._start(op, texts, request)
        self.boundary(f"after {op}")
        return done


def child(work):
    """Calls a function in a process of its own. Its name is the exit code."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    except SessionTaken:
        code = TAKEN
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crew(boundary):
    """Returns two agents. What their model says depends on what is in the conversation alone, so that a run can go on at any point."""

    @function_tool
    def weigh(item: str) -> str:
        """Says how much there is."""
        boundary(f"in weigh {item}")
        return f"{len(item)} kg"

    def answer(call):
        boundary("in model")
        outputs = [one for one in call.input if one.get("type") == "function_call_output"]
        if not outputs:
            return [function_call("transfer_to_buyer", {}, call_id="h")]
        if len(outputs) == 1:
            return [function_call("weigh", {"item": item}, call_id=item) for item in ("flour", "salt")]
        return [assistant_message("There is enough.")]

    model = ScriptedModel([{"responder": answer}] * 9)
    buyer = Agent("buyer", model=model, tools=[weigh])
    boss = Agent("boss", model=model, handoffs=[buyer])
    buyer.handoffs = [boss]
    return boss, buyer


def answer_once(wb, name, log, at, is_streamed):
    """Answers the request in the session, from wherever it is."""
    set_tracing_disabled(True)
    session = Killed(name, wb)
    session.log, session.at = log, at
    boss, buyer = crew(session.boundary)

    async def go():
        left = await session.once("request-1", "Is there enough?")
        if left is not None:
            handed = any(one.get("call_id") == "h" for one in await session.get_items())
            await run(buyer if handed else boss, left, is_streamed, session=session)

    asyncio.run(go())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_each_item_is_there_once_wherever_the_process_is_killed(wb, tmp_path, is_streamed):
    def left(name):
        items = asyncio.run(WaybillSession(name, wb).get_items())
        return texts(items)

    log = tmp_path / "whole"
    assert ended(child(lambda: answer_once(wb, "whole", log, None, is_streamed))) == 0
    boundaries = log.read_text().splitlines()
    wanted = left("whole")
    assert wanted[0] == "Is there enough?"
    assert Counter(wanted)["There is enough."] == 1
    assert len(boundaries) == 13, boundaries
    # Half of the boundaries with a stream, and the others without.
    for at in range(is_streamed, len(boundaries), 2):
        name = f"killed-{at}"
        log = tmp_path / name
        assert ended(child(lambda name=name, log=log, at=at: answer_once(wb, name, log, at, is_streamed))) == -signal.SIGKILL
        for _ in range(2 if at < 2 else 1):  # the second finds the answer
            assert ended(child(lambda name=name, log=log: answer_once(wb, name, log, None, is_streamed))) == 0, name
        assert left(name) == wanted, name


def test_of_processes_that_answer_at_once_one_does(wb, tmp_path):
    pids = [child(lambda n=n: answer_once(wb, "s", tmp_path / str(n), None, False)) for n in range(4)]
    outcomes = [ended(pid) for pid in pids]
    assert set(outcomes) <= {0, TAKEN}, outcomes
    assert ended(child(lambda: answer_once(wb, "s", tmp_path / "last", None, False))) == 0
    items = texts(asyncio.run(WaybillSession("s", wb).get_items()))
    assert len(items) == 8, items
    assert Counter(items)["Is there enough?"] == Counter(items)["There is enough."] == 1


# Receipts.


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("record", ["chat", "responses"])
def test_what_the_models_saw_is_on_record_and_who_asked_whom(wb, record, is_streamed):
    buyer = Agent("buyer", instructions="You buy.", tools=[stock])
    expert = Agent("Expertin für Brot", instructions="You know.")
    boss = Agent("boss", instructions="You lead.", handoffs=[buyer], tools=[expert.as_tool("ask_expert", "Asks.")])
    provider = WaybillModelProvider(record, wb, api_key="sk-test", use_responses=record == "responses", max_retries=0)
    config = RunConfig(model_provider=provider, model="scripted", group_id="order-1")

    async def go():
        found = await run(boss, "Buy flour.", is_streamed, session=WaybillSession("order-1", wb), run_config=config)
        assert (found.final_output, found.last_agent.name) == ("There is enough.", "buyer")
        assert (await run(boss, "Ask somebody.", is_streamed, run_config=config)).final_output == "The expert says so."

    asyncio.run(go())
    turns = until(lambda: [*wb.turns(label="session=order-1")] if sum(one.n_steps for one in wb.turns(label="session=order-1")) == 6 else [])
    named = {one.agent_turn_id: one.profile_name for one in turns}
    above = {(one.profile_name, one.n_steps, named.get(one.parent_agent_turn_id)) for one in turns}
    assert above == {("boss", 1, None), ("buyer", 2, "boss"), ("boss", 2, None), ("Expertin f%C3%BCr Brot", 1, "boss")}
    by_trace = Counter(one.trace_id for one in turns)
    assert sorted(by_trace.values()) == [2, 2]
    for one in turns:
        turn = wb.turn(one.agent_turn_id)
        assert turn.refresh().status == "recorded"
        assert wb.replay(turn).is_same
    bought = next(wb.turn(one.agent_turn_id) for one in turns if one.profile_name == "buyer")
    assert [len(call.context().messages) for call in bought.calls] == [4, 6]
    assert b"Buy flour." in bought.calls[0].request_bytes()
    assert (OPEN, HANDED) == ({}, {})


# Tools.


def paying(log, door, **more):
    @function_tool
    def pay(to: str, amount: int) -> str:
        """Pays somebody."""
        with log.open("a") as out:
            out.write(f"{to} {amount}\n")
        return f"paid {amount} to {to}"

    def answer(call):
        if isinstance(call.input[-1].get("output"), str):
            return [assistant_message(call.input[-1]["output"])]
        return [function_call("pay", {"to": "baker", "amount": 7}, call_id=os.urandom(4).hex())]

    return Agent("payer", model=ScriptedModel([{"responder": answer}] * 9), tools=[door(pay, **more)])


def test_a_tool_behind_the_door_waits_for_a_person(wb, tmp_path):
    log, door = tmp_path / "paid", WaybillDoor(wb, wait_seconds=0.5)
    agent, session = paying(log, door, approval="always"), WaybillSession("order-1", wb)
    with pytest.raises(StillWaiting):
        asyncio.run(run(agent, "Pay.", session=session))
    assert not log.exists()
    assert len(wb.requests()) == 1
    with pytest.raises(StillWaiting):
        asyncio.run(run(agent, [], session=session))
    assert len(wb.requests()) == 1
    wb.requests()[0].approve(note="fine")
    door.wait_seconds = None
    assert asyncio.run(run(agent, [], session=session)).final_output == "paid 7 to baker"
    assert log.read_text() == "baker 7\n"

    async def reject():
        task = asyncio.create_task(run(agent, "Pay again.", session=session))
        while not (asked := await asyncio.to_thread(wb.requests)):
            await asyncio.sleep(0.1)
        await asyncio.to_thread(asked[0].reject, note="not today")
        return (await task).final_output

    assert "not today" in asyncio.run(reject())
    assert log.read_text() == "baker 7\n"
    door.close()


def test_a_tool_behind_the_door_is_called_once_though_the_process_dies(wb, tmp_path):
    log = tmp_path / "paid"

    def pay(dies):
        door, session = WaybillDoor(wb), WaybillSession("order-1", wb)
        agent = paying(log, door)
        if dies:
            call = door._call

            async def die(*arguments):
                await call(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            door._call = die

        async def go():
            left = await session.once("request-1", "Pay.")
            assert (await run(agent, left, session=session)).final_output == "paid 7 to baker"

        asyncio.run(go())

    assert ended(child(lambda: pay(True))) == -signal.SIGKILL
    assert ended(child(lambda: pay(False))) == 0
    assert log.read_text() == "baker 7\n"
