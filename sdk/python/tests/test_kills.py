"""UI-5: workers are killed, stopped and cut off. Each turn ends once, each step is written once, and each model call has a receipt that renders.

The variables WAYBILL_SDK_TURNS and WAYBILL_SDK_KILLS make it long: `.ci/long sdk`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import crew
from lossy import LossyProxy

N_KILLS = int(os.environ.get("WAYBILL_SDK_KILLS", "12"))
PER_KILL = max(1, int(os.environ.get("WAYBILL_SDK_TURNS", "48")) // N_KILLS)
N_TURNS = N_KILLS * PER_KILL
N_WORKERS, LEASE, LOSS = 3, 2.0, 0.02


def figure(name: str, value: float, bar: str, ok: bool) -> None:
    print(json.dumps({"figure": f"Python SDK: {name}", "value": value, "unit": "", "bar": bar, "ok": ok}))
    assert ok, name


class Crew:
    """Worker processes that are started again whenever they have ended."""

    def __init__(self, environment: dict[str, str], model_url: str, log: Path) -> None:
        self.environment, self.model_url, self.log = environment, model_url, log
        self.members = [self.start() for _ in range(N_WORKERS)]

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(crew.__file__)), self.model_url, str(LEASE)]
        with self.log.open("a") as output:
            return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)

    def strike(self, dice: random.Random, is_kill: bool) -> str:
        """Kills a process, or stops it for longer than its lease."""
        n = dice.randrange(N_WORKERS)
        member = self.members[n]
        if is_kill:
            member.kill()
            member.wait()
            self.members[n] = self.start()
            return "killed"
        member.send_signal(signal.SIGSTOP)
        time.sleep(LEASE * 1.5)
        member.send_signal(signal.SIGCONT)
        return "stopped"

    def end(self) -> None:
        for member in self.members:
            member.send_signal(signal.SIGCONT)
            member.terminate()
        for member in self.members:
            try:
                member.wait(20)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()


def test_workers_are_killed(waybill, scripted_model, tmp_path, capsys):
    waybill.apply(crew.counter)
    proxy = LossyProxy(urlsplit(waybill.config.url).port, LOSS)
    ledger = tmp_path / "ledger"
    environment = os.environ | {
        "WAYBILL_API_URL": proxy.url,
        "WAYBILL_PROJECT": waybill.config.project,
        "CREW_LEDGER": str(ledger),
        "CREW_SLOW": "0.3",
    }
    begun, dice, struck = time.monotonic(), random.Random(7), Counter()
    turns = {}
    workers = Crew(environment, scripted_model(crew.RULES), tmp_path / "log")
    try:
        for n_struck in range(N_KILLS):
            turns |= waybill.run_many("counter", {f"{n_struck}-{n}": "Count." for n in range(PER_KILL)})
            time.sleep(dice.uniform(0.2, 1.0))
            struck["while turns ran"] += bool(waybill.api.list_turns(open=True, most=1).items)
            struck[workers.strike(dice, n_struck % 3 != 2)] += 1
        for turn in turns.values():
            turn.wait(timeout=60 + N_TURNS)
    finally:
        workers.end()
        proxy.close()

    ended = Counter(event["agent_turn_id"] for event in told(waybill, len(turns)))
    with capsys.disabled():
        print()
        figure("workers killed", struck["killed"], ">= 1", struck["killed"] > 0)
        figure("workers stopped for longer than their lease", struck["stopped"], ">= 1", struck["stopped"] > 0)
        figure("kills and stops while turns ran", struck["while turns ran"], f">= {N_KILLS}", struck["while turns ran"] == N_KILLS)
        figure("connections cut", proxy.n_cut, ">= 1", proxy.n_cut > 0)
        failed = [turn.id for turn in turns.values() if turn.status != "success" or turn.deliverable != "Two, and three."]
        figure("turns", len(turns), f">= {N_TURNS}", len(turns) == N_TURNS)
        figure("turns that did not end well", len(failed), "<= 0", not failed)
        figure(
            "turns that ended other than once",
            sum(ended[turn.id] != 1 for turn in turns.values()),
            "<= 0",
            all(ended[one.id] == 1 for one in turns.values()),
        )
        wrong = [turn.id for turn in turns.values() if not is_whole(turn)]
        figure("turns with a step too many or too few", len(wrong), "<= 0", not wrong)
        keys = ledger.read_text().split()
        figure(
            "calls that were done other than once",
            len(keys) - len(set(keys)) + abs(len(set(keys)) - 2 * N_TURNS),
            "<= 0",
            sorted(set(keys)) == sorted(keys),
        )
        calls = waybill.replay(*turns.values())
        n_same = sum(one.request == "ok" and one.cards == "ok" for one in calls.calls)
        figure("model calls that render to the same bytes", n_same, f">= {3 * N_TURNS}", n_same == len(calls.calls) == 3 * N_TURNS)
        took = time.monotonic() - begun
        figure("seconds of the kill test", round(took, 1), "none", True)


def is_whole(turn) -> bool:
    """Checks that each step is written once: three model calls, two calls of the tool with an answer each, one deliverable."""
    kinds = Counter(card.metadata.type for card in turn.cards() if card.metadata)
    steps = [step.step_id for step in turn.steps if step.model]
    return len(steps) == len(set(steps)) == 3 and kinds["tool.call"] == 2 and kinds["tool.result"] == 2 and kinds["task.deliverable"] == 1


def told(waybill, n: int) -> list[dict]:
    """Returns the events of turns that have ended, until there are as many as turns."""
    found = []
    for event in waybill.events(after=0, kinds=["task"]):
        found.append(event.data)
        if len(found) >= n:
            return found
    return found
