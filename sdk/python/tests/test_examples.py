"""The examples in Python on a model, in the provider's format. Their own tests, beside them, follow scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waybill.testing import Server

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FOUND = [{"path": "change/shop/login.py", "line": 7, "weight": "must", "text": "SQL"}]


def rule(contains, n_results, text="", **calls):
    asked = [{"name": name, "arguments": arguments} for name, arguments in calls.items()]
    return {"contains": contains, "n_results": n_results, "reply": {"text": text, "calls": asked}}


def write(name):
    return {"path": f"reviews/{name}.json", "content": json.dumps({"findings": FOUND})}


def whole(path):
    return {"path": path, "part": "whole"}


QUOTE = "Support noticed the outage first, at 09:20, by three calls of customers."
TASKS = [{"target_ref": "researcher", "instruction": "Who noticed?"}, {"target_ref": "archivist", "instruction": "Dig."}]
RULES = [
    rule("teapot of order 1042", 0, look_up={"order": "1042"}),
    rule("Ada Lovelace", 1, ask_expert={"expert_profile": "refunds", "question": "Order 1042, a teapot for 38 EUR: broken."}),
    rule("38 EUR: broken", 0, refund={"order": "1042", "euros": 38, "reason": "broken"}),
    rule("refunded 38", 1, "Refunded."),
    rule("Refunded.", 2, "Dear Ada, it is refunded."),
    rule("Who noticed the outage?", 0, fork_join={"tasks": TASKS}),
    rule("Who noticed?", 0, search_knowledge={"question": "Who noticed the outage first?"}),
    rule("Support noticed", 1, f"{QUOTE} (documents/timeline.md v1, lines 10–11)") | {"times": 1},
    rule("Dig.", 0, ask_archive={"question": "Who?"}),
    rule("not answer", 1, "No answer.") | {"times": 1},
    rule(QUOTE, 1, "Support did, says the timeline."),
    rule("`change` package", 0, plan_reading={}),
    rule("high change/shop/login.py", 1, read_artifact=whole("change/shop/login.py")),
    rule("return db.execute", 2, write_artifact=write("security")) | {"times": 1},
    rule("return db.execute", 2, write_artifact=write("style")),
    rule("is stored", 3, "Done."),
    rule("`reviews` package", 0, read_artifact=whole("reviews/security.json")),
    rule("findings", 1, write_artifact=write("judge")),
    rule("is stored", 2, "Done."),
]
SAYS = {
    "support-team/support.py": "The customer reads: Dear Ada, it is refunded.",
    "research-documents/research.py Who noticed the outage?": "documents/timeline.md:10-11",
    "code-review/review.py": "shop/login.py:7  must: SQL",
}


@pytest.fixture
def server(scripted_model, tmp_path):
    (tmp_path / "providers.yaml").write_text(f"provider: {{name: openai_chat, adapter: openai_chat, base_url: {scripted_model(RULES)}}}\n")
    found = Server("--providers", str(tmp_path / "providers.yaml"))
    yield found
    found.remove()


def test_the_examples_run_on_a_model(server):
    started = []
    for command in SAYS:
        program, *question = command.split(" ", 1)
        where = {"WAYBILL_API_URL": server.url, "WAYBILL_PROJECT": server.project().config.project, "MODEL": "openai_chat/gpt-5-mini"}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen([sys.executable, EXAMPLES / program, *question], env=os.environ | where, **streams))
    try:
        for one, said in zip(started, SAYS.values(), strict=True):
            output, _ = one.communicate("y\n", timeout=60)
            assert said in output, output
    finally:
        for one in started:
            one.kill()
            one.wait()
