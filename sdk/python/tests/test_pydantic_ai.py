"""Agents of Pydantic AI whose process is killed, stopped, or started twice; receipts; approvals; and the framework's own models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError, RetryModelRequest, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.toolsets import FunctionToolset
from test_langchain_writers import Project

from waybill import Waybill, errors
from waybill.pydantic_ai import RunChanged, RunTaken, UntrustedWriter, WaybillDurability
from waybill.pydantic_ai._run import DurableRun, Record
from waybill.testing import Server
from waybill.wire import uuid7

IS_LONG = bool(os.environ.get("WAYBILL_PYDANTIC_AI_LONG"))
TAKEN = 7
NOWHERE = "http://127.0.0.1:9/is-replaced"
SAID = "There is enough now."


def calls(*names, **arguments):
    return {"calls": [{"name": name, "arguments": {"item": item}} for name, item in names]} if names else {"calls": [arguments]}


RULES = [
    {"n_results": 0, "reply": calls(("stock", "flour"), ("stock", "salt"))},
    {"n_results": 2, "reply": calls(("buy", "flour"))},
    {"n_results": 3, "reply": {"text": SAID}},
]


@pytest.fixture(scope="module")
def server(scripted_model, tmp_path_factory):
    url = scripted_model(RULES)
    providers = tmp_path_factory.mktemp("providers") / "providers.yaml"
    providers.write_text(
        f"provider: {{name: openai, adapter: openai_chat, base_url: {url}, record: true}}\n---\n"
        f"provider: {{name: anthropic, adapter: anthropic_messages, base_url: {url}, record: true}}\n"
    )
    found = Server("--providers", str(providers))
    found.model_url = url
    for kind in ("openai", "anthropic"):  # so that the processes that are forked have all modules
        build(WaybillDurability(found.project()), kind, "first", print)
    yield found
    found.remove()


@pytest.fixture
def wb(server, monkeypatch):
    for name in ("WAYBILL_API_URL", "WAYBILL_API_KEY", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return server.project()


def n_asked(server, name: str) -> int:
    """Returns how many requests the scripted model server got for the model of a run."""
    return sum(one["model"] == f"m-{name}" for one in httpx2.get(f"{server.model_url.removesuffix('/v1')}/ledger").json()["entries"])


def model_of(kind: str, name: str):
    if kind == "anthropic":
        return AnthropicModel(f"m-{name}", provider=AnthropicProvider(base_url=NOWHERE, api_key="sk-test"))
    of = OpenAIResponsesModel if kind == "responses" else OpenAIChatModel
    return of(f"m-{name}", provider=OpenAIProvider(base_url=NOWHERE, api_key="sk-test"))


class Boundaries:
    """Counts the boundaries that a process passes, and ends or stops it at one of them."""

    def __init__(self, log: Path, at: int | str | None, how: int = signal.SIGKILL) -> None:
        self.log, self.at, self.how, self.n, self.lock = log, at, how, 0, threading.Lock()

    def __call__(self, name: str) -> None:
        with self.lock:
            with self.log.open("a") as log:
                log.write(name + "\n")
            if self.at in (self.n, name):
                os.kill(os.getpid(), self.how)
            self.n += 1


def build(durability: WaybillDurability, kind: str, name: str, boundary) -> Agent:
    agent = Agent(model_of(kind, name), name="clerk", capabilities=[durability])

    @agent.tool_plain
    async def stock(item: str) -> str:
        """Says how much there is."""
        boundary(f"make stock {item}")
        return f"{len(item)} kg"

    @agent.tool_plain(metadata={"waybill": {"effect": "once"}})
    def buy(item: str) -> str:
        """Buys some."""
        boundary(f"make buy {item}")
        return "bought"

    return agent


def child(wb: Waybill, kind: str, name: str, log: Path, at: int | str | None = None, how: int = signal.SIGKILL) -> int:
    """Runs the agent in a process of its own, under the key `name`."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        boundary = Boundaries(log, at, how)
        begin, write = DurableRun._begin, DurableRun._write

        def watched_begin(self, unit, once):
            found = begin(self, unit, once)
            boundary(f"{'replay' if found else 'begin'} {unit}")
            return found

        def watched_write(self, said, result):
            boundary(f"end {said['unit']}")
            write(self, said, result)
            boundary(f"written {said['unit']}")

        DurableRun._begin, DurableRun._write = watched_begin, watched_write
        durability = WaybillDurability(wb, record=kind)
        with durability.run(name):
            found = build(durability, kind, name, boundary).run_sync("Is there enough?")
        code = 0 if found.output == SAID and found.usage.requests == 3 else 2
    except RunTaken:
        code = TAKEN
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def on_record(wb: Waybill, key: str) -> list[str]:
    """Returns the units of a run, in order."""
    boxes = [turn.output_box_id for turn in wb.turns(label=f"pydantic_ai.run={Record(key).label}")]
    cards = [one for box in reversed(boxes) for one in wb.cards_of(box)]
    return [json.loads(one.content)["unit"] for one in cards if one.metadata.type == "pydantic_ai.unit"]


@pytest.mark.parametrize(("kind", "stride"), [("openai", 6), ("anthropic", 9)])
def test_a_run_survives_a_kill_at_every_boundary(wb, server, tmp_path, kind, stride):
    assert ended(child(wb, kind, f"{kind}-whole", tmp_path / "whole")) == 0
    boundaries = (tmp_path / "whole").read_text().splitlines()
    assert n_asked(server, f"{kind}-whole") == 3
    assert sum(one.startswith("written") for one in boundaries) == 6
    places = range(0, len(boundaries), 1 if IS_LONG else stride)
    for some in (places[n : n + 4] for n in range(0, len(places), 4)):
        killed = [child(wb, kind, f"{kind}-{at}", tmp_path / str(at), at) for at in some]
        assert [ended(pid) for pid in killed] == [-signal.SIGKILL] * len(some)
        again = [child(wb, kind, f"{kind}-{at}", tmp_path / str(at)) for at in some]
        assert [ended(pid) for pid in again] == [0] * len(some)
    for at in places:
        # A call that was paid for and is not on record is paid for again: at most the one in flight. What is on record is not done again.
        passed = (tmp_path / str(at)).read_text().splitlines()
        was_asked = passed[at].startswith("end") and "model.request" in passed[at]
        assert n_asked(server, f"{kind}-{at}") == 3 + was_asked, passed[at]
        done = [one.split()[1] for one in passed[: at + 1] if one.startswith("written")]
        assert not [unit for unit in done for one in passed[at + 1 :] if one in (f"begin {unit}", f"end {unit}")], passed[at]
        assert passed.count("make buy flour") <= 1, passed[at]
        assert sum(one.startswith("make stock") for one in passed) <= 4
        # Of the call that is made at most once, it is then not known whether it was made.
        is_known = {one.split()[0] for one in passed[: at + 1] if "call_tool:buy" in one} in (set(), {"begin", "end", "written"})
        units = on_record(wb, f"{kind}-{at}")
        assert len(set(units)) == len(units) == 5 + is_known, passed[at]


def test_a_process_that_was_superseded_is_refused(wb, server, tmp_path):
    stopped = child(wb, "openai", "openai-stopped", tmp_path / "stopped", at=4, how=signal.SIGSTOP)
    try:
        assert os.WIFSTOPPED(os.waitpid(stopped, os.WUNTRACED)[1])
        assert ended(child(wb, "openai", "openai-stopped", tmp_path / "other")) == 0
        before = on_record(wb, "openai-stopped")
    except BaseException:
        os.kill(stopped, signal.SIGKILL)
        raise
    os.kill(stopped, signal.SIGCONT)
    assert ended(stopped) == TAKEN
    assert on_record(wb, "openai-stopped") == before
    assert n_asked(server, "openai-stopped") == 3


def test_a_run_that_was_lost_stays_lost(wb):
    with WaybillDurability(wb) as ours, WaybillDurability(wb) as theirs:
        our_agent, their_agent = [Agent(TestModel(), name="clerk", capabilities=[one]) for one in (ours, theirs)]

        @their_agent.tool_plain(name="look")
        def idle() -> str:
            return "theirs"

        @our_agent.tool_plain
        async def look() -> str:
            async with theirs.run("k"):
                assert "theirs" in (await their_agent.run("go")).output
            return "ours"

        with ours.run("k"):
            for _ in range(2):
                with pytest.raises(RunTaken, match="taken it over"):
                    our_agent.run_sync("go")
        with ours.run("k") as run:
            assert "theirs" in our_agent.run_sync("go").output
        assert run.n_executed == 0


def test_of_processes_that_begin_a_run_at_once_one_has_it(wb, tmp_path):
    outcomes = [ended(pid) for pid in [child(wb, "openai", "openai-race", tmp_path / str(n)) for n in range(3)]]
    assert set(outcomes) <= {0, TAKEN}, outcomes
    if 0 not in outcomes:  # each was refused by one that began after it
        assert ended(child(wb, "openai", "openai-race", tmp_path / "last")) == 0
    units = on_record(wb, "openai-race")
    assert len(units) == len(set(units)) == 6, units


def test_a_call_that_may_have_been_made_is_not_made_again(wb, tmp_path):
    log = tmp_path / "log"
    assert ended(child(wb, "openai", "openai-once", log, "make buy flour")) == -signal.SIGKILL
    told = []
    for _ in range(2):
        with WaybillDurability(wb, record="openai") as durability, durability.run("openai-once"):
            found = build(durability, "openai", "openai-once", lambda name: pytest.fail(name)).run_sync("Is there enough?")
        assert found.output == SAID
        told.append([part.content for part in found.all_messages()[-2].parts])
    assert told[0] == told[1]
    assert "may have been made" in told[0][0]


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_what_the_model_saw_is_on_record(wb, kind):
    with WaybillDurability(wb, record="anthropic" if kind == "anthropic" else "openai") as durability, durability.run(f"{kind}-seen"):
        agent = build(durability, kind, f"{kind}-seen", lambda name: None)
        assert agent.run_sync("Is there enough?").output == SAID
    until = time.monotonic() + 20
    while not (turns := [one for one in wb.turns(label=f"session={kind}-seen") if one.n_steps == 3]) and time.monotonic() < until:
        time.sleep(0.1)
    turn = wb.turn(turns[0].agent_turn_id)
    assert turn.refresh().status == "recorded"
    assert turn.summary.profile_name == "clerk"
    assert b"Is there enough?" in turn.calls[0].request_bytes()
    assert [len(call.context().messages) for call in turn.calls] == sorted(len(call.context().messages) for call in turn.calls)
    assert wb.replay(turn).is_same


def test_a_person_approves_calls(wb):
    paid: list[str] = []
    durability = WaybillDurability(wb, approvals=True, wait_seconds=0.3)
    agent = Agent(TestModel(custom_output_text="done"), name="payer", output_type=[str, DeferredToolRequests], capabilities=[durability])

    @agent.tool_plain(requires_approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    def pay_in(key: str):
        with durability.run(key):
            return agent.run_sync("Pay the baker.")

    with durability:
        assert [one.tool_name for one in pay_in("approved").output.approvals] == ["pay"]
        asked = wb.requests()
        assert [one.tool for one in asked] == ["approve_call"]
        asked[0].approve(note="fine")
        until = time.monotonic() + 20
        while pay_in("approved").output != "done" and time.monotonic() < until:
            pass
        assert paid == ["a"]
        assert pay_in("approved").output == "done"
        assert paid == ["a"]

        pay_in("rejected")
        wb.requests()[0].reject(note="not today")
        while (found := pay_in("rejected")).output != "done" and time.monotonic() < until:
            pass
        assert "not today" in str(found.all_messages()[-2])
        assert paid == ["a"]


def test_units_of_the_frameworks_own_models(wb):
    """Parallel agents, an agent that a tool runs, retries, streams, long and odd results, a result that fails."""
    made = Counter[str]()

    def answers(messages, info: AgentInfo) -> ModelResponse:
        made["model"] += 1
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("ask", {"what": "1"}), ToolCallPart("long", {})])
        if len(messages) == 3:
            return ModelResponse([ToolCallPart("ask", {"what": "again"})])
        return ModelResponse([TextPart(messages[1].parts[0].tool_call_id)])

    durability, is_down = WaybillDurability(wb), True
    below = Agent(TestModel(call_tools=[], custom_output_text="below ␛ \0 \ud800"), name="below", capabilities=[durability])
    agent = Agent(FunctionModel(answers), name="above", capabilities=[durability], toolsets=[FunctionToolset(id="more")])

    @agent.tool(retries=2)
    async def ask(ctx: RunContext, what: str) -> str:
        made["ask"] += 1
        if what == "again" and is_down:
            raise OSError("no network")
        return (await below.run(what)).output

    @agent.tool_plain
    def long() -> dict:
        made["long"] += 1
        return {"long": "é" * 450_000}

    async def both():
        return [one.output for one in await asyncio.gather(agent.run("a"), agent.run("b"))]

    with durability:
        for _ in range(2):
            with pytest.raises(OSError, match="no network"), durability.run("odd"):
                asyncio.run(both())
        is_down = False
        with durability.run("odd") as run:
            first = asyncio.run(both())
        assert run.n_replayed > 0
        n_made = made.copy()

        async def again():
            async with WaybillDurability(wb) as other, other.run("odd") as run:
                return await both(), run

        # The ids of the calls are on record, so the same output shows that the same answers were read.
        found, run = asyncio.run(again())
        assert found == first
        # Of each agent above three answers, and three calls of tools. The agents below are in the results of those.
        assert (run.n_executed, run.n_replayed) == (0, 12)
        assert made == n_made
        assert made["long"] == 2


class TryAgain(AbstractCapability):
    async def on_model_request_error(self, ctx, *, request_context, error):
        raise RetryModelRequest from error


def test_an_attempt_that_failed_is_not_a_result(wb):
    n_asked = 0

    def answers(messages, info: AgentInfo) -> ModelResponse:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            raise ModelHTTPError(503, "function")
        return ModelResponse([TextPart(f"after {n_asked}")])

    with WaybillDurability(wb) as durability:
        agent = Agent(FunctionModel(answers), name="clerk", capabilities=[TryAgain(), durability])
        for _ in range(2):
            with durability.run("k") as run:
                assert agent.run_sync("go", timeout=60).output == "after 2"
        assert run.n_executed == 0
        assert not run._record.units  # a run that is over is read again
    assert n_asked == 2
    # When the run began is on record too, so that its deadline stays. These names are in what programs have stored: they must not change.
    assert on_record(wb, "k") == ["k:run:1/started:1", "k:run:1/1/clerk__model.request/0/776cef04829d:1"]


def test_a_run_of_which_a_result_is_gone_is_not_run_again(wb):
    with (payer := Payer(wb, pays=True)).durability:
        assert payer.run() == 1
        (turn,) = wb.turns(label="pydantic_ai=run")
        card_id = next(one.card_id for one in wb.cards_of(turn.output_box_id) if '"paid"' in str(one.content))
        wb.api.delete_card(card_id, reason="asked for")
        for _ in range(2):
            with pytest.raises(errors.WaybillError, match=f"run k: card {card_id} is gone.*erasure"):
                payer.run()
    assert payer.n_paid == 1


def test_the_model_reads_that_a_call_failed_and_was_not_cut_off_for_sure(wb):
    n_paid = 0
    with WaybillDurability(wb) as durability:
        agent = Agent(TestModel(), name="clerk", capabilities=[durability])

        @agent.tool_plain(metadata={"waybill": {"effect": "once"}})
        def pay() -> str:
            nonlocal n_paid
            n_paid += 1
            raise ValueError("no money")

        with pytest.raises(ValueError, match="no money"), durability.run("k"):
            agent.run_sync("go")
        with durability.run("k"):
            found = agent.run_sync("go")
    assert "failed or was cut off" in str(found.all_messages())
    assert n_paid == 1


def test_what_an_exception_says_is_not_stored(wb):
    def pay() -> str:
        raise ValueError("password 123")

    with WaybillDurability(wb) as durability, pytest.raises(ValueError, match="password"), durability.run("k"):
        Agent(TestModel(), name="clerk", capabilities=[durability], tools=[pay]).run_sync("go")
    (turn,) = wb.turns(label="pydantic_ai=run")
    said = str([one.content for one in wb.cards_of(turn.output_box_id)])
    assert "ended with ValueError" in said
    assert "password" not in said


MCP_SERVER = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("ledger")
@server.tool()
def book(amount: int) -> str:
    with open(sys.argv[0] + ".log", "a") as log:
        log.write(f"{amount}\\n")
    return f"booked {amount}"
server.run()
"""


def test_calls_of_an_mcp_server_are_made_once(wb, tmp_path):
    program = tmp_path / "ledger.py"
    program.write_text(MCP_SERVER)
    with WaybillDurability(wb) as durability:
        agent = Agent(TestModel(), name="clerk", capabilities=[durability], toolsets=[MCPToolset(program, id="ledger")])
        outputs = []
        for _ in range(2):
            with durability.run("k") as run:
                outputs.append(agent.run_sync("Book it.").output)
    assert outputs[0] == outputs[1]
    assert "booked 0" in outputs[0]
    assert (tmp_path / "ledger.py.log").read_text() == "0\n"
    assert run.n_executed == 0
    assert [unit for unit in on_record(wb, "k") if "mcp_server__ledger.call_tool" in unit]


def test_a_key_belongs_to_one_run(wb):
    events: list[str] = []

    async def handle(_, stream):
        events.extend([one.event_kind async for one in stream])

    with WaybillDurability(wb, event_stream_handler=handle) as durability:
        agent = Agent(TestModel(), name="clerk", capabilities=[durability])
        with durability.run("k"):
            agent.run_sync("one")
        n_events = len(events)
        assert n_events > 2
        with durability.run("k") as run:
            agent.run_sync("one")
            assert len(events) == n_events
        assert run.n_executed == 0
        with durability.run("k"), pytest.raises(RunChanged, match="a key of its own"):
            agent.run_sync("another")
        with durability.run("k"):
            durability.run("k").__enter__().__exit__(None, None, None)
            with pytest.raises(RunTaken, match="once more in this process"):
                agent.run_sync("one")
        with durability.run("k"), pytest.raises(UserError, match="cannot be added at runtime"):
            agent.run_sync("one", toolsets=[FunctionToolset([len], id="late")])
        # Outside of a run, it is an agent like any other.
        assert agent.run_sync("one", toolsets=[FunctionToolset(id="late")]).output == "success (no tool calls)"
        for key in ("", "é", "a\nb", "x" * 201):
            with pytest.raises(errors.ConfigError, match="no key of a run"):
                durability.run(key)
    with WaybillDurability(wb, record="openai") as durability, pytest.raises(errors.ConfigError, match="leave out `record`"):
        Agent(TestModel(), name="clerk", capabilities=[durability]).run_sync("one")


def test_an_operator_stops_a_run(wb):
    with WaybillDurability(wb) as durability:
        agent = Agent(TestModel(), name="clerk", capabilities=[durability])

        @agent.tool_plain
        def stop() -> str:
            turn = next(iter(wb.turns(label="pydantic_ai=run")))
            wb.turn(turn.agent_turn_id).stop("enough")
            return "asked to stop"

        with pytest.raises(RunTaken, match="it was stopped: enough"), durability.run("k"):
            agent.run_sync("go")
        with durability.run("k") as run:
            agent.run_sync("go")
        assert (run.n_executed, run.n_replayed) == (1, 2)


class Payer:
    """An agent that pays once if its model says so."""

    def __init__(self, wb: Waybill, *, pays: bool, **more) -> None:
        self.durability, self.n_paid, self.pays = WaybillDurability(wb, **more), 0, pays
        self.agent = Agent(FunctionModel(self.answer), name="clerk", capabilities=[self.durability])

        @self.agent.tool_plain
        def pay() -> str:
            self.n_paid += 1
            self.while_paying()
            return "paid"

    def while_paying(self) -> None: ...

    def answer(self, messages, info: AgentInfo) -> ModelResponse:
        is_first = len(messages) == 1
        return ModelResponse([ToolCallPart("pay", {}, tool_call_id="p1") if self.pays and is_first else TextPart("done")])

    def run(self) -> int:
        """Returns how often it has paid."""
        with self.durability.run("k"):
            assert self.agent.run_sync("go").output == "done"
        return self.n_paid


def test_a_result_of_an_operator_and_a_worker_is_not_believed(wb, server):
    # What an agent that pays has on record, in a project of its own.
    elsewhere = server.project()
    with (paid := Payer(elsewhere, pays=True)).durability:
        assert paid.run() == 1
    (turn,) = elsewhere.turns(label="pydantic_ai=run")
    asked = next(one.content for one in elsewhere.turn(turn.agent_turn_id).cards() if "model.request" in str(one.content))
    project = Project(wb, {"pydantic_ai": "run", "pydantic_ai.run": Record("k").label})
    app = project.key("app", "admin")
    tenure = json.dumps({"run": "k", "fence": None, "worker": "w", "prev": None})
    forged = [{"card_id": uuid7(), "type": f"pydantic_ai.{of}", "role": "tool", "content": it} for of, it in (("tenure", tenure), ("unit", asked))]
    turn_id = project.turn(project.key("ada", "operator"), project.key("bob", "worker"), *forged)
    with (payer := Payer(app, pays=False)).durability:
        for _ in range(2):
            with pytest.raises(UntrustedWriter, match=rf"turn {turn_id} .* of key:ada.*WaybillDurability\(ignored_turns"):
                payer.run()
    assert payer.n_paid == 0
    with (payer := Payer(app, pays=False, trusted=["key:ada", "key:bob"])).durability:
        assert payer.run() == 1  # so it would have been believed
    # What the error says to do.
    with (payer := Payer(app, pays=False, ignored_turns=[turn_id])).durability:
        assert payer.run() == 0


def test_of_two_processes_with_different_keys_that_begin_at_once_one_at_most_goes_on(wb, monkeypatch):
    project, is_paying, may_end = Project(wb), threading.Event(), threading.Event()
    one, two = (Payer(project.key(name, "admin"), pays=True) for name in ("one", "two"))
    api, outcomes = two.durability.client.api, list[object]()
    start, stop = api.start_turn, api.stop_turn

    def while_paying() -> None:
        is_paying.set()
        assert may_end.wait(20)

    def run() -> None:
        try:
            outcomes.append(one.run())
        except RunTaken as taken:
            outcomes.append(taken)

    one.while_paying, running = while_paying, threading.Thread(target=run)

    def start_after_the_other(*arguments, **more):
        if not is_paying.is_set():
            running.start()
            assert is_paying.wait(20)
        return start(*arguments, **more)

    def stop_the_other(*arguments, **more):
        stopped = stop(*arguments, **more)
        may_end.set()
        return stopped

    monkeypatch.setattr(api, "start_turn", start_after_the_other)
    monkeypatch.setattr(api, "stop_turn", stop_the_other)
    with one.durability, two.durability:
        with pytest.raises(RunTaken, match="at the same moment"):
            two.run()
        # It begins again while the other one is at work: that one is stopped, and its last result is stored first.
        assert two.run() == 0
        running.join()
    assert one.n_paid == 1
    assert isinstance(outcomes[0], RunTaken), outcomes
    units = on_record(wb, "k")
    assert len(set(units)) == len(units) == 3, units
