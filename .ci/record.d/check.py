"""Runs every set-up of setups.py directly against the scripted model, then through Waybill's recording proxy, and compares: what the set-ups
printed, what the model received, and what Waybill recorded.

    check.py --model URL --proxy URL --tap PORT [--data FOLDER] [--json] [NAME …]

The proxy's upstream is the port `--tap`: this program listens there and relays to the model, so it sees the bytes on both sides of the proxy.
"""

import argparse
import asyncio
import collections
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import urllib.error
import urllib.request

from tap import Exchange, Tap

HERE = pathlib.Path(__file__).parent
PROJECT = "local"
N_AT_ONCE = 2
TIMEOUT = 90
NOT_FOR_SETUPS = ("WAYBILL_", "OPENAI_", "ANTHROPIC_", "LANGSMITH_", "LANGCHAIN_")
KEYS = {"openai": "sk-record-openai-51c7e0a4", "anthropic": "sk-ant-record-8f20b93d"}
TEXTS = ["Zürich is warmest: 21 °C. 🌤 Quito has 14 °C and Oslo 3 °C.", "Lima has 19 °C, so Zürich stays first."]
CALLS = ["Zürich", "Oslo", "Quito", "Lima"]

# The scripted model makes ids from the time of its start and the ordinal of the request. The frameworks make up nothing else.
MODEL_ID = re.compile(rb"([0-9a-f]{16})([0-9a-f]{6})")
# Headers that belong to a connection, not to the request. A proxy that reads the answers may refuse to have them compressed.
OF_CONNECTION = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding"}
OF_ANSWER = {"connection", "keep-alive", "transfer-encoding", "date"}


class Run:
    """A set-up that ran: what it printed, and what it sent."""

    def __init__(self, name: str, printed: dict, exchanges: list[Exchange], prefix: dict[str, str]):
        self.name = name
        self.printed = printed
        self.exchanges = sorted(exchanges, key=ordinal)
        self.prefix = prefix

    def requests(self) -> list[tuple]:
        """Returns the requests as they are in every run: without the ids of the scripted model."""
        return sorted((self.path(one), headers(one.headers, OF_CONNECTION), without_ids(one.body)) for one in self.exchanges)

    def path(self, exchange: Exchange) -> str:
        """Returns the path as the provider has it."""
        prefix = next((prefix for prefix in self.prefix.values() if prefix and exchange.path.startswith(prefix)), "")
        return exchange.path.removeprefix(prefix)


def ordinal(exchange: Exchange) -> int:
    """Returns the place of the request in the model's ledger, which its answer names."""
    found = MODEL_ID.search(exchange.answer)
    return int(found[2], 16) if found else -1


def without_ids(body: bytes) -> bytes:
    """Numbers the ids in the order in which they appear, so that it still shows which are the same."""
    seen: dict[bytes, int] = {}
    return MODEL_ID.sub(lambda found: b"ID%d" % seen.setdefault(found[0], len(seen)), body)


def headers(listed: list[tuple[str, str]], but: set[str]) -> tuple:
    return tuple(sorted((name, value) for name, value in listed if name not in but))


def difference(before, after) -> str:
    """Says how what is before the proxy differs from what is behind it. Empty means not at all."""
    if before == after:
        return ""
    if isinstance(before, tuple):
        return f"only before the proxy {sorted(set(before) - set(after))}, only behind it {sorted(set(after) - set(before))}"
    if isinstance(before, bytes):
        at = len(os.path.commonprefix([before, after]))
        return f"of {len(before)} and {len(after)} bytes, from byte {at}: {before[at : at + 60]!r}, behind the proxy {after[at : at + 60]!r}"
    return f"{before!r}, behind the proxy {after!r}"


class Family:
    """The set-ups of one framework, which run one after the other."""

    def __init__(self, names: list[str]):
        self.names = names
        self.process = None

    async def start(self) -> None:
        # Nothing in the environment names Waybill, and each set-up gets its own addresses and keys.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(NOT_FOR_SETUPS)}
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, HERE / "setups.py", "--serve", env=kept, stdin=pipe, stdout=pipe, start_new_session=True)

    async def run(self, name: str, port: int, prefix: dict[str, str]) -> Run:
        """Runs a set-up against a port."""
        if not self.process:
            await self.start()
        tap = await Tap(port).start()
        base = f"http://127.0.0.1:{tap.port}"
        environment = {
            "OPENAI_BASE_URL": f"{base}{prefix['openai']}/v1",
            "ANTHROPIC_BASE_URL": f"{base}{prefix['anthropic']}",
            "OPENAI_API_KEY": KEYS["openai"],
            "ANTHROPIC_API_KEY": KEYS["anthropic"],
        }
        try:
            self.process.stdin.write(json.dumps({"name": name, "environment": environment}).encode() + b"\n")
            printed = json.loads(await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT))
        except (OSError, TimeoutError, ValueError) as error:
            print(f"{name}: {error!r}", file=sys.stderr)
            printed = {"failed": True}
            self.stop()
        finally:
            await tap.stop()
        return Run(name, printed, tap.exchanges(), prefix)

    def stop(self) -> None:
        """Ends the process, and the set-up that it may be running."""
        if self.process and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None


async def run_all(families: list[Family], port: int, prefix: dict[str, str]) -> dict[str, Run]:
    free = asyncio.Semaphore(N_AT_ONCE)

    async def some(family: Family) -> list[Run]:
        async with free:
            return [await family.run(name, port, prefix) for name in family.names]

    return {run.name: run for runs in await asyncio.gather(*map(some, families)) for run in runs}


class Waybill:
    """What the HTTP API says about the recorded calls."""

    def __init__(self, url: str):
        self.base = f"{url}/v1/projects/{PROJECT}"

    def ask(self, path: str, body: dict | None = None) -> bytes:
        request = urllib.request.Request(f"{self.base}{path}", None if body is None else json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        if key := os.environ.get("WAYBILL_API_KEY"):
            request.add_header("authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    async def until_up(self) -> None:
        for _ in range(300):
            try:
                self.ask("/turns?most=1")
                return
            except (urllib.error.URLError, OSError):
                await asyncio.sleep(0.2)
        sys.exit(f"Waybill does not answer at {self.base}")

    def turns(self) -> list[dict]:
        turns, after = [], ""
        while True:
            page = json.loads(self.ask(f"/turns?status=recorded&most=100{after}"))
            turns += page["items"]
            if not page["next"]:
                return turns
            after = f"&after={page['next']}"

    def receipts(self, turn_id: str) -> list[dict]:
        return json.loads(self.ask(f"/turns/{turn_id}/receipts"))

    def request(self, turn_id: str, step_id: str) -> bytes:
        """Returns the recorded request, byte for byte."""
        return self.ask(f"/turns/{turn_id}/context/request?step_id={step_id}")

    def n_verified(self, turn_id: str) -> int:
        """Returns how many calls of the turn Waybill composes again, from its record, to the bytes that were sent."""
        calls, after = [], None
        while True:
            page = json.loads(self.ask(f"/turns/{turn_id}/context/verify", {"after": after} if after else {}))
            calls += page["items"]
            if not page["next"]:
                break
            after = page["next"]
        for call in calls:
            if (call["request"], call["cards"]) != ("ok", "ok"):
                print(f"turn {turn_id}, step {call['step_id']}: {call['why']}", file=sys.stderr)
        return sum((call["request"], call["cards"]) == ("ok", "ok") for call in calls)


class Recorded:
    """A recorded turn with its calls."""

    def __init__(self, waybill: Waybill, turn: dict):
        self.turn = turn
        self.turn_id = turn["agent_turn_id"]
        self.receipts = waybill.receipts(self.turn_id)
        self.bodies = [self._body(waybill, receipt["step_id"]) for receipt in self.receipts]
        self.n_verified = waybill.n_verified(self.turn_id)

    def add(self, other: "Recorded") -> None:
        """Adds the calls of a turn that departs from this one."""
        self.receipts += other.receipts
        self.bodies += other.bodies
        self.n_verified += other.n_verified
        for name in ("input_tokens", "output_tokens"):
            self.turn[name] += other.turn[name]

    def _body(self, waybill: Waybill, step_id: str) -> bytes | None:
        try:
            return waybill.request(self.turn_id, step_id)
        except urllib.error.HTTPError as error:
            print(f"turn {self.turn_id}, step {step_id}: {error.read().decode()[:500]}", file=sys.stderr)
            return None


async def read_recorded(waybill: Waybill, n_calls: int) -> list[Recorded]:
    """Reads what was recorded. A call may be recorded shortly after its answer has ended, so it waits until there are as many as expected."""
    for _ in range(50):
        turns = waybill.turns()
        if sum(len(waybill.receipts(turn["agent_turn_id"])) for turn in turns) >= n_calls:
            break
        await asyncio.sleep(0.2)
    recorded = [Recorded(waybill, turn) for turn in turns]
    # A conversation whose client changes an earlier message goes on in a turn that departs from the last one.
    by_id = {one.turn_id: one for one in recorded}
    for one in sorted(recorded, key=lambda one: one.turn_id):
        source = by_id.get(one.turn["forked_from"])
        if source:
            source.add(one)
            by_id[one.turn_id] = source
    return [one for one in recorded if by_id[one.turn_id] is one]


def is_one_conversation(recorded: list[Recorded], run: Run) -> bool:
    """Whether the turns that end with a request of this run hold all its requests, each conversation in a turn of its own, in the order in
    which the model got them."""
    places = {}
    for exchange in run.exchanges:
        places.setdefault(exchange.body, ordinal(exchange))
    turns = [one for one in recorded if one.bodies and one.bodies[-1] in places]
    in_order = all([places.get(body, -1) for body in one.bodies] == sorted(places.get(body, -1) for body in one.bodies) for one in turns)
    n_turns = run.printed.get("conversations")
    sent = collections.Counter(exchange.body for exchange in run.exchanges)
    held = collections.Counter(body for one in turns for body in one.bodies)
    return in_order and len(turns) == n_turns and sent == held and len({len(one.bodies) for one in turns}) == 1


def has_usage(run: Run) -> bool:
    """Whether each answer says how many tokens it took. A stream of chat completions says so only if the request asks for it."""
    return all(b'"usage":{' in exchange.answer for exchange in run.exchanges)


def tokens_agree(recorded: list[Recorded], run: Run, entries: list[dict]) -> bool:
    bodies = {exchange.body for exchange in run.exchanges}
    turns = [one.turn for one in recorded if one.bodies and one.bodies[-1] in bodies]
    said = sum(entries[ordinal(exchange)]["n_tokens"] for exchange in run.exchanges)
    return said == sum(turn["input_tokens"] + turn["output_tokens"] for turn in turns)


def leaks(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in which a credential of the set-ups is."""
    found = []
    for path in folder.rglob("*"):
        try:
            content = path.read_bytes()
        except OSError:
            # A folder, a socket, or a file that the database has removed meanwhile.
            continue
        if any(key.encode() in content for key in KEYS.values()):
            found.append(path)
    return found


def ledger(model: str) -> dict:
    with urllib.request.urlopen(f"{model}/ledger", timeout=30) as answer:
        return json.load(answer)


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="address of the scripted model, such as http://127.0.0.1:7001")
    parser.add_argument("--proxy", required=True, help="address of Waybill")
    parser.add_argument("--tap", required=True, type=int, help="port that is the proxy's upstream")
    parser.add_argument("--data", type=pathlib.Path, help="folder with Waybill's data, which is searched for credentials")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("names", nargs="*", help="set-ups to run. If omitted, all")
    arguments = parser.parse_args()

    listed = [sys.executable, HERE / "setups.py", "--list"]
    process = await asyncio.create_subprocess_exec(*listed, stdout=asyncio.subprocess.PIPE)
    names = arguments.names or (await process.communicate())[0].decode().split()
    families = [Family(list(group)) for _, group in itertools.groupby(sorted(names), lambda name: name.split("-")[0])]

    upstream = await Tap(port_of(arguments.model)).start(arguments.tap)
    n_before = ledger(arguments.model)["n_asked"]
    direct = await run_all(families, port_of(arguments.model), {"openai": "", "anthropic": ""})
    n_direct = ledger(arguments.model)["n_asked"] - n_before
    waybill = Waybill(arguments.proxy)
    await waybill.until_up()
    prefix = {provider: f"/record/{PROJECT}/{provider}" for provider in KEYS}
    through = await run_all(families, port_of(arguments.proxy), prefix)
    for family in families:
        family.stop()
    book = ledger(arguments.model)
    n_through = book["n_asked"] - n_direct - n_before
    recorded = await read_recorded(waybill, n_through)
    await upstream.stop()

    wrong: list[str] = []

    def count(what: str, good: dict[str, bool]) -> int:
        wrong.extend(f"{what}: not {name}" for name, is_good in good.items() if not is_good)
        return sum(good.values())

    def is_right(run: Run) -> bool:
        n = run.printed.get("conversations", 0)
        texts, calls = (TEXTS[:1], CALLS[:3]) if run.name.startswith("anthropic-runner") else (TEXTS, CALLS)
        printed = run.printed
        return printed.get("texts") == texts * n and printed.get("calls") == calls * n and printed["n_calls"] == len(run.exchanges)

    behind = {ordinal(exchange): exchange for exchange in upstream.exchanges()}
    pairs = [(run, one, behind[ordinal(one)]) for run in through.values() for one in run.exchanges if ordinal(one) in behind]

    def unchanged(what: str, parts: dict) -> int:
        """Counts the exchanges that are the same on both sides of the proxy, in all these parts."""
        n_same = 0
        for run, before, after in pairs:
            differs = {name: difference(*part(run, before, after)) for name, part in parts.items()}
            told = "; ".join(f"{name} {text}" for name, text in differs.items() if text)
            wrong.extend([f"{what} of {run.name}: {told}"] if told else [])
            n_same += not told
        return n_same

    n_forwarded = unchanged("request", {
        "path": lambda run, before, after: (f"{before.method} {run.path(before)}", f"{after.method} {after.path}"),
        "headers": lambda _, before, after: (headers(before.headers, OF_CONNECTION), headers(after.headers, OF_CONNECTION)),
        "body": lambda _, before, after: (before.body, after.body),
    })
    n_answered = unchanged("answer", {
        "status": lambda _, before, after: (before.status, after.status),
        "headers": lambda _, before, after: (headers(before.answer_headers, OF_ANSWER), headers(after.answer_headers, OF_ANSWER)),
        "body": lambda _, before, after: (before.answer, after.answer),
    })
    n, n_conversations = len(names), sum(run.printed.get("conversations", 0) for run in direct.values())
    n_calls = n_through
    received = collections.Counter(exchange.body for exchange in behind.values())
    remembered = collections.Counter(body for one in recorded for body in one.bodies if body is not None)
    counted = [name for name in names if has_usage(through[name])]
    figures = [
        ("set-ups with the right result without the proxy", count("right result", {name: is_right(direct[name]) for name in names}), n),
        ("set-ups with the same result through the proxy",
         count("same result", {name: direct[name].printed == through[name].printed for name in names}), n),
        ("set-ups that send the same requests through the proxy",
         count("same requests", {name: direct[name].requests() == through[name].requests() for name in names}), n),
        ("requests through the proxy", n_calls, n_direct),
        ("requests that the proxy forwards unchanged", n_forwarded, n_calls),
        ("answers that the proxy forwards unchanged", n_answered, n_calls),
        ("recorded calls", sum(len(one.receipts) for one in recorded), n_calls),
        ("recorded calls with the bytes that the model received", (received & remembered).total(), n_calls),
        ("recorded calls that verify", sum(one.n_verified for one in recorded), n_calls),
        ("recorded conversations", len(recorded), n_conversations),
        ("set-ups whose conversations are recorded as turns of their own",
         count("conversations", {name: is_one_conversation(recorded, through[name]) for name in names}), n),
        ("set-ups whose tokens are recorded",
         count("tokens", {name: tokens_agree(recorded, through[name], book["entries"]) for name in counted}), len(counted)),
    ]
    if arguments.data:
        found = leaks(arguments.data)
        wrong.extend(f"a credential is in {path}" for path in found)
        figures.append(("files of Waybill with a credential of the set-ups", len(found), 0))
    for line in wrong:
        print(line, file=sys.stderr)
    for figure, value, bar in figures:
        ok = value == bar
        if arguments.json:
            print(json.dumps({"figure": f"recording: {figure}", "value": value, "unit": "", "bar": f"= {bar}", "ok": ok}))
        else:
            print(f"{'ok ' if ok else 'BAD'} {figure}: {value} of {bar}")
    return 0 if all(value == bar for _, value, bar in figures) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
