"""Checkpoints of LangGraph: its own conformance suite, and what that leaves out: two writers on one thread."""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import threading
import time
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from waybill import Waybill, WaybillError
from waybill.langchain import ThreadTaken, WaybillSaver

ON = {"configurable": {"thread_id": "t"}}


class ElsewhereRead(WaybillSaver):
    """Reads all that it returns as another process would: with nothing in memory."""

    def get_tuple(self, config):
        with WaybillSaver(self.client) as other:
            return other.get_tuple(config)

    def list(self, config, **more):
        with WaybillSaver(self.client) as other:
            yield from other.list(config, **more)


@pytest.mark.parametrize("kind", [WaybillSaver, ElsewhereRead] if os.environ.get("WAYBILL_LANGCHAIN_LONG") else [WaybillSaver])
def test_it_conforms(waybill: Waybill, kind):
    @checkpointer_test(name=kind.__name__)
    async def made():
        with kind(waybill) as saver:
            yield saver

    report = asyncio.run(validate(made))
    failures = {name: one.failures for name, one in report.results.items() if not one.passed}
    assert not failures, failures
    assert report.passed_all()


class Reversed:
    """A cipher that anyone can read, but not by accident."""

    def encrypt(self, plaintext):
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername, ciphertext):
        return ciphertext[::-1]


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def stepping(saver, *steps):
    """Returns a graph of nodes, one after the other."""
    graph = StateGraph(State)
    graph.add_sequence([(f"n{at}", step) for at, step in enumerate(steps)])
    graph.add_edge(START, "n0")
    return graph.compile(checkpointer=saver)


def says(text):
    return lambda state: {"done": [text]}


def test_of_two_processes_on_one_thread_one_is_refused(waybill: Waybill):
    """langgraph#8796."""
    with WaybillSaver(waybill) as one, WaybillSaver(waybill) as two:
        begun, go_on = threading.Event(), threading.Event()

        def slow(state):
            begun.set()
            assert go_on.wait(30)
            return {"done": ["one"]}

        refused: list[BaseException] = []

        def first():
            with pytest.raises(ThreadTaken) as caught:
                stepping(one, says("start"), slow, says("never")).invoke({"done": []}, ON, durability="sync")
            refused.append(caught.value)

        running = threading.Thread(target=first)
        running.start()
        assert begun.wait(30)
        found = stepping(two, says("two")).invoke({"done": []}, ON, durability="sync")
        go_on.set()
        running.join()
        assert "taken it over" in str(refused[0])
        assert found["done"][-1] == "two"
        kept = stepping(two, says("two")).get_state(ON).values
        assert kept == found
        # It may begin again, from what the other one has left.
        assert stepping(one, says("again")).invoke({"done": []}, ON)["done"] == [*kept["done"], "again"]


@pytest.mark.parametrize("has_history", [True, False])
def test_of_two_runs_in_one_process_one_is_refused(waybill: Waybill, has_history):
    with WaybillSaver(waybill) as saver:
        if has_history:
            stepping(saver, says("before")).invoke({"done": []}, ON)
        both = threading.Barrier(2)
        outcomes: list[Any] = []

        def meet(state):
            both.wait(20)
            return {"done": ["met"]}

        def run():
            try:
                outcomes.append(stepping(saver, meet, says("end")).invoke({"done": []}, ON, durability="sync"))
            except (ThreadTaken, threading.BrokenBarrierError) as error:
                both.abort()
                outcomes.append(error)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sum(isinstance(one, ThreadTaken) for one in outcomes) >= 1, outcomes
        done = stepping(saver, says("x")).get_state(ON).values["done"]
        assert done.count("met") <= 1, done


def test_what_was_read_before_another_process_wrote_cannot_be_built_on(waybill: Waybill):
    with WaybillSaver(waybill) as one, WaybillSaver(waybill) as two:
        stepping(one, says("a")).invoke({"done": []}, ON)
        one.release("t")
        read = two.get_tuple(ON)
        stepping(one, says("b")).invoke({"done": []}, ON)
        with pytest.raises(ThreadTaken, match="has written to it since"):
            two.put_writes(read.config, [("done", ["c"])], "task")


def test_a_run_that_let_go_of_its_thread_cannot_go_on_after_another_process(waybill: Waybill):
    with WaybillSaver(waybill) as one, WaybillSaver(waybill) as two:

        def slow(state):
            one.release("t")  # as after `idle_seconds`
            stepping(two, says("two")).invoke({"done": []}, ON, durability="sync")
            one.get_tuple(ON)  # another part of this process looks at the thread
            return {"done": ["one"]}

        with pytest.raises(ThreadTaken, match="has written to it since"):
            stepping(one, says("start"), slow).invoke({"done": []}, ON, durability="sync")
        assert one.get_tuple(ON).checkpoint["channel_values"]["done"] == ["start", "two"]


def test_a_run_that_let_go_of_its_thread_goes_on_if_nobody_else_came(waybill: Waybill):
    with WaybillSaver(waybill) as saver:

        def slow(state):
            saver.release("t")
            saver.get_tuple(ON)
            return {"done": ["slow"]}

        assert stepping(saver, slow, slow, says("end")).invoke({"done": []}, ON, durability="sync")["done"] == ["slow", "slow", "end"]


def test_a_run_is_refused_also_if_the_thread_was_read_very_often_since(waybill: Waybill):
    with WaybillSaver(waybill) as saver:

        def slow(state):
            stepping(saver, says("other")).invoke({"done": []}, ON, durability="sync")
            for n in range(1100):
                saver._log.chain("t").begin(f"a read {n}", None)
            return {"done": ["slow"]}

        with pytest.raises(ThreadTaken, match="another run"):
            stepping(saver, says("start"), slow).invoke({"done": []}, ON, durability="sync")


def test_a_write_that_failed_leaves_nothing_that_others_trip_over(waybill: Waybill, monkeypatch):
    message = [HumanMessage("a long message " * 50)]
    with WaybillSaver(waybill) as saver, WaybillSaver(waybill) as other:

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(saver.client.api, "write_step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                conversation(Plain, saver).update_state(ON, {"messages": message}, as_node="ask")
        conversation(Plain, saver).update_state(ON, {"messages": message}, as_node="ask")
        begun = time.monotonic()
        assert [one.content for one in other.get_tuple(ON).checkpoint["channel_values"]["messages"]] == [message[0].content]
        stepping(other, says("other")).invoke({"done": []}, ON)
        assert time.monotonic() - begun < 10  # nobody waits for the end of a lease


def fold(state, writes):
    for write in writes:
        state = add_messages(state or [], write)
    return state or []


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    answer: str


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(fold, snapshot_frequency=7)]
    notes: Annotated[list[str], operator.add]
    answer: str


class Inner(TypedDict):
    answer: str


def conversation(state, saver):
    """A graph with parallel nodes, a subgraph, an interrupt, and messages of several kinds."""

    def ask(found):
        call = {"name": "look", "args": {"n": len(found["messages"])}, "id": "c1"}
        return {"messages": [AIMessage("€ let me look\x00", tool_calls=[call], response_metadata={"x": 1.5})]}

    def look(found):
        return {"messages": [ToolMessage("seen", tool_call_id="c1", artifact={"raw": b"\x01"})], "notes": [f"looked at {found['n']}"]}

    def decide(found):
        return {"answer": interrupt("go on?")}

    inner = StateGraph(Inner)
    inner.add_node("decide", decide)
    inner.add_node("after", lambda found: {"answer": found["answer"] + "!"})
    inner.add_edge(START, "decide")
    inner.add_edge("decide", "after")
    graph = StateGraph(state)
    graph.add_node("ask", ask)
    graph.add_node("look", look)
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", lambda found: [Send("look", {"n": n}) for n in range(3)], ["look"])
    graph.add_edge("look", "inner")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize(("state", "tail"), [(Plain, 200), (Plain, 6), (Delta, 6)])
def test_another_process_goes_on_with_a_conversation(waybill: Waybill, monkeypatch, state, tail):
    monkeypatch.setattr("waybill._adapter.log.TAIL", tail)
    for n in range(4):
        with WaybillSaver(waybill) as saver:
            app = conversation(state, saver)
            found = app.invoke({"messages": [HumanMessage(f"question {n}")]}, ON, durability="sync")
            assert found["__interrupt__"][0].value == "go on?"
        with WaybillSaver(waybill) as saver:
            app = conversation(state, saver)
            found = app.invoke(Command(resume=f"yes {n}"), ON, durability="sync")
    assert len(found["messages"]) == 4 * 5
    assert found["messages"][1].content == "€ let me look\x00"
    assert found["messages"][2].artifact == {"raw": b"\x01"}
    assert found["notes"] == ["looked at 0", "looked at 1", "looked at 2"] * 4
    assert found["answer"] == "yes 3!"
    with WaybillSaver(waybill) as saver:
        app = conversation(state, saver)
        history = list(app.get_state_history(ON))
        assert history[0].values["messages"] == found["messages"]
        assert [one.metadata["step"] for one in history] == sorted((one.metadata["step"] for one in history), reverse=True)
        # A fork from the middle, and the branch that was left is still there.
        middle = next(one for one in history if one.next == ("ask",) and len(one.values["messages"]) == 11)
        forked = app.invoke(None, middle.config, durability="sync")
        assert len(forked["messages"]) == 15
        assert len(app.get_state(history[0].config).values["messages"]) == 20
    with WaybillSaver(waybill) as saver:
        saver.copy_thread("t", "u")
        on_copy = {"configurable": {"thread_id": "u"}}
        assert conversation(state, saver).get_state(on_copy).values["messages"] == forked["messages"]
        saver.prune(["u"])
        assert len(list(saver.list(on_copy | {"configurable": {"thread_id": "u", "checkpoint_ns": ""}}))) == 1
        saver.delete_thread("t")
        assert saver.get_tuple(ON) is None
    with WaybillSaver(waybill) as saver:
        app = conversation(state, saver)
        assert app.get_state(ON).values == {}
        assert app.get_state(on_copy).values["messages"] == forked["messages"]
        assert len(app.invoke(Command(resume="yes"), on_copy)["messages"]) == 15


def test_what_is_read_of_a_long_thread_stays_in_order_when_another_process_goes_on(waybill: Waybill, monkeypatch):
    monkeypatch.setattr("waybill._adapter.log.TAIL", 2)
    with WaybillSaver(waybill) as reader, WaybillSaver(waybill) as saver:
        for n in range(3):
            stepping(saver, says(f"{n}")).invoke({"done": []}, ON)
            saver.release("t")
        newest = reader.get_tuple(ON).config["configurable"]["checkpoint_id"]
        # This turn has no checkpoint.
        saver.put_writes(saver.get_tuple(ON).config, [("done", ["x"])], "task")
        assert reader.get_tuple(ON).config["configurable"]["checkpoint_id"] == newest


def test_of_a_long_thread_only_what_was_used_last_is_kept_in_memory(waybill: Waybill, monkeypatch):
    monkeypatch.setattr("waybill.langchain._thread.MOST_RECENT", 2)
    monkeypatch.setattr("waybill.langchain._thread.MOST_LISTS", 1)
    with WaybillSaver(waybill) as saver, WaybillSaver(waybill) as other:
        saver._shared.log.texts._most = 0  # each text is read again
        app, held = conversation(Plain, saver), saver._log.chain("t")

        def let_go():
            with monkeypatch.context() as patch:
                patch.setattr(saver._shared, "_idle_seconds", 0)
                saver._shared.beat()
            with held.io:  # the saver's own heart may have begun it
                assert held.held is None
                assert not held.cards
                assert not held.lists

        app.invoke({"messages": [HumanMessage("question")]}, ON, durability="sync")
        before = app.get_state(ON).values
        let_go()
        assert app.get_state(ON).values == before
        app.invoke(Command(resume="yes"), ON, durability="sync")
        assert len(held.recent) <= 2
        assert len(held.lists) <= 1
        history = app.get_state_history(ON)
        found = [next(history)]
        let_go()  # while the history is being read
        found += history
        monkeypatch.setattr("waybill.langchain._thread.MOST_RECENT", 1000)
        for one, known in zip(found, conversation(Plain, other).get_state_history(ON), strict=True):
            assert (one.values, one.interrupts, [task.result for task in one.tasks]) == (
                known.values,
                known.interrupts,
                [task.result for task in known.tasks],
            )
        # Each message was stored once, as if all had been kept. Those of the tool are not JSON, and may get their id after they were first written.
        cards = [one for turn in waybill.turns(label="langgraph=thread") for one in waybill.turn(turn.agent_turn_id).cards()]
        assert sum(one.metadata.type == "langgraph.message" and '{"m":' in one.content for one in cards) == 2


def test_a_graph_runs_in_an_event_loop(waybill: Waybill):
    async def run():
        with WaybillSaver(waybill) as saver:
            app = conversation(Plain, saver)
            await app.ainvoke({"messages": [HumanMessage("question")]}, ON)
            return await app.ainvoke(Command(resume="yes"), ON), [one async for one in app.aget_state_history(ON)]

    found, history = asyncio.run(run())
    assert len(found["messages"]) == 5
    assert len(history) > 4


def test_a_message_that_is_changed_in_place_is_stored_again(waybill: Waybill):
    def change(state):
        state["messages"][0].content = "changed"
        return {"messages": [state["messages"][0], AIMessage("x")]}

    with WaybillSaver(waybill) as saver:
        graph = StateGraph(Plain)
        graph.add_node("change", change)
        graph.add_edge(START, "change")
        graph.compile(checkpointer=saver).invoke({"messages": [HumanMessage("original", id="m")]}, ON, durability="sync")
    with WaybillSaver(waybill) as saver:
        kept = saver.get_tuple(ON).checkpoint["channel_values"]["messages"]
        assert [one.content for one in kept] == ["changed", "x"]


def test_a_thread_that_a_run_has_read_is_not_forgotten(waybill: Waybill, monkeypatch):
    monkeypatch.setattr("waybill._adapter.log.MOST_IDLE", 2)
    with WaybillSaver(waybill) as saver:

        def reads_others(state):
            for n in range(5):
                saver.get_tuple({"configurable": {"thread_id": f"other {n}"}})
            return {"done": ["a"]}

        assert stepping(saver, reads_others).invoke({"done": []}, ON, durability="exit")["done"] == ["a"]
        assert stepping(saver, says("b")).invoke({"done": []}, ON)["done"] == ["a", "b"]
        assert set(saver._log._known) == {"other 3", "other 4", "t"}


def test_a_thread_is_read_whole_though_a_request_failed(waybill: Waybill, monkeypatch):
    for text in ("a", "b"):
        with WaybillSaver(waybill) as saver:
            stepping(saver, says(text)).invoke({"done": []}, ON)
    n_all = len(list(WaybillSaver(waybill).list(ON)))
    for n in range(3):
        with WaybillSaver(waybill) as saver:
            list_cards, count = saver.client.api.list_cards, itertools.count()

            def cut(*arguments, n=n, list_cards=list_cards, count=count, **more):
                if next(count) == n:
                    raise KeyboardInterrupt
                return list_cards(*arguments, **more)

            monkeypatch.setattr(saver.client.api, "list_cards", cut)
            with pytest.raises(KeyboardInterrupt):
                list(saver.list(ON))
            assert saver.get_tuple(ON)
            assert len(list(saver.list(ON))) == n_all


def test_a_message_that_was_erased_is_named(waybill: Waybill):
    graph = StateGraph(Plain)
    graph.add_node("n", lambda _: {"messages": [AIMessage("secret")]})
    graph.add_edge(START, "n")
    with WaybillSaver(waybill) as saver:
        graph.compile(checkpointer=saver).invoke({"messages": [HumanMessage("hello")]}, ON)
    cards = [one for turn in waybill.turns() for one in waybill.cards_of(turn.output_box_id)]
    card_id = next(one.card_id for one in cards if one.metadata.type == "langgraph.message" and "secret" in one.content)
    waybill.api.delete_card(card_id, reason="asked for")
    with WaybillSaver(waybill) as saver, pytest.raises(WaybillError, match=f"thread t: card {card_id} is gone.*erasure"):
        saver.get_tuple(ON)


def test_what_a_graph_does_with_a_checkpoint_that_it_read_changes_nothing(waybill: Waybill):
    with WaybillSaver(waybill) as saver:
        stepping(saver, says("a")).invoke({"done": []}, ON)
        read = saver.get_tuple(ON)
        read.checkpoint["versions_seen"]["n0"] = {}
        read.checkpoint["channel_values"]["done"].append("b")
        again = saver.get_tuple(ON).checkpoint
        assert again["versions_seen"]["n0"]
        assert again["channel_values"]["done"] == ["a"]


def test_values_larger_than_a_request_are_stored_in_pieces(waybill: Waybill):
    def large(state):
        return {"messages": [AIMessage("€" * 900_000), AIMessage("short")], "notes": ["x" * 3_000_000], "answer": "y"}

    with WaybillSaver(waybill) as saver:
        graph = StateGraph(Plain)
        graph.add_node("large", large)
        graph.add_edge(START, "large")
        found = graph.compile(checkpointer=saver).invoke({"messages": []}, ON, durability="sync")
    with WaybillSaver(waybill) as saver:
        kept = saver.get_tuple(ON).checkpoint["channel_values"]
        assert [kept[name] for name in found] == list(found.values())


@pytest.mark.parametrize("text", ["␛", "a␛0000\0", "\ud800", "../\n,=😀"])
def test_any_text_can_be_a_value_and_the_name_of_a_thread(waybill: Waybill, text):
    on = {"configurable": {"thread_id": text}}
    with WaybillSaver(waybill) as saver:
        stepping(saver, says(text)).invoke({"done": []}, on)
    with WaybillSaver(waybill) as saver:
        assert stepping(saver, says(text)).get_state(on).values["done"] == [text]
        saver._shared._start(saver._log.chain(text), next(iter(saver._log.chain(text).tenures.values())))
        # Also while its newest turn has nothing in it yet.
        assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {text}


def test_a_saver_leaves_no_profile(waybill: Waybill):
    saver = WaybillSaver(waybill)
    for _ in range(2):
        stepping(saver, says("a")).invoke({"done": []}, ON)
        saver.close()
        assert waybill.api.list_resources() == []


def test_an_operator_stops_a_thread(waybill: Waybill):
    def stop(state):
        turn = next(iter(waybill.turns(label="langgraph=thread")))
        turn = waybill.turn(turn.agent_turn_id)
        turn.stop("enough")
        return {"done": ["stopping"]}

    with WaybillSaver(waybill) as saver, pytest.raises(ThreadTaken, match="enough"):
        stepping(saver, stop, says("end")).invoke({"done": []}, ON, durability="sync")
    with WaybillSaver(waybill) as saver:
        assert saver.get_tuple(ON).checkpoint["channel_values"]["done"] == ["stopping"]


def test_values_can_be_encrypted(waybill: Waybill):
    serde = EncryptedSerializer(Reversed())
    with WaybillSaver(waybill, serde=serde) as saver:
        stepping(saver, says("secret")).invoke({"done": []}, ON)
        for turn in waybill.turns(label="langgraph=thread"):
            for one in waybill.turn(turn.agent_turn_id).cards():
                assert "secret" not in str(one.content)
    with WaybillSaver(waybill, serde=serde) as saver:
        assert saver.get_tuple(ON).checkpoint["channel_values"]["done"] == ["secret"]
