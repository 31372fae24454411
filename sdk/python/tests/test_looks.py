"""What a person sees: in a terminal, in a notebook, in a failed test."""

from __future__ import annotations

import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path

import pytest

from waybill import Profile, Waybill, Worker, tool
from waybill._progress import Progress


@pytest.fixture
def turn(waybill):
    waybill.apply(Profile("echo", model="demo/demo", prompt="You repeat.").scripted([{"say": "You said {{query}}"}]))
    return waybill.run("echo", "Hello.").wait(20)


def test_everything_says_what_it_is(waybill, turn):
    assert repr(waybill) == f"<Waybill {waybill.config.base}>"
    assert repr(turn).startswith(f"<Turn {turn.id}: echo, success, 1 steps, ")
    assert repr(turn.calls[0]).startswith(f"<ModelCall {turn.calls[0].step_id}: demo, ")
    assert "3 messages" in repr(turn.calls[0].context())
    assert repr(waybill.replay(turn)) == "<Replay: 1 calls, all the same>"
    assert "<Session " in repr(waybill.session(title="Talk"))
    assert "You said Hello." in repr(waybill.compare(turn, turn.fork()[0].wait(20)))
    assert "<td>success</td>" in waybill.compare(turn, turn.fork()[0].wait(20))._repr_html_()
    assert "None" not in repr(turn.steps[0]), "what is missing is left out"


def test_a_failed_assertion_shows_what_the_model_saw(turn):
    seen = turn.calls[0].context()
    with pytest.raises(AssertionError, match=r"did not see 'Goodbye'[\s\S]*query[\s\S]*Hello"):
        seen.assert_saw("Goodbye")
    with pytest.raises(AssertionError, match=r"saw 'Hello' in message 3 \(query\), from [0-9a-f-]{36}"):
        seen.assert_did_not_see("Hello")
    with pytest.raises(AssertionError, match="more than 1"):
        seen.assert_within(tokens=1)


def test_progress_in_a_terminal(waybill, turn, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    waybill.run("echo", "Again.").wait(20, progress=True)
    said = capsys.readouterr().err
    assert "success: 1 turns, 1 steps" in said
    assert said.endswith("\n")


def test_progress_in_a_notebook(monkeypatch):
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content)

    def display(content, display_id):
        shown.append(content)
        return Handle()

    python, screen = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    python.get_ipython = lambda: types.SimpleNamespace(kernel=True)
    screen.HTML, screen.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    progress = Progress("turn-1")
    progress.take("step", "turn-1", "finished")
    progress.take("step", "turn-2", None)
    progress.end("success", 2)
    assert len(shown) == 3
    assert "<td>success</td>" in shown[-1]
    assert "turn-2" in shown[-1]


def test_a_process_of_its_own_registers_its_tools(waybill):
    """With a key that may do nothing else."""

    @tool(effect="pure", target="sums")
    def add(left: int, right: int) -> int:
        """Adds two numbers."""
        return left + right

    made = waybill.api.create_key({"name": "sums", "scope": "tool", "bounds": {"targets": ["sums"]}})
    keyed = Waybill(waybill.config.url, made.key, waybill.config.project)
    with Worker(keyed, [add], register=True):
        waybill.apply(
            Profile("adder", model="demo/demo", prompt="-", tools=["add"]).scripted(
                [{"call": {"add": {"left": 1, "right": 2}}}, {"say": "{{result}}"}]
            )
        )
        assert waybill.run("adder", "Add.").result(timeout=20) == "3"
    assert waybill.api.show_tool("add").target == "sums"


def test_a_server_ends_with_the_tests_that_are_killed():
    program = "from waybill.testing import Server; import time; s = Server(); print(s.url, s.folder, flush=True); time.sleep(60)"
    tests = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    url, folder = tests.stdout.readline().split()
    assert urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    tests.kill()
    tests.wait()
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if not Path(folder).exists():
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server goes on, or its folder stays")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health", timeout=5)


def test_a_person_is_asked(waybill):
    @tool(approval="always")
    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    script = [{"call": {"pay": {"amount": 5}}}, {"say": "{{result}}"}]
    waybill.apply(Profile("payer", model="demo/demo", prompt="-", tools=[pay]).scripted(script))
    with waybill.worker([pay]):
        turns = [waybill.run("payer", "Pay.") for _ in range(2)]
        asked = []
        for turn, decide in zip(turns, ("approve", "reject"), strict=True):
            for event in turn.watch(timeout=30):
                if event.request:
                    asked.append(event.request)
                    getattr(event.request, decide)("as agreed")
    assert [request.tool for request in asked] == ["pay", "pay"]
    assert "paid 5" in turns[0].deliverable
    assert "paid 5" not in turns[1].deliverable
    assert (asked[0].profile, asked[0].arguments) == ("payer", {"amount": 5})
    assert "payer asks: pay(amount=5)" in repr(asked[0])
    assert not waybill.requests()


def test_a_tree_is_watched(waybill):
    waybill.apply(
        Profile("clerk", model="demo/demo", prompt="-").scripted([{"say": "There are 12 kg."}]),
        Profile("baker", model="demo/demo", prompt="-", internal_tools=["ask_expert"], delegates_to=["clerk"]).scripted(
            [{"call": {"ask_expert": {"expert_profile": "clerk", "question": "How much flour?"}}}, {"say": "{{result}}"}]
        ),
    )
    turn = waybill.run("baker", "Can we bake?")
    events = list(turn.watch(tree=True, tokens=True, timeout=30))
    assert turn.status == "success"
    tree = turn.tree()
    assert [(one.profile, one.status) for one in tree] == [("baker", "success"), ("clerk", "success")], turn.deliverable
    assert tree[1].wait(20).deliverable == "There are 12 kg.", "a turn of which only the summary is known is read"
    assert {event.turn_id for event in events} == {one.id for one in tree}
    assert {event.turn_id for event in events if event.kind == "task"} == {one.id for one in tree}
    assert tree[1].refresh().deliverable == "There are 12 kg."
    assert turn.budget().children[0].agent_turn_id == tree[1].id


def test_a_story_is_told_in_order(waybill):
    @tool(effect="pure")
    def weigh(item: str) -> int:
        """Weighs."""
        raise ValueError("no scales")

    ask = {"call": {"ask_expert": {"expert_profile": "clerk", "question": "How much flour?"}}}
    waybill.apply(
        Profile("clerk", model="demo/demo", prompt="-", tools=[weigh]).scripted(
            [{"say": "Let me weigh it.", "call": {"weigh": {"item": "flour"}}}, {"say": "12 kg."}]
        ),
        Profile("baker", model="demo/demo", prompt="-", internal_tools=["ask_expert"], delegates_to=["clerk"]).scripted(
            [ask, {"say": "{{summary}}"}]
        ),
    )
    with waybill.worker([weigh]):
        turn = waybill.run("baker", "Can we bake?").wait(timeout=30)
    story = turn.story()
    assert [(who, depth, said) for _, who, depth, said in story.lines] == [
        ("baker", 0, "? Can we bake?"),
        ("baker", 0, "→ ask_expert(expert_profile='clerk', question='How much flour?')"),
        ("clerk", 1, "? How much flour?"),
        ("clerk", 1, "Let me weigh it."),
        ("clerk", 1, "→ weigh(item='flour')"),
        ("clerk", 1, "← failed: no scales"),
        ("clerk", 1, "= 12 kg."),
        ("baker", 0, "← 12 kg."),
        ("baker", 0, "= 12 kg."),
    ], story
    assert "  clerk  → weigh(item='flour')\n" in str(story)
    assert "Can we bake?</td>" in story._repr_html_()
