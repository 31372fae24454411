"""What followed from a card (NX-3), in random histories, compared with a walk that reads everything there is."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from waybill import Waybill
from waybill.testing import Server

HISTORIES = int(os.environ.get("WAYBILL_HISTORIES", "25"))
#: Cards of each history that are asked about.
SEEDS = 6
WORDS = ["bread", "salt", "flour", "oven", "dough", "yeast", "crust", "kneading", "rye", "starter"]


def sentence(dice: random.Random, least: int = 4) -> str:
    return " ".join(dice.choices(WORDS, k=dice.randint(least, 3 * least)))


class History:
    """A project in which agents delegate, ask, note, remember and are forked at random."""

    def __init__(self, wb: Waybill, seed: int) -> None:
        self.wb, self.dice = wb, random.Random(seed)

    def play(self) -> None:
        self.wb.api.apply_resources({"manifests": [self.profile(name) for name in ("lead", "helper", "expert")]})
        sessions = [self.wb.api.open_session({}).session_id for _ in range(2)]
        ended: list[str] = []
        for _ in range(self.dice.randint(3, 5)):
            start: dict[str, Any] = {"profile_name": "lead", "instruction": sentence(self.dice)}
            if self.dice.random() < 0.6:
                start["session_id"] = self.dice.choice(sessions)
            if ended and self.dice.random() < 0.5:
                start["context_box_ids"] = [self.wb.api.show_turn(self.dice.choice(ended)).turn.output_box_id]
            started = self.wb.api.start_turn(start).agent_turn_id
            self.wb.turn(started).wait(timeout=60)
            ended.append(started)
        receipts = {turn_id: found for turn_id in ended if (found := self.wb.api.list_receipts(turn_id))}
        source, found = self.dice.choice(sorted(receipts.items(), key=lambda item: item[0]))
        step_id = self.dice.choice(found).step_id
        forked = self.wb.api.fork_turn(source, {"step_id": step_id, "live_tools": True, "profile_patch": {"system_prompt_template": "You hurry."}})
        self.wb.turn(forked.agent_turn_id).wait(timeout=60)
        while self.wb.api.list_turns(open=True, roots=False).items:  # what nobody waited for
            time.sleep(0.05)

    def profile(self, name: str) -> dict[str, Any]:
        tools = {"lead": ["fork_join", "ask_expert", "delegate_async", "update_todo"], "helper": ["ask_expert"], "expert": []}[name]
        memory = {"budget": self.dice.choice([1_500, 3_000, 100_000]), "n_pinned": 0, "compaction": {"at_percent": 60, "keep": 150, "least": 50}}
        script = [self.line(name, tools) for _ in range(self.dice.randint(0, 3) if tools else 0)]
        return {
            "profile": {
                "name": name,
                "worker_target": "llm",
                "system_prompt_template": f"You are the {name}.",
                "allowed_internal_tools": tools,
                "delegation_policy": {"target_profiles": ["helper", "expert"]},
                "memory": memory,
                "llm_config": {"provider": "demo", "model": "demo", "params": {"script": [*script, {"say": sentence(self.dice)}]}},
            }
        }

    def line(self, name: str, tools: list[str]) -> dict[str, Any]:
        tool = self.dice.choice(tools)
        other = "helper" if name == "lead" and self.dice.random() < 0.7 else "expert"
        task = {"target_ref": other, "instruction": sentence(self.dice)}
        arguments: dict[str, Any] = {
            "fork_join": {"tasks": [task, {**task, "instruction": sentence(self.dice)}]},
            "ask_expert": {"expert_profile": "expert", "question": sentence(self.dice), "include_history": self.dice.random() < 0.5},
            "delegate_async": {**task, "wait": self.dice.random() < 0.7},
            "update_todo": {"items": [{"text": sentence(self.dice), "status": "open"}]},
        }[tool]
        return {"say": sentence(self.dice, 20), "call": {tool: arguments}}


class Everything:
    """All turns of a project, with all that each of their calls was shown."""

    def __init__(self, wb: Waybill) -> None:
        api = wb.api
        self.turns = {one.agent_turn_id: one for one in _pages(lambda after: api.list_turns(after=after, most=1000))}
        self.boxes: dict[str, list[Any]] = {}
        self.calls: dict[str, list[tuple[str, Any, set[str], bool, set[str]]]] = {}
        self.arguments: dict[str, list[str]] = {}
        for turn_id, turn in self.turns.items():
            for box_id in (turn.context_box_id, turn.output_box_id):
                self.boxes[box_id] = list(_pages(lambda after, box_id=box_id: api.list_cards(box_id, after=after, most=1000)))
            self.calls[turn_id] = []
            for one in api.list_receipts(turn_id):
                seen = api.show_context(turn_id, step_id=one.step_id, bodies=False)
                shown = {source.card_id for message in seen.messages for source in message.sources}
                covered = {card_id for omitted in seen.omitted if omitted.reason == "covered" for card_id in omitted.card_ids}
                # Summaries and questions stand in messages of their own; the prompt and the tools are not followed.
                has_todo = any(block.key == "todo__context" for block in one.receipt.blocks)
                self.calls[turn_id].append((one.step_id, one.receipt, shown, has_todo, covered))
            parts = _pages(lambda after, turn_id=turn_id: api.list_handovers(turn_id, after=after))
            places = {place for part in parts if part.rule == "argument" for place in range(part.from_place, part.from_place + part.n_cards)}
            cards = [card_id(placed) for placed in self.boxes[turn.context_box_id] if placed.place in places]
            self.arguments[turn_id] = [*cards, *(turn.query_card_ids or [])]
        sessions = {turn.session_id for turn in self.turns.values() if turn.session_id}
        changes = {one: list(_pages(lambda after, one=one: api.list_changes(one, after=after))) for one in sessions}
        self.todos = {one: [change for change in listed if "todo" in change.patch] for one, listed in changes.items()}

    def followed(self, seed: str) -> tuple[dict[str, tuple[str, dict[str, str]]], int]:
        """Returns the turns that saw a card or could, with their calls, and how many cards were written after seeing it."""
        tainted, first = {seed}, dict[str, int]()
        bad_todos: set[str] = set()
        while True:
            before = (len(tainted), len(first), len(bad_todos), sum(first.values()))
            for turn_id, calls in self.calls.items():
                saw = [n for n, call in enumerate(calls) if self.how(turn_id, call, seed, tainted, bad_todos)]
                if not saw:
                    continue
                first[turn_id] = min(saw)
                turn, since = self.turns[turn_id], calls[saw[0]][1].output.upto + 1
                tainted |= {card_id(placed) for placed in self.boxes[turn.output_box_id] if placed.place >= since}
                steps = {call[0] for call in calls[saw[0] :]}
                for other_id, other in self.turns.items():
                    if other.parent_step_id in steps:
                        tainted |= set(self.arguments[other_id])
                if turn.parent_tool_call_id:
                    parent = self.turns[turn.parent_agent_turn_id]
                    results = (placed for placed in self.boxes[parent.output_box_id] if tool_result_of(placed) == turn.parent_tool_call_id)
                    tainted |= {card_id(placed) for placed in results}
                bad_todos |= {change.step_id for change in self.todos.get(turn.session_id, []) if change.step_id in steps}
            if before == (len(tainted), len(first), len(bad_todos), sum(first.values())):
                break
        found: dict[str, tuple[str, dict[str, str]]] = {}
        for turn_id, turn in self.turns.items():
            calls = {call[0]: how for call in self.calls[turn_id] if (how := self.how(turn_id, call, seed, tainted, bad_todos))}
            has = {card_id(placed) for box_id in (turn.context_box_id, turn.output_box_id) for placed in self.boxes[box_id]}
            # A fork reads boxes of the turn that it forks.
            for span in (span for call in self.calls[turn_id] for span in [*call[1].history, call[1].output]):
                has |= {card_id(placed) for placed in self.boxes.get(span.box_id, []) if span.from_ <= placed.place <= span.upto}
            if calls or has & tainted:
                how = "did" if "did" in calls.values() else "derived" if calls else "could"
                found[turn_id] = (how, calls)
        return found, len(tainted) - 1

    def how(self, turn_id: str, call: Any, seed: str, tainted: set[str], bad_todos: set[str]) -> str | None:
        _, receipt, shown, has_todo, covered = call
        if seed in shown:
            return "did"
        if (shown | covered) & tainted:
            return "derived"
        if has_todo:
            before = [one for one in self.todos.get(self.turns[turn_id].session_id, []) if one.created_at <= receipt.read_at]
            if before and max(before, key=lambda one: one.created_at).step_id in bad_todos:
                return "derived"
        return None


def _pages(page: Any) -> Any:
    after = None
    while True:
        one = page(after)
        yield from one.items
        if one.next is None:
            return
        after = one.next


def card_id(placed: Any) -> str:
    reading = placed.reading
    return (getattr(reading, "root", reading)).card_id


def tool_result_of(placed: Any) -> str | None:
    reading = getattr(placed.reading, "root", placed.reading)
    return reading.tool_call_id if getattr(reading, "metadata", None) and reading.metadata.type == "tool.result" else None


def check(server: Server, seed: int, counted: dict[str, int], lock: threading.Lock) -> None:
    with server.project() as wb:
        history = History(wb, seed)
        history.play()
        everything = Everything(wb)
        cards = sorted({card_id(placed) for box in everything.boxes.values() for placed in box})
        for asked in history.dice.sample(cards, min(SEEDS, len(cards))):
            told = wb.api.show_blast(asked)
            got = {one.agent_turn_id: (one.how, {call.step_id: call.how for call in one.calls}) for one in told.turns}
            expected, n_derived = everything.followed(asked)
            assert got == expected, f"history {seed}, card {asked}"
            assert (told.n_derived_cards, told.is_cut) == (n_derived, False), f"history {seed}, card {asked}"
            with lock:
                for how, _ in got.values():
                    counted[how] = counted.get(how, 0) + 1


def test_a_walk_finds_what_a_walk_over_everything_finds(waybill_server: Server) -> None:
    counted, lock = dict[str, int](), threading.Lock()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(check, waybill_server, seed, counted, lock) for seed in range(HISTORIES)]:
            done.result()
    assert all(counted.get(how, 0) > HISTORIES for how in ("did", "derived", "could")), counted
