"""A worker process that asks its own model and answers its own tool. The tests kill it."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from pathlib import Path

import httpx2

from waybill import Call, Profile, Waybill, Worker, tool

TARGET, TOOLS = "mine", "mine-tools"


@tool(effect="idempotent", timeout=20, target=TOOLS)
def count(text: str, call: Call) -> int:
    """Counts the words of a text."""
    time.sleep(float(os.environ.get("CREW_SLOW", "0")))
    if ledger := os.environ.get("CREW_LEDGER"):
        note_once(Path(ledger), call.idempotency_key)
    return len(text.split())


def note_once(ledger: Path, key: str) -> None:
    """Does the work once for each key, whichever process gets the call."""
    with ledger.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if key not in file.read().split():
            file.write(f"{key}\n")


counter = Profile("counter", model="openai_chat/scripted", tools=[count], prompt="You count.", target=TARGET)
#: The scripted model calls the tool twice, and then answers.
RULES = [
    {"n_results": 0, "reply": {"text": "I look.", "calls": [{"name": "count", "arguments": {"text": "one two"}}]}},
    {"n_results": 1, "reply": {"calls": [{"name": "count", "arguments": {"text": "one two three"}}]}},
    {"n_results": 2, "reply": {"text": "Two, and three."}},
]


def crew(wb: Waybill, model_url: str, lease_seconds: float) -> Worker:
    worker = Worker(wb, [count], target=TARGET, at_once=8, lease_seconds=lease_seconds, drain_seconds=10)
    model = httpx2.AsyncClient(base_url=model_url, timeout=30)

    @worker.turn
    async def think(turn):
        async for step in turn.steps():
            said = await model.post("chat/completions", content=step.request_bytes, headers={"content-type": "application/json"})
            said.raise_for_status()
            await step.answer(said)

    return worker


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{os.getpid()}] %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    crew(Waybill(patience=20), sys.argv[1], float(sys.argv[2])).run()
