"""A graph whose process is killed at every boundary of its nodes and checkpoints, and stopped for longer than its lease."""

from __future__ import annotations

import json
import operator
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from waybill import Waybill
from waybill.langchain import ThreadTaken, WaybillSaver

IS_LONG = bool(os.environ.get("WAYBILL_LANGCHAIN_LONG"))
only_long = pytest.mark.skipif(not IS_LONG, reason="`.ci/sdk langchain` runs it")
#: Seconds of a lease in the test where processes are stopped.
LEASE = 2
TAKEN = 7


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    weighed: Annotated[list[str], operator.add]
    price: int


class Inner(TypedDict):
    price: int


class Boundaries:
    """Counts the boundaries that a process passes, and ends or stops it at one of them."""

    def __init__(self, log: Path, at: int | None, how: int) -> None:
        self.log, self.at, self.how, self.n, self.lock = log, at, how, 0, threading.Lock()

    def __call__(self, name: str) -> None:
        with self.lock:
            with self.log.open("a") as log:
                log.write(name + "\n")
            if self.n == self.at:
                os.kill(os.getpid(), self.how)
            self.n += 1


def build(saver: WaybillSaver, boundary: Boundaries):
    def node(name, does):
        def run(state):
            boundary(f"begin {name}")
            done = does(state)
            boundary(f"end {name}")
            return done

        return run

    @tool
    def stock(item: str) -> str:
        """Says how much there is."""
        boundary(f"begin stock {item}")
        return f"{len(item)} kg"

    def agent(state):
        if not any(one.type == "tool" for one in state["messages"]):
            calls = [{"name": "stock", "args": {"item": item}, "id": f"call-{item}"} for item in ("flour", "salt")]
            return {"messages": [AIMessage("", id="a1", tool_calls=calls)]}
        return {"messages": [AIMessage("There is enough.", id="a2")]}

    inner = StateGraph(Inner)
    inner.add_node("guess", node("guess", lambda state: {"price": 20}))
    inner.add_node("confirm", node("confirm", lambda state: {"price": state["price"] + interrupt("how much more?")}))
    inner.add_sequence([("twice", node("twice", lambda state: {"price": state["price"] * 2}))])
    inner.add_edge(START, "guess")
    inner.add_edge("guess", "confirm")
    inner.add_edge("confirm", "twice")
    graph = StateGraph(State)
    graph.add_node("agent", node("agent", agent))
    graph.add_node("tools", ToolNode([stock]))
    graph.add_node("left", node("left", lambda state: {"weighed": ["left"]}))
    graph.add_node("right", node("right", lambda state: {"weighed": ["right"]}))
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "agent")
    graph.add_conditional_edges(
        "agent", lambda state: ["tools"] if state["messages"][-1].tool_calls else ["left", "right"], ["tools", "left", "right"]
    )
    graph.add_edge("tools", "agent")
    graph.add_edge(["left", "right"], "inner")
    graph.add_edge("inner", END)
    return graph.compile(checkpointer=saver)


def drive(app, config) -> dict:
    """Takes a thread to its end, from wherever it is."""
    while True:
        found = app.get_state(config)
        if found.created_at is None:
            app.invoke({"messages": [HumanMessage("Is there enough?", id="h1")], "weighed": []}, config, durability="sync")
        elif found.interrupts:
            app.invoke(Command(resume=1), config, durability="sync")
        elif found.tasks:  # `next` leaves out tasks whose writes are stored
            app.invoke(None, config, durability="sync")
        else:
            return found.values


class Watched(WaybillSaver):
    boundary: Boundaries

    def put(self, config, checkpoint, metadata, new_versions):
        self.boundary("before put")
        done = super().put(config, checkpoint, metadata, new_versions)
        self.boundary("after put")
        return done

    def put_writes(self, config, writes, task_id, task_path=""):
        super().put_writes(config, writes, task_id, task_path)
        self.boundary("after writes")


def child(waybill: Waybill, thread_id: str, log: Path, at: int | None, how: int = signal.SIGKILL, lease: float = 30) -> int:
    """Runs the thread in a process of its own."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        saver = Watched(waybill, lease_seconds=lease)
        saver.boundary = Boundaries(log, at, how)
        drive(build(saver, saver.boundary), {"configurable": {"thread_id": thread_id}})
        code = 0
    except ThreadTaken:
        code = TAKEN
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left(waybill: Waybill, thread_id: str) -> tuple[str, list[tuple[str, int]]]:
    """Returns the state of a thread, and the namespace and step of each checkpoint."""
    with WaybillSaver(waybill) as saver:
        config = {"configurable": {"thread_id": thread_id}}
        values = build(saver, Boundaries(Path(os.devnull), None, 0)).get_state(config).values
        kept = sorted((one.config["configurable"]["checkpoint_ns"].split(":")[0], one.metadata["step"]) for one in saver.list(config))
    values["messages"] = [one.model_dump() for one in values["messages"]]
    for one in values["messages"]:
        one["id"] = one["id"] if one["type"] != "tool" else None
    return json.dumps(values), kept


def test_a_graph_survives_a_kill_at_every_boundary(waybill: Waybill, tmp_path: Path):
    log = tmp_path / "whole"
    assert ended(child(waybill, "whole", log, None)) == 0
    wanted, boundaries = left(waybill, "whole"), log.read_text().splitlines()
    assert len(wanted[1]) == len(set(wanted[1]))
    n_begun = Counter(one for one in boundaries if one.startswith("begin"))
    for at in range(0, len(boundaries), 1 if IS_LONG else 10):
        name = f"killed-{at}"
        log = tmp_path / name
        assert ended(child(waybill, name, log, at)) == -signal.SIGKILL
        assert ended(child(waybill, name, log, None)) == 0, name
        assert left(waybill, name) == wanted, name
        # Only what was under way when it was killed is done again.
        again = Counter(one for one in log.read_text().splitlines() if one.startswith("begin")) - n_begun
        assert sum(again.values()) <= 2, (name, again)


@only_long
def test_a_process_that_was_stopped_beyond_its_lease_is_refused(waybill: Waybill, tmp_path: Path):
    pids = {name: child(waybill, name, tmp_path / name, 5, how=signal.SIGSTOP, lease=LEASE) for name in ("taken", "alone")}
    for pid in pids.values():
        assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    time.sleep(LEASE * 1.5 + 4)
    assert ended(child(waybill, "taken", tmp_path / "other", None)) == 0
    before = left(waybill, "taken")
    for pid in pids.values():
        os.kill(pid, signal.SIGCONT)
    assert [ended(pid) for pid in pids.values()] == [TAKEN, TAKEN]
    assert left(waybill, "taken") == before


@only_long
def test_of_processes_that_begin_a_thread_at_once_one_runs_it(waybill: Waybill, tmp_path: Path):
    for at in range(3):
        pids = [child(waybill, f"t{at}", tmp_path / f"{at}-{n}", None) for n in range(4)]
        outcomes = [ended(pid) for pid in pids]
        assert set(outcomes) <= {0, TAKEN}, outcomes
        if 0 not in outcomes:  # each was refused by one that began after it
            assert ended(child(waybill, f"t{at}", tmp_path / f"{at}-last", None)) == 0
        _, kept = left(waybill, f"t{at}")
        steps = [step for ns, step in kept if ns == ""]
        assert len(steps) == len(set(steps)), kept
