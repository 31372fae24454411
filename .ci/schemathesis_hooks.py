"""What `.ci/schemathesis` adds to Schemathesis: ids that exist, and turns and calls that can be written to, so that a request gets
further than a 404. Some of these requests then get unusual values.

    schemathesis_hooks.py seed FOLDER             run a team, and write down the ids of everything that it made
    (as a module of hooks)                        change requests before they are sent
    schemathesis_hooks.py figures FOLDER LEAST    print the figures

Only requests that are valid by the document are changed. Requests that are wrong on purpose stay as they are, and must be refused.
"""

import atexit
import collections
import copy
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ["WAYBILL_API_URL"] + "/v1/projects/demo"
KEY = os.environ["WAYBILL_API_KEY"]
KEY_ID = str(uuid.UUID(KEY.split("_")[2]))
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}

chance = random.Random(os.environ["SEED"])
minted = collections.deque(maxlen=20)


def waits(seconds):
    """Whether the server would wait for so long. A query has its numbers as text, too."""
    try:
        return 0 < float(seconds) <= 30
    except (TypeError, ValueError):
        return False


def new_id():
    """Returns a UUIDv7 of the present time. Others are refused where history is partitioned by them."""
    minted.append(str(uuid.UUID(int=(time.time_ns() // 1_000_000) << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62))))
    return minted[-1]


def some_id():
    """Returns a new id, or sometimes one that was used before for something else."""
    return chance.choice(minted) if minted and chance.random() < 0.1 else new_id()


def ask(path, body=None):
    request = urllib.request.Request(f"{URL}/{path}", None if body is None else json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def seed(folder):
    llm = {"provider": "demo", "model": "demo"}
    profile = {"name": "live", "worker_target": "live", "system_prompt_template": "Live.", "llm_config": llm,
               "allowed_tools": ["live"], "allowed_internal_tools": ["ask_person"]}
    tool = {"name": "live", "description": "Lives.", "target": "live-tools"}
    plan = {"name": "live", "document": ["one", "two"]}
    ask("resources", {"manifests": [{"tool": tool}, {"profile": profile}, {"plan": plan}, {"settings": {"labels": {"of": "ci"}}}]})
    stays = ask("agents", {"profile_name": "archivist"})["agent_id"]
    root = ask("turns", {"profile_name": "editor", "instruction": "How is bread made?"})["agent_turn_id"]
    until = time.monotonic() + 60
    while ask(f"turns/{root}")["turn"]["status"] == "open":
        if time.monotonic() > until:
            sys.exit("the demo team did not finish within 60 s")
        time.sleep(0.2)

    for path in ("reports/summary.json", "reports/log.txt"):
        put = urllib.request.Request(f"{URL}/artifacts?path={path}", b'{"a": 1}', HEADERS | {"Content-Type": "application/octet-stream"}, method="PUT")
        urllib.request.urlopen(put, timeout=30).close()
        put = urllib.request.Request(f"{URL}/knowledge?path={path}", b"Bread is baked.", HEADERS | {"Content-Type": "text/plain"}, method="PUT")
        urllib.request.urlopen(put, timeout=30).close()
    asked = {call_from(live_turn(), "ask_person", "pmo", {"question": "?", "kind": kind}) for kind in ("approval", "question") * 3}
    while len(ask("requests")["items"]) < len(asked):
        if time.monotonic() > until:
            sys.exit("the requests to people did not appear within 60 s")
        time.sleep(0.2)
    turns = ask(f"turns/{root}/tree")["turns"]
    boxes = {turn[box] for turn in turns for box in ("profile_box_id", "context_box_id", "output_box_id")}
    found = {
        "turn": {turn["agent_turn_id"] for turn in turns},
        "path": {"reports/summary.json", "reports/log.txt"},
        "call": asked,
        "agent": {turn["agent_id"] for turn in turns} | {stays},
        "batch": {turn["batch_id"] for turn in turns} - {None},
        "box": boxes,
        "card": {placed["reading"]["card_id"] for box in boxes for placed in ask(f"boxes/{box}/cards")["items"]},
        "step": {step["step_id"] for turn in turns for step in ask(f"turns/{turn['agent_turn_id']}")["steps"]},
        "key": {ask("keys", {"name": f"spare-{n}", "scope": "reader"})["key_id"] for n in range(3)},
        "name": ["live", "archivist"],
        "target": ["live", "live-tools"],
        "worker": ["fuzz-1", "fuzz-2"],
    }
    for name, values in found.items():
        with open(f"{folder}/{name}.dict", "w") as file:
            # Schemathesis uses the first value most often.
            file.writelines(f'"{value}"\n' for value in (values if isinstance(values, list) else sorted(values)))


def figures(folder, least):
    if not os.path.exists(f"{folder}/report.json") or not os.path.exists(f"{folder}/answers.json"):
        sys.exit("Schemathesis did not finish")
    with open(f"{folder}/answers.json") as file:
        answers = json.load(file)
    with open(f"{folder}/report.json") as file:
        report = json.load(file)
    n_sent, n_failed = sum(answers.values()), report["test_cases"]["unique_failures"] + len(report["errors"])
    print("answers:", ", ".join(f"{n} of {status}" for status, n in sorted(answers.items())))
    sent = {"figure": "schemathesis: requests", "value": n_sent, "unit": "requests", "bar": f">= {least}", "ok": n_sent >= least}
    # An incomplete run may have missed failures.
    is_clean = n_failed == 0 and report["complete"]
    failed = {"figure": "schemathesis: failures", "value": n_failed, "unit": "failures", "bar": "<= 0", "ok": is_clean}
    print(json.dumps(sent), json.dumps(failed), sep="\n")
    sys.exit(not (sent["ok"] and failed["ok"]))


def live_turn():
    """Starts and claims a turn, so that we can write to it."""
    ask("turns", {"profile_name": "live", "instruction": "Be fuzzed."})
    # A new worker name, because other requests make known workers leave.
    return ask("worker/claim", {"worker": new_id(), "target": "live", "wait_seconds": 10})["turns"][0]


def call_from(turn, tool_name, target, arguments):
    """Lets a turn make a call and wait for it. Returns the id of the call."""
    call_id, card_id = new_id(), new_id()
    content = {"tool_name": tool_name, "arguments": json.dumps(arguments)}
    card = {"card_id": card_id, "type": "tool.call", "role": "assistant", "tool_call_id": call_id, "content": content}
    call = {"tool_call_id": call_id, "tool_call_card_id": card_id, "target": target, "timeout_seconds": 60}
    step = {"fence": turn["fence"], "step_id": new_id(), "cards": [card], "calls": [call], "suspend": True}
    ask(f"turns/{turn['agent_turn_id']}/steps", step)
    return call_id


def live_call():
    """Makes and claims a call, so that we can answer it."""
    worker = new_id()
    call_from(live_turn(), "live", "live-tools", {})
    return ask("calls/claim", {"worker": worker, "target": "live-tools", "wait_seconds": 10})["calls"][0] | {"worker": worker}


def mend(body, ends):
    """Gives cards known types, and calls a card each. Their generated content stays."""
    # A check may send a request again. Then it was roughened already.
    cards = [card for card in body.get("cards") or [] if isinstance(card, dict)]
    calls = [call for call in body.get("calls") or [] if isinstance(call, dict)]
    for card in cards:
        card["card_id"] = some_id()
        card["type"] = chance.choice(["agent.thought", "agent.reasoning", "context.todo", "tool.result", "of.mine"])
        if card["type"] == "tool.result":
            card["tool_call_id"] = some_id()
            card["content"] = {"status": "success", "result": card.get("content")}
    if ends and cards:
        cards[-1]["type"] = "task.deliverable"
    for call in calls:
        call |= {"tool_call_id": some_id(), "tool_call_card_id": some_id(), "target": "live-tools"}
        asked = {"type": "tool.call", "role": "assistant", "content": {"tool_name": "live", "arguments": "{}"}}
        cards.append({"card_id": call["tool_call_card_id"], "tool_call_id": call["tool_call_id"]} | asked)
    body["cards"] = cards


def roughen(value):
    """Replaces one value, somewhere inside, with one that may cause trouble in a database."""
    places = list(value.items() if isinstance(value, dict) else enumerate(value))
    if not places:
        return
    place, inner = chance.choice(places)
    if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
        roughen(inner)
    elif isinstance(inner, list):
        value[place] = inner[:100] * 2
    elif isinstance(inner, str):
        value[place] = chance.choice(["", "\0", inner + "\0", "\u241b", "\u00e9" * 150, "x" * 100_000, some_id()])
    elif isinstance(inner, (int, float)):
        value[place] = chance.choice([-1, 0, 1e300, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63])
    else:
        value[place] = None


def hook():
    import schemathesis

    answers = collections.Counter()

    @schemathesis.hook
    def before_load_schema(context, raw_schema):
        """In OpenAPI 3.1 an event stream is a string, but Schemathesis expects the schema of one event."""
        text = {"type": "string"}
        event = {"type": "object", "required": ["event", "data"], "properties": {"event": text, "data": text, "id": text}}
        for path in raw_schema["paths"].values():
            for operation in path.values():
                for response in operation["responses"].values():
                    stream = response.get("content", {}).get("text/event-stream", {})
                    if stream.get("schema") == text:
                        stream["schema"] = event

    @schemathesis.hook
    def before_call(context, case, kwargs):
        # Copy, because generated values may be shared between requests.
        case.path_parameters, case.body = copy.deepcopy(case.path_parameters), copy.deepcopy(case.body)
        path, named, body = case.operation.path.removeprefix("/v1/projects/{project}"), case.path_parameters, case.body
        if case.method == "DELETE" and named.get("key") == KEY_ID:
            named["key"] = new_id()  # the other requests need our key
        case.query = dict(case.query) if isinstance(case.query, dict) else case.query
        if isinstance(case.query, dict) and waits(case.query.get("wait_seconds")):
            case.query["wait_seconds"] = 0
        if not isinstance(body, dict):
            return
        if path.endswith("/claim") and waits(body.get("wait_seconds")):
            body["wait_seconds"] = 0
        if not case.meta or not case.meta.generation.mode.is_positive or chance.random() < 0.3:
            return
        try:
            if path in ("/turns/{turn}/steps", "/turns/{turn}/finish", "/turns/{turn}/give-back"):
                turn = live_turn()
                named["turn"], body["fence"] = turn["agent_turn_id"], turn["fence"]
                if not path.endswith("/give-back") and chance.random() < 0.8:
                    mend(body, path.endswith("/finish"))
            elif path == "/calls/{call}/report":
                call = live_call()
                named["call"], body["claim_token"], body["worker"] = call["tool_call_id"], call["claim_token"], call["worker"]
        except urllib.error.HTTPError as error:
            # Turns that the other requests started wait too long: the project may start no more.
            if error.code != 429:
                raise
        if chance.random() < 0.25:
            roughen(body)

    @schemathesis.hook
    def after_call(context, case, response):
        answers[response.status_code] += 1

    @atexit.register
    def write():
        with open(os.environ["ANSWERS"], "w") as file:
            json.dump(answers, file)


match sys.argv[1:] if __name__ == "__main__" else ["hook"]:
    case ["seed", folder]:
        seed(folder)
    case ["figures", folder, least]:
        figures(folder, int(least))
    case ["hook"]:
        hook()
