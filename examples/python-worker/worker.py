#!/usr/bin/env python3
"""A Waybill worker in plain Python: the standard library, and nothing of Waybill's.

It counts the words of an instruction; with --tool it answers calls instead. Everything else is what a worker does in any
language: claim, keep the lease, write a step, finish, and know what to do when it is told that it is too late.

It keeps nothing, so it may be killed at any time. What was done is in the turn's output box, and whoever has the turn next
goes on from there. Ids are minted once for each write, which may then be sent again until it is known to have arrived.
"""

import argparse
import fcntl
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid


def uuid7():
    """48 bits of milliseconds, the version, 12 random bits, the variant, 62 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    bits = milliseconds << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)
    return str(uuid.UUID(int=bits))


class Refused(Exception):
    """It was understood, and will not be done: sending it again would not help."""

    def __init__(self, status, problem):
        super().__init__(f"{status} {problem.get('code')}: {problem.get('detail')}")
        self.code = problem.get("code")


class Lost(Exception):
    """Whatever is held may be somebody else's by now: drop it all, and go on under another name."""


class Unanswered(Lost):
    """Nobody answered, for as long as we cared to ask. Whether it was done is not known."""


class Api:
    def __init__(self, url, key, project):
        self.base = f"{url.rstrip('/')}/v1/projects/{urllib.parse.quote(project, safe='')}"
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path):
        return self.ask("GET", path, None, patience=60)

    def post(self, path, body, patience=60):
        return self.ask("POST", path, json.dumps(body).encode(), patience)

    def ask(self, method, path, body, patience):
        """Asks with the same bytes until there is an answer, for `patience` seconds."""
        give_up_at, pause = time.monotonic() + patience, 0.2
        while True:
            request = urllib.request.Request(f"{self.base}/{path}", body, self.headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                problem = read_problem(error)
                if error.code == 410:
                    raise Lost(problem.get("detail")) from None
                if error.code < 500 and error.code != 429:
                    raise Refused(error.code, problem) from None
                why, pause = f"{error.code} {problem.get('code')}", max(pause, problem.get("retry_after", 0))
            except (OSError, http.client.HTTPException) as error:
                why = repr(error)
            if time.monotonic() + pause > give_up_at:
                raise Unanswered(f"{method} {path}: {why}")
            time.sleep(pause * random.uniform(0.5, 1))  # not all workers at once
            pause = min(pause * 2, 5)


def read_problem(error):
    try:
        return json.load(error)
    except (ValueError, OSError, http.client.HTTPException):
        return {}  # it was not the API that answered, or not all of it arrived


class Lease:
    """One name of this process, for as long as it is taken for alive."""

    def __init__(self, api, seconds):
        self.api, self.seconds = api, seconds
        self.me = {"worker": f"python-{uuid.uuid4()}"}
        self.beat = self.me | {"lease_seconds": seconds}
        self.over = threading.Event()
        self.stop_asked = set()
        self.thread = None

    def claim(self, path, kind, target):
        """Takes one turn or call, or waits for one. `kind` is what the answer calls them."""
        try:
            claimed = self.api.post(path, self.beat | {"target": target, "wait_seconds": 20}, patience=0)[kind]
        except Unanswered:
            # We may hold what only the answer was lost of. Another claim would not bring it, and our heartbeats would keep
            # everybody else from it: ask what we hold. Where that is nothing there may be no lease either, and we are Lost.
            claimed = self.api.post("worker/heartbeat", self.beat)[kind]
        if claimed and self.thread is None:
            # Only now: a lease begins with a claim, and without one a heartbeat is refused.
            self.thread = threading.Thread(target=self.keep, daemon=True)
            self.thread.start()
        return claimed

    def keep(self):
        """Beats apart from the work, which may take as long as it takes."""
        while not self.over.is_set():
            try:
                held = self.api.post("worker/heartbeat", self.beat, patience=0)["turns"]
                self.stop_asked = {turn["agent_turn_id"] for turn in held if turn["stop_asked"]}
            except (Unanswered, Refused) as error:
                say(f"heartbeat: {error}")  # the next may still be in time
            except Lost:
                self.over.set()
            self.over.wait(self.seconds / 3)

    def pause(self, seconds, turn_id):
        """Stands for slow work, which looks up now and then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and turn_id not in self.stop_asked:
            if self.over.wait(0.05):
                raise Lost("the lease was lost")

    def leave(self):
        """What is still held goes to others at once, and not when the lease lapses."""
        self.over.set()
        try:
            self.api.post("worker/leave", self.me, patience=0)
        except (Lost, Refused) as error:
            say(f"leave: {error}")


def count(text):
    """The work itself. Whoever does it again gets the same."""
    words = text.split()
    return {"words": len(words), "letters": sum(map(str.isalpha, text)), "longest": max(words, key=len, default="")}


def card(card_type, content):
    return {"card_id": uuid7(), "type": card_type, "role": "assistant", "content": content}


def cards_of(api, box_id):
    """The cards of a box that can still be read, page by page."""
    after = 0
    while after is not None:
        page = api.get(f"boxes/{box_id}/cards?after={after}")
        yield from (item["reading"] for item in page["items"] if item["reading"]["state"] == "live")
        after = page["next"]


def run_turn(api, lease, turn, options):
    """One turn, top to bottom."""
    turn_id, fence = turn["agent_turn_id"], turn["fence"]
    queries = api.post("cards/batch", {"card_ids": turn["query_card_ids"]})["found"]
    text = "\n".join(str(query["content"]) for query in queries if query["state"] == "live")
    context = list(cards_of(api, turn["context_box_id"]))
    written = list(cards_of(api, turn["output_box_id"]))
    stop = turn["stop_asked"]

    # Whoever had the turn before us may have come so far: a step that is there is not written again.
    is_thought = any(one["metadata"]["type"] == "agent.thought" for one in written)
    say(f"turn {turn_id}: {'taken over' if is_thought else 'begun'}")
    if not is_thought and not stop:
        thought = card("agent.thought", f"I count the words of {text!r}, and leave {len(context)} cards of context alone.")
        step = api.post(f"turns/{turn_id}/steps", {"fence": fence, "step_id": uuid7(), "cards": [thought]})
        stop = step["stop_reason"] is not None
    if not stop:
        lease.pause(options.slow, turn_id)

    # Also a turn that somebody stopped ends with a deliverable.
    stop = stop or turn_id in lease.stop_asked
    status, content = ("canceled", "I was asked to stop.") if stop else ("success", count(text))
    ending = {"fence": fence, "status": status, "step_id": uuid7(), "cards": [card("task.deliverable", content)]}
    api.post(f"turns/{turn_id}/finish", ending)
    say(f"turn {turn_id}: {status}")


def once(ledger, key):
    """Notes that it was done, unless it is noted: whoever is given the same call again has the same key."""
    with open(ledger, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if key not in file.read().split():
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())


def answer_call(api, lease, call, options):
    """One call. What cannot be done is an answer, too: the model reads it, and may call again."""
    if options.ledger:
        once(options.ledger, call["idempotency_key"])
    lease.pause(options.slow, call["agent_turn_id"])
    try:
        status, result = "success", count(json.loads(call["arguments"])["text"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        status, result = "failed", f"the arguments are {{\"text\": …}}: {error!r}"
    report = lease.me | {"claim_token": call["claim_token"], "card_id": uuid7(), "status": status, "result": result}
    reported = api.post(f"calls/{call['tool_call_id']}/report", report)
    say(f"call {call['tool_call_id']}: {status}, {reported['outcome']}")


def serve(api, lease, options):
    """One thing after the other, while the lease holds."""
    path, kind, act = ("calls/claim", "calls", answer_call) if options.tool else ("worker/claim", "turns", run_turn)
    while True:
        for one in lease.claim(path, kind, options.target):
            try:
                act(api, lease, one, options)
            except Lost:
                raise
            except Exception as error:
                say(f"{kind}: {error!r}")
                if getattr(error, "code", None) == "stale":
                    continue  # another has it, or it is over
                if options.tool:
                    raise Lost("a call cannot be given back, but we can leave") from error
                back = {"fence": one["fence"], "error": repr(error), "backoff_seconds": 2}
                api.post(f"turns/{one['agent_turn_id']}/give-back", back)  # tried three times, then it fails


def say(text):
    print(f"{time.strftime('%H:%M:%S')} [{os.getpid()}] {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="The key is read from WAYBILL_API_KEY.")
    parser.add_argument("--url", default=os.environ.get("WAYBILL_API_URL", "http://127.0.0.1:7070"))
    parser.add_argument("--project", default=os.environ.get("WAYBILL_PROJECT") or "demo")
    parser.add_argument("--tool", action="store_true", help="answer calls, and run no turns")
    parser.add_argument("--target", help="whose turns, or calls: `python`, or with --tool `python-tools`")
    parser.add_argument("--lease", type=float, default=10, help="seconds of silence after which others get what we hold")
    parser.add_argument("--slow", type=float, default=0, help="seconds that the work takes, so that it can be killed in it")
    parser.add_argument("--ledger", help="a file in which each call that was done is noted once, by its key")
    options = parser.parse_args()
    options.target = options.target or ("python-tools" if options.tool else "python")
    api = Api(options.url, os.environ.get("WAYBILL_API_KEY"), options.project)

    # Raises SystemExit wherever the main thread is, in a long poll too; `finally` leaves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, lambda *_: sys.exit())
    say(f"waiting for work of `{options.target}`")
    while True:
        lease = Lease(api, options.lease)
        try:
            serve(api, lease, options)
        except Lost as lost:
            say(f"under another name: {lost}")
            time.sleep(random.uniform(0.2, 1))  # a server that refuses everything is not asked without end
        except Refused as refused:
            sys.exit(str(refused))  # the key, the project or the target is wrong: nothing that waiting would mend
        finally:
            lease.leave()


if __name__ == "__main__":
    main()
