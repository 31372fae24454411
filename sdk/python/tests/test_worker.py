"""Workers: turns with a model of one's own, tools of all kinds, back-pressure, draining."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import subprocess
import sys
import threading
import time
import types

import crew
import pytest

from waybill import Profile, ToolError, Worker, tool
from waybill._lease import Lease
from waybill.errors import ApiError, ConfigError, Unanswered


def scripted(name: str, *tools, calls, **more) -> Profile:
    return Profile(name, model="demo/demo", prompt="You act.", tools=tools, **more).scripted(
        [*({"call": one} for one in calls), {"say": "{{result}}"}]
    )


def test_turns_with_a_model_of_its_own_leave_receipts(waybill, scripted_model):
    waybill.apply(crew.counter)
    with crew.crew(waybill, scripted_model(crew.RULES), 5):
        turn = waybill.run("counter", "Count.").wait(timeout=20)
    assert (turn.status, turn.deliverable) == ("success", "Two, and three.")
    assert turn.tool_calls == ["count", "count"]
    assert [call.step.reported for call in turn.calls] == [True] * 3
    turn.calls[-1].context().assert_saw("3").assert_did_not_see("four")
    waybill.replay(turn).assert_same_bytes()
    assert turn.calls[0].diff(turn.calls[1]).same_tokens > 0


def test_a_turn_without_a_model(waybill):
    waybill.apply(Profile("echo", model="demo/demo", prompt="You repeat.", target="own"))
    worker = Worker(waybill, target="own")

    @worker.turn
    async def echo(turn):
        return {"heard": await turn.query()}

    with worker:
        assert waybill.run("echo", "Hello.").result(timeout=20) == {"heard": "Hello."}


def test_a_message_to_a_running_turn_is_read(waybill):
    waybill.apply(Profile("listener", model="demo/demo", prompt="You listen.", target="listeners"))
    worker, begun, sent = Worker(waybill, target="listeners"), threading.Event(), threading.Event()

    @worker.turn
    async def listen(turn):
        said = await turn.messages()
        begun.set()
        while not sent.is_set():
            await asyncio.sleep(0.05)
        return {"heard": said}

    with worker:
        session = waybill.session()
        turn = session.run("listener", "Listen.")
        assert begun.wait(10)
        session.run("listener", "And hurry.", while_running="steer")
        sent.set()
        assert "And hurry." in str(turn.result(timeout=20))


def test_an_attempt_that_fails_is_tried_again(waybill):
    waybill.apply(Profile("shaky", model="demo/demo", prompt="You try.", target="shaky"))
    worker, attempts = Worker(waybill, target="shaky"), []

    @worker.turn
    async def shaky(turn):
        attempts.append(turn.claimed.retry_count)
        if len(attempts) < 2:
            raise ValueError("not yet")
        return "done"

    with worker:
        assert waybill.run("shaky", "Try.").result(timeout=20) == "done"
    assert len(attempts) == 2


def test_a_stopped_turn_ends_as_canceled(waybill):
    waybill.apply(Profile("slow", model="demo/demo", prompt="You wait.", target="slow"))
    worker, begun = Worker(waybill, target="slow", lease_seconds=1), threading.Event()

    @worker.turn
    async def slow(turn):
        begun.set()
        assert await turn.heed(20)

    with worker:
        turn = waybill.run("slow", "Wait.")
        begun.wait(10)
        turn.stop("enough")
        turn.wait(timeout=10)
    assert turn.status == "canceled"


@tool(effect="pure")
def broken(number: int) -> int:
    """Fails."""
    if number < 0:
        raise ToolError("the number must not be negative")
    raise RuntimeError("it broke")


def test_a_tool_that_fails_tells_the_model_why(waybill):
    waybill.apply(scripted("breaker", broken, calls=[{"broken": {"number": -1}}, {"broken": {"number": 1}}]))
    with waybill.worker([broken]):
        turn = waybill.run("breaker", "Break.").wait(timeout=20)
    turn.calls[-1].context().assert_saw("must not be negative", "it broke")


def test_a_tool_that_is_too_slow_is_answered(waybill):
    @tool(effect="pure", timeout=1)
    async def sleepy() -> None:
        """Sleeps."""
        await asyncio.sleep(30)

    waybill.apply(scripted("sleeper", sleepy, calls=[{"sleepy": {}}]))
    begun = time.monotonic()
    with waybill.worker([sleepy]):
        turn = waybill.run("sleeper", "Sleep.").wait(timeout=20)
    assert time.monotonic() - begun < 10
    assert turn.is_over


def test_a_tool_that_hangs_holds_nothing_up(waybill):
    released = threading.Event()

    @tool(effect="pure", timeout=1)
    def hanging() -> None:
        """Hangs."""
        released.wait(30)

    waybill.apply(scripted("hanger", hanging, calls=[{"hanging": {}}]))
    with waybill.worker([hanging]):
        waybill.run("hanger", "Hang.").wait(timeout=20)
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    released.set()


def through_a_decorator(function):
    @functools.wraps(function)
    def wrapped(**arguments):
        return function(**arguments)

    return wrapped


def odd_tools():
    """Tools that do what no tool should, and what the model is told of it."""

    @through_a_decorator
    async def hidden() -> int:
        return 17

    async def exits():
        sys.exit(3)

    async def cancels():
        raise asyncio.CancelledError

    async def clings():
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    def unsaid():
        raise type("Unsaid", (Exception,), {"__str__": lambda self: 1 / 0})

    def ends():
        raise BaseException("odd")

    def names(json: int = 1, _x: int = 2, model_dump: int = 3):
        return json + _x + model_dump + 100

    made = {
        hidden: "17",
        exits: "SystemExit(3)",
        cancels: "it was canceled",
        clings: "did not answer within",
        unsaid: "Unsaid",
        ends: "odd",
        names: "106",
        lambda: float("nan"): "its result cannot be stored",
        lambda: "a\ud800": "its result cannot be stored",
        lambda: "x" * 9_000_000: "its result cannot be stored",
        lambda: object(): "Unable to serialize",
    }
    return [
        (tool(effect="pure", timeout=2 if "clings" in one.__name__ else 20, name=f"odd_{n}", description="Is odd.")(one), said)
        for n, (one, said) in enumerate(made.items())
    ]


def test_odd_tools_are_answered_and_do_not_end_the_worker(waybill):
    made = odd_tools()
    waybill.apply(*(scripted(one.name, one, calls=[{one.name: {}}]) for one, _ in made))
    turns = [waybill.run(one.name, "Go.") for one, _ in made]
    with waybill.worker([one for one, _ in made]) as worker:
        for turn, (_, said) in zip(turns, made, strict=True):
            assert said in str(turn.result(timeout=20))
        assert worker._thread.is_alive()


def test_a_turn_that_cancels_itself_is_given_back(waybill):
    waybill.apply(Profile("jumpy", model="demo/demo", prompt="You jump.", target="jumpy"))
    worker, attempts = Worker(waybill, target="jumpy"), []

    @worker.turn
    async def jumpy(turn):
        attempts.append(turn)
        if len(attempts) == 1:
            raise asyncio.CancelledError
        return "done"

    with worker:
        assert waybill.run("jumpy", "Jump.").result(timeout=20) == "done"


def test_a_worker_that_has_failed_says_so_and_can_start_again(waybill):
    keyed = type(waybill)(waybill.config.url, "wb_test_not_a_key", waybill.config.project)
    with pytest.raises(ApiError, match="unauthorized"), keyed.worker([broken]) as worker:
        worker._thread.join(10)
    with pytest.raises(ZeroDivisionError), keyed.worker([broken]) as worker:
        1 / worker._thread.join(10).__bool__()
    again = waybill.worker([broken])
    for _ in range(2):
        with again:
            assert again._thread.is_alive()


def test_a_heartbeat_without_an_answer_does_not_hold_up_the_next():
    class Silent:
        """A client whose first heartbeat is never answered."""

        n_asked = 0

        @property
        def api(self):
            return self

        async def keep_lease(self, body, patience):
            self.n_asked += 1
            if self.n_asked == 1:
                await asyncio.sleep(60)
            return types.SimpleNamespace(turns=[], calls=[])

    async def keep() -> bool:
        lease = Lease(Silent(), 3)
        lease.begin()
        await asyncio.sleep(4)
        lease._keeper.cancel()
        return lease.is_good

    assert asyncio.run(keep())


def test_a_worker_whose_clock_is_wrong_answers(waybill, monkeypatch):
    """Its clock is an hour ahead of the server's: each call would be too late."""
    ahead = datetime.timedelta(hours=1)

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + ahead

    monkeypatch.setattr("waybill.worker.datetime.datetime", Clock)
    monkeypatch.setattr("waybill._async.transport.clock_ahead", lambda date: -ahead.total_seconds())

    @tool(effect="pure", timeout=20)
    async def slow() -> str:
        """Takes its time."""
        await asyncio.sleep(0.5)
        return "in time"

    waybill.apply(scripted("late", slow, calls=[{"slow": {}}]))
    with waybill.worker([slow]):
        assert "in time" in str(waybill.run("late", "Go.").result(timeout=20))


def test_a_process_ends_well(waybill, scripted_model, tmp_path):
    """On SIGTERM it answers the call that it holds, and claims nothing more."""
    waybill.apply(crew.counter)
    ledger, url = tmp_path / "ledger", scripted_model(crew.RULES)
    environment = os.environ | {
        "WAYBILL_API_URL": waybill.config.url,
        "WAYBILL_PROJECT": waybill.config.project,
        "CREW_LEDGER": str(ledger),
        "CREW_SLOW": "1",
    }
    process = subprocess.Popen([sys.executable, crew.__file__, url, "5"], env=environment, stderr=subprocess.PIPE, text=True)
    turn = waybill.run("counter", "Count.")
    next(event for event in turn.watch() if event.kind == "step")
    time.sleep(0.3)
    process.terminate()
    _, said = process.communicate(timeout=15)
    assert process.returncode == 0, said
    assert "finishing what is held" in said
    assert len(ledger.read_text().split()) == 1
    with crew.crew(waybill, url, 5):
        assert turn.result(timeout=20) == "Two, and three."


def test_a_worker_claims_only_what_it_has_room_for(waybill):
    now, most, lock = [0], [0], threading.Lock()

    @tool(effect="pure", timeout=30)
    def busy() -> str:
        """Is busy."""
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.1)
        with lock:
            now[0] -= 1
        return "done"

    waybill.apply(scripted("bee", busy, calls=[{"busy": {}}]))
    turns = waybill.run_many("bee", {str(n): "Work." for n in range(12)})
    with waybill.worker([busy], at_once=3):
        for turn in turns.values():
            assert turn.wait(timeout=30).status == "success"
    assert 1 < most[0] <= 3


def test_a_worker_finishes_what_it_holds_before_it_ends(waybill):
    begun = threading.Event()

    @tool(effect="once", timeout=30)
    def long() -> str:
        """Takes long."""
        begun.set()
        time.sleep(1)
        return "finished"

    waybill.apply(scripted("patient", long, calls=[{"long": {}}]))
    with waybill.worker([long]):
        turn = waybill.run("patient", "Work.")
        begun.wait(15)
    assert "finished" in str(turn.result(timeout=10))


def test_a_call_whose_claim_got_lost_is_found_by_a_heartbeat(waybill, async_waybill):
    """The answer of a claim is thrown away; the heartbeat of the same name lists what it had."""

    @tool(effect="pure")
    def found() -> str:
        """Is found."""
        return "found"

    waybill.apply(scripted("finder", found, calls=[{"found": {}}]))
    turn = waybill.run("finder", "Find.")

    async def lose_and_find() -> int:
        async with async_waybill as client:
            lease = Lease(client, 10)
            while not (await client.api.claim_calls(lease.claim_body(found.target, 5, 5))).calls:
                pass
            await lease.beat()
            assert lease.found.empty(), "the answer of a claim may be on the way"
            await lease.beat()
            held = lease.found.get_nowait()
            assert lease.take("call", held.claimed) is None, "it is known"
            await lease.beat()
            await lease.end()
            return lease.found.qsize()

    assert asyncio.run(lose_and_find()) == 0
    with waybill.worker([found]):
        turn.wait(timeout=20)
    assert turn.status == "success"


def test_a_key_for_nothing_ends_the_worker(waybill):
    keyed = type(waybill)(waybill.config.url, "wb_test_not_a_key", waybill.config.project)
    with pytest.raises(ApiError, match="unauthorized"):
        Worker(keyed, [broken]).run()


def test_what_is_wrong_with_a_worker_is_said_at_once(waybill):
    with pytest.raises(ConfigError, match="tools"), Worker(waybill):
        pass
    with pytest.raises(ConfigError, match="async def"):
        Worker(waybill, target="x").turn(lambda turn: None)
    with pytest.raises(ConfigError, match="same name"):
        Worker(waybill, [broken, broken])
    with pytest.raises(Unanswered):
        type(waybill)("http://127.0.0.1:9", patience=0.3).me()
