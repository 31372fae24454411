"""What it costs to record model calls: `waybill record` beside LiteLLM's proxy, mitmproxy and claude-tap, on the same work, in one run.

One scripted model answers everything: 20 pieces, 2 ms apart. The same streamed chat completions go straight to it, and through each recorder, by
turns. Conversations grow by 2,000 bytes of noise with each call. Three parts: the highest rate that each one takes; the times at a rate that all
of them take; one conversation of 400 calls, or of as many as there is time for, for bytes and processor time. Then what each one recorded is read
back. It takes about six minutes after all have started, the short form half a minute; longer while other work runs.

    target/beside/litellm/bin/python bench/record_beside.py [--short] [--json]

needs release builds of `waybill` and `scripted-model` (or --waybill, --model), and each peer in an environment of its own (or --peers):

    for each in 'litellm[proxy]==1.106.2' mitmproxy==12.2.3 claude-tap==0.1.146; do
      python3.13 -m venv "target/beside/${each%%[=[]*}" && "target/beside/${each%%[=[]*}/bin/pip" install "$each"
    done

Settings, each at its best:
* LiteLLM: two workers (one with --short, because each takes long to start), no retries, no cache, cost map from its package, and a callback that
  appends its whole `standard_logging_object` to a file. Measured twice: as a gateway, and as an endpoint that it passes through. Its own log of
  requests in PostgreSQL is not measured: that needs prisma, which downloads a program that is in no package registry.
* mitmproxy: reverse mode, streams in both directions, and stores what it streams in a file of flows.
* claude-tap: without its dashboard; the answer is stored put together, as is its default.
* Waybill: as it is. It commits each call to PostgreSQL with `fsync`; LiteLLM's callback and mitmproxy leave that to the system.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import statistics
import string
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import uvloop

HERE = Path(__file__).resolve().parent.parent
TEXT, SAID = 2_000, "The recorder passes each piece on as it comes. " * 4
PIECES, BETWEEN_MS = 20, 2
#: The highest rate is the last one at which 99 % of the streams begin within the first time, in seconds, and all are recorded within the second after
#: the last one.
SOON, RECORDED = 0.5, 0.5
NAMES = ["straight", "Waybill", "LiteLLM", "LiteLLM passing through", "mitmproxy", "claude-tap"]
KEY = f"sk-{secrets.token_hex(32)}"
END = b"\r\n0\r\n\r\n"
CALLBACK = """
import os, orjson
from litellm.integrations.custom_logger import CustomLogger

class Log(CustomLogger):
    def __init__(self):
        super().__init__()
        self.files = {}

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        call = kwargs["standard_logging_object"]
        kind = call["call_type"]
        if kind not in self.files:
            self.files[kind] = open(f"{os.environ['LOG_FILE']}.{kind}.{os.getpid()}", "ab", buffering=0)
        self.files[kind].write(orjson.dumps(call, default=str) + b"\\n")

    async_log_failure_event = async_log_success_event

log = Log()
"""
LITELLM = """
model_list: [{{model_name: "*", litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{port}/v1", api_key: none}}}}]
litellm_settings: {{callbacks: callback.log, num_retries: 0, cache: false, telemetry: false}}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
general_settings:
  pass_through_endpoints: [{{path: "/through", target: "http://127.0.0.1:{port}/v1/chat/completions", forward_headers: true}}]
"""
FLOWS = """
import base64, json, sys
from mitmproxy.io import FlowReader
for flow in FlowReader(open(sys.argv[1], "rb")).stream():
    print(json.dumps(base64.b64encode(flow.request.raw_content or b"").decode()))
"""
TRACES = """
import json
from claude_tap.trace_store import get_trace_store
store = get_trace_store()
for session in store.list_session_rows():
    for record in store.load_records(session["id"]):
        print(json.dumps(record["request"]["body"]))
"""


def say(text: str) -> None:
    print(f"{time.perf_counter() - BEGUN:5.0f} s  {text}", file=sys.stderr, flush=True)


BEGUN = time.perf_counter()


# What is measured: processes, and what they stored.


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processor_ms(root: int | None) -> float:
    """Returns the processor time of a process and all below it, also of those that have ended."""
    if root is None:
        return 0.0
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            parents[int(stat.parent.name)], used[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, below = 0, [root]
    while below:
        one = below.pop()
        total += used.get(one, 0)
        below += [child for child, parent in parents.items() if parent == one]
    return 1000 * total / os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    name: str
    port: int
    path: str = "/v1/chat/completions"
    process: subprocess.Popen[bytes] | None = None
    stored: Callable[[], int] = lambda: 0
    n_stored: Callable[[], int | None] = lambda: None
    #: The recorded requests since the start, as bytes. Where a recorder stores parsed JSON, it is written as SDKs write it.
    requests: Callable[[], list[bytes]] = list
    idle: list[Connection] = field(default_factory=list)
    n_sent: int = 0
    #: How long it took, after the last window, until all was stored.
    lag: float = 0.0

    async def settle(self) -> None:
        """Waits until what was sent is stored."""
        begun = time.perf_counter()
        for _ in range(600):
            if (n := self.n_stored()) is None or n >= self.n_sent:
                break
            await asyncio.sleep(0.05)
        self.lag = time.perf_counter() - begun
        await asyncio.sleep(0.1)

    def head(self, n_bytes: int) -> bytes:
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\ncontent-type: application/json\r\naccept: text/event-stream\r\n"
            f"authorization: Bearer {KEY}\r\ncontent-length: {n_bytes}\r\n\r\n"
        ).encode()


class Machine:
    """All processes, in one folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="record-beside-"))
        # PostgreSQL may run as another user, who must reach its folder.
        self.folder.chmod(0o755)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.model_port = free_port()
        pace = {"pieces": PIECES, "between_ms": BETWEEN_MS}
        reply = {"text": SAID, "usage": {"n_input": 600, "n_output": 40}}
        rules = [{"model": "fast", "reply": {**reply, "pace": {"pieces": PIECES}}}, {"reply": {**reply, "pace": pace}}]
        (self.folder / "rules.json").write_text(json.dumps(rules))

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WAYBILL", "LITELLM", "OPENAI", "PYTHON"))}
        environment = {**inherited, "HOME": str(self.folder), "NO_PROXY": "*", **environment}
        with (self.folder / f"log-{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(list(map(str, command)), cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def model(self, port: int) -> subprocess.Popen[bytes]:
        process = self.start(self.options.model, "rules.json", "--port", str(port))
        self.answers(process, port, 20)
        return process

    def answers(self, process: subprocess.Popen[bytes], port: int, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            if process.poll() is not None or time.perf_counter() > until:
                log = (self.folder / f"log-{self.processes.index(process)}").read_text()
                sys.exit(f"{process.args} does not start: {log[-3000:]}")
            time.sleep(0.05)

    def end(self, *processes: subprocess.Popen[bytes]) -> None:
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        self.end(*self.processes)
        shutil.rmtree(self.folder, ignore_errors=True)

    def peer(self, name: str, program: str) -> Path:
        return Path(self.options.peers) / name / "bin" / program

    def read(self, name: str, script: str, *arguments: str, **environment: str) -> list[Any]:
        command = [self.peer(name, "python"), "-c", script, *arguments]
        said = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True, text=True).stdout
        return [json.loads(line) for line in said.splitlines()]

    def sides(self) -> list[Side]:
        self.model(self.model_port)
        sides = [Side("straight", self.model_port), self.waybill(), *self.litellm(), self.mitmproxy(), self.claude_tap()]
        for side in sides:
            if side.process:
                self.answers(side.process, side.port, 300)
        return sides

    def waybill(self) -> Side:
        port, data = free_port(), self.folder / "waybill"
        upstream = f"openai=http://127.0.0.1:{self.model_port}/v1"
        process = self.start(self.options.waybill, "record", "--data", data, "--listen", f"127.0.0.1:{port}", "--upstream", upstream)
        open_connections: list[psycopg.Connection[Any]] = []

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/projects{path}") as answer:
                return answer.read()

        def ask(sql: str) -> Any:
            if not open_connections:
                url = re.findall(r'owner_url = "(.*)"', (data / "waybill.toml").read_text())[0]
                open_connections.append(psycopg.connect(url, autocommit=True))
                project = next(one["project_id"] for one in json.loads(get(""))["items"] if one["slug"] == "local")
                # Without it, a query finds no row.
                open_connections[0].execute("select set_config('waybill.project', %s, false)", [project])
            row = open_connections[0].execute(sql)
            return row.fetchone()[0] if row.description else None

        def stored() -> int:
            ask("vacuum")
            sql = "select sum(pg_total_relation_size(c.oid))::bigint from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            return ask(f"{sql} where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')")

        def requests() -> list[bytes]:
            turns = json.loads(get("/local/turns?limit=50"))["items"]
            return [get(f"/local/turns/{turn['agent_turn_id']}/context/request") for turn in turns]

        path = "/record/local/openai/v1/chat/completions"
        return Side("Waybill", port, path, process, stored, lambda: ask("select count(*) from state.agent_steps"), requests)

    def litellm(self) -> list[Side]:
        port = free_port()
        (self.folder / "callback.py").write_text(CALLBACK)
        (self.folder / "litellm.yaml").write_text(LITELLM.format(port=self.model_port))
        settings = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR"}
        files = {"CONFIG_FILE_PATH": str(self.folder / "litellm.yaml"), "PYTHONPATH": str(self.folder), "LOG_FILE": str(self.folder / "calls")}
        options = ["--host", "127.0.0.1", "--port", port, "--workers", 1 if self.options.short else 2, "--log-level", "error", "--no-access-log"]
        process = self.start(self.peer("litellm", "uvicorn"), "litellm.proxy.proxy_server:app", *options, **settings, **files)

        def side(name: str, path: str, kind: str, request: Callable[[dict[str, Any]], bytes]) -> Side:
            counted: dict[Path, tuple[int, int]] = {}

            def logs() -> list[Path]:
                return list(self.folder.glob(f"calls.{kind}.*"))

            def n_stored() -> int:
                for log in logs():
                    n, at = counted.get(log, (0, 0))
                    with log.open("rb") as file:
                        file.seek(at)
                        new = file.read()
                    counted[log] = (n + new.count(b"\n"), at + len(new))
                return sum(n for n, _ in counted.values())

            def requests() -> list[bytes]:
                return [request(json.loads(line)) for log in logs() for line in log.open()]

            return Side(name, port, path, process, lambda: sum(log.stat().st_size for log in logs()), n_stored, requests)

        def chat(one: dict[str, Any]) -> bytes:
            return compact({"messages": one["messages"], "model": one["model_group"], **one["model_parameters"]})

        return [
            side("LiteLLM", "/v1/chat/completions", "acompletion", chat),
            side("LiteLLM passing through", "/through", "pass_through_endpoint", lambda one: one["messages"][0]["content"].encode()),
        ]

    def mitmproxy(self) -> Side:
        port, flows = free_port(), self.folder / "flows"
        options = ["stream_large_bodies=1", "store_streamed_bodies=true", f"confdir={self.folder / 'mitmproxy'}"]
        mode = f"reverse:http://127.0.0.1:{self.model_port}"
        command = [self.peer("mitmproxy", "mitmdump"), "-q", "--mode", mode, "--listen-host", "127.0.0.1", "--listen-port", port, "-w", flows]
        process = self.start(*command, *(word for option in options for word in ("--set", option)))

        def requests() -> list[bytes]:
            from base64 import b64decode

            return [b64decode(one) for one in self.read("mitmproxy", FLOWS, str(flows))]

        return Side("mitmproxy", port, process=process, stored=lambda: flows.stat().st_size, requests=requests)

    def claude_tap(self) -> Side:
        port, file = free_port(), self.folder / "traces.sqlite3"
        options = ["--tap-no-launch", "--tap-no-live", "--tap-no-open", "--tap-max-traces", "0", "--tap-host", "127.0.0.1", "--tap-port", port]
        target = f"http://127.0.0.1:{self.model_port}"
        process = self.start(self.peer("claude-tap", "claude-tap"), *options, "--tap-target", target, CLOUDTAP_DB=str(file))

        def ask(sql: str) -> int:
            with contextlib.closing(sqlite3.connect(file, timeout=10)) as connection:
                return connection.execute(sql).fetchone()[0]

        def stored() -> int:
            ask("pragma wal_checkpoint(truncate)")
            return file.stat().st_size

        def requests() -> list[bytes]:
            return [compact(body) for body in self.read("claude-tap", TRACES, CLOUDTAP_DB=str(file))]

        return Side("claude-tap", port, process=process, stored=stored, n_stored=lambda: ask("select count(*) from records"), requests=requests)


# The load: requests as bytes, made before they are sent, and connections that only note when bytes came.


def compact(value: Any) -> bytes:
    """Writes JSON as the SDKs of OpenAI do."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Connection(asyncio.Protocol):
    done: asyncio.Future[None]

    def connection_made(self, transport: Any) -> None:
        self.transport, self.parts = transport, []

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.perf_counter(), data))
        tail = data if len(data) >= len(END) else b"".join(part for _, part in self.parts[-3:])
        if tail.endswith(END):
            self.done.set_result(None)
        elif not self.parts[0][1].startswith(b"HTTP/1.1 200"[: len(self.parts[0][1])]):
            self.connection_lost(RuntimeError(self.parts[0][1][:300]))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport.close()
        if hasattr(self, "done") and not self.done.done():
            self.done.set_exception(error or ConnectionError("the connection was closed"))


@dataclass
class Read:
    """When the first byte of the body came, when the last one, and in how many pieces."""

    first: float
    whole: float
    n_pieces: int
    answer: bytes


async def call(side: Side, body: bytes) -> Read:
    connection = next((side.idle.pop() for _ in range(len(side.idle)) if not side.idle[-1].transport.is_closing() or not side.idle.pop()), None)
    if connection is None:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", side.port)
    connection.parts, connection.done = [], asyncio.get_running_loop().create_future()
    begun = time.perf_counter()
    connection.transport.write(side.head(len(body)) + body)
    await asyncio.wait_for(connection.done, 30)
    side.idle.append(connection)
    side.n_sent += 1
    whole = b"".join(part for _, part in connection.parts)
    n_head, n_seen, times = whole.index(b"\r\n\r\n") + 4, 0, []
    for at, part in connection.parts:
        n_seen += len(part)
        if n_seen > n_head:
            times.append(at - begun)
    return Read(times[0], times[-1], len(times), whole[n_head:])


def unchunked(data: bytes) -> bytes:
    found, at = [], 0
    while size := int(data[at : (after := data.index(b"\r\n", at))], 16):
        found.append(data[after + 2 : after + 2 + size])
        at = after + size + 4
    return b"".join(found)


class Conversation:
    noise = "".join(random.Random(1).choices(string.ascii_lowercase + "    ", k=4_000_000))

    def __init__(self, name: str, model: str = "gpt-5-mini") -> None:
        self.random = random.Random(name)
        self.said = [compact({"role": "system", "content": f"You are the agent {name}. Be brief."})]
        self.last = compact({"model": model, "stream": True, "stream_options": {"include_usage": True}})[1:]
        self.n_new = 0

    def next(self) -> bytes:
        """Returns the request with one more message of the user, and then notes the answer."""
        at = self.random.randrange(len(self.noise) - TEXT)
        asked, answered = ({"role": "user", "content": self.noise[at : at + TEXT]}, {"role": "assistant", "content": SAID})
        self.said.append(compact(asked))
        body = b'{"messages":[' + b",".join(self.said) + b"]," + self.last
        self.said.append(compact(answered))
        self.n_new = sum(map(len, self.said))
        return body


def work(name: str, n: int) -> list[bytes]:
    """Returns n requests of five conversations at a time, which grow to 20 calls."""

    def each() -> Iterator[bytes]:
        for group in range(n):
            five = [Conversation(f"{name}/{group}/{one}") for one in range(5)]
            for _ in range(20):
                yield from (one.next() for one in five)

    bodies = each()
    return [next(bodies) for _ in range(n)]


async def window(side: Side, rate: float, bodies: list[bytes]) -> list[Read] | None:
    """Begins streams at an even rate. Returns None if one fails."""
    begun, streams = time.perf_counter(), []
    for n, body in enumerate(bodies):
        await asyncio.sleep(max(0.0, begun + n / rate - time.perf_counter()))
        streams.append(asyncio.create_task(call(side, body)))
    found = await asyncio.gather(*streams, return_exceptions=True)
    await side.settle()
    failed = [one for one in found if isinstance(one, BaseException)]
    if failed:
        side.n_sent = side.n_stored() or 0
        say(f"{side.name}: {len(failed)} of {len(found)} streams failed, such as {failed[0]!r:.200}")
    return None if failed else [one for one in found if isinstance(one, Read)]


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


# The three parts, and what they give.


async def highest(sides: list[Side], seconds: float, rounds: int, most: float) -> dict[str, float]:
    """Returns the highest rate of each side: the best of the rounds, because noise only lowers it. A rate is tried twice."""
    best: dict[str, float] = {side.name: 0.0 for side in sides}
    for turn in range(rounds):
        for side in sides:
            factor = 1.2 if turn else 1.5
            rate, misses = max(5.0, best[side.name] * factor) if turn else 5.0, 0
            while misses < 2 and rate <= most:
                bodies = work(f"highest/{turn}/{rate}/{misses}", int(max(6, rate) * seconds))
                read = await window(side, rate, bodies)
                if read and percentile([one.first for one in read], 0.99) < SOON and side.lag < RECORDED:
                    best[side.name], rate, misses = rate, rate * factor, 0
                else:
                    misses += 1
            say(f"highest rate, {side.name}: {best[side.name]:.0f}/s")
    return best


async def times(sides: list[Side], rate: float, seconds: float, rounds: int, until: float) -> tuple[dict[str, list[list[Read]]], dict[str, float]]:
    found: dict[str, list[list[Read]]] = defaultdict(list)
    used: dict[str, float] = defaultdict(float)
    n = int(rate * seconds)
    requests = work("times", n * rounds)
    for turn in range(rounds):
        if turn and time.perf_counter() - BEGUN > until:
            say(f"no time for more than {turn} rounds")
            break
        bodies = requests[turn * n : (turn + 1) * n]
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            before, own = processor_ms(side.process and side.process.pid), time.process_time()
            read = await window(side, rate, bodies)
            if read:
                found[side.name].append(read)
            used[side.name] += processor_ms(side.process and side.process.pid) - before
            used[f"{side.name}: generator"] += 1000 * (time.process_time() - own)
        say(f"times, round {turn + 1} of {rounds}")
    return found, used


async def grow(
    sides: list[Side], calls: int, block: int, until: float
) -> tuple[int, dict[str, dict[int, float]], dict[str, float], dict[str, list[float]]]:
    """Lets one conversation grow. Returns how many calls there were, stored ÷ new bytes at a quarter of them and at the end, the processor time of a
    call, and the times to the first byte of seven more calls."""
    for side in sides:
        await window(side, 5, [Conversation("before", "fast").next()] * 2)
    conversation, used, ratios = Conversation("grows", "fast"), defaultdict(float), defaultdict(dict)
    before = {side.name: side.stored() for side in sides}

    async def send(side: Side, bodies: list[bytes]) -> None:
        begun = processor_ms(side.process and side.process.pid)
        for body in bodies:
            await call(side, body)
        await side.settle()
        used[side.name] += processor_ms(side.process and side.process.pid) - begun

    # At once, because nothing is timed here; but not both of those that are one process.
    groups = [[side for side in sides if (side.name == NAMES[3]) == alone] for alone in (False, True)]
    for n in range(block, calls + 1, block):
        bodies = [conversation.next() for _ in range(block)]
        for group in groups:
            await asyncio.gather(*(send(side, bodies) for side in group))
        is_late = time.perf_counter() - BEGUN > until
        if n in (calls // 4, calls) or is_late:
            for side in sides:
                ratios[side.name][n] = (side.stored() - before[side.name]) / conversation.n_new
            say(f"one conversation, {n} calls")
        if is_late:
            break
    firsts = defaultdict(list)
    for _ in range(7):
        body = conversation.next()
        for side in sides:
            firsts[side.name].append((await call(side, body)).first)
            await side.settle()
    return n, ratios, {name: value / n for name, value in used.items()}, firsts


class Tap:
    """Stands in for the model, passes all bytes on to it, and keeps them."""

    def __init__(self) -> None:
        self.sent, self.got, self.n_pieces = bytearray(), bytearray(), 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                note(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(self, port: int, to: int) -> asyncio.Server:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward = await asyncio.open_connection("127.0.0.1", to)
            await asyncio.gather(self.pass_on(reader, onward[1], self.sent.extend), self.pass_on(onward[0], writer, self.got.extend))

        return await asyncio.start_server(connected, "127.0.0.1", port)


async def fidelity(machine: Machine, sides: list[Side], n: int) -> dict[str, dict[str, int]]:
    """Counts requests, answers and records that are the bytes that were sent. SDKs write as one half is; the other has escapes and spaces."""
    behind, tap = free_port(), Tap()
    machine.end(machine.processes[0])
    machine.model(behind)
    server = await tap.serve(machine.model_port, behind)
    found: dict[str, dict[str, int]] = {}
    for side in sides:
        counts = found[side.name] = {"requests that reach the model": 0, "answers that reach the client": 0, "recorded requests": 0}
        sent = []
        side.idle.clear()
        # Connections to the model that has ended are found out.
        for _ in range(4):
            with contextlib.suppress(Exception):
                await call(side, Conversation("first").next())
        await side.settle()
        for one in range(n):
            body = Conversation(f"exact/{one}").next()
            if one % 2:
                value = {**json.loads(body), "temperature": 1.0, "user": "Zoë"}
                body = json.dumps(value).encode()
            tap.sent.clear()
            tap.got.clear()
            read = await call(side, body)
            sent.append(body)
            counts["requests that reach the model"] += tap.sent.partition(b"\r\n\r\n")[2] == body
            counts["answers that reach the client"] += unchunked(tap.got.partition(b"\r\n\r\n")[2]) == unchunked(read.answer)
        await side.settle()
        counts["recorded requests"] = len(set(side.requests()) & set(sent))
        say(f"{side.name}: read back")
    server.close()
    return found


async def measure(options: argparse.Namespace, machine: Machine) -> bool:
    global BEGUN
    sides = machine.sides()
    say("all are up")
    BEGUN, load = time.perf_counter(), os.getloadavg()[0]
    warm = await asyncio.gather(*(window(side, 4, work("warm", 12)) for side in sides))
    if None in warm:
        sys.exit("one of them does not answer")
    short, names = options.short, NAMES
    best = await (highest(sides, 0.5, 1, 20) if short else highest(sides, 1.5, 1, 320))
    rate = max(5.0, min(50.0, 0.5 * min(best.values())))
    say(f"rate that all take: {rate:.0f}/s")
    read, used = await times(sides, rate, 1 if short else 3, 1 if short else 10, 20 if short else 170)
    calls, ratios, heavy, firsts = await (grow(sides, 8, 2, 30) if short else grow(sides, 400, 20, 300))
    n_exact = 2 if short else 20
    exact = await fidelity(machine, sides, n_exact)

    fell, peers = False, NAMES[2:]

    def figure(
        what: str, unit: str, values: dict[str, float], lowest: bool | None = None, bar: float | None = None, slack: float = 0, digits: int = 2
    ) -> None:
        """Prints the value of each. The bar for ours is the best of the peers, or the one that is given."""
        nonlocal fell
        # A small size does not tell times apart.
        if lowest is not None and bar is None and not short:
            bar = (min if lowest else max)(values[name] for name in peers) + slack
        for name in [name for name in names if name in values]:
            judged = bar is not None and name == "Waybill"
            ok = not judged or (values[name] <= bar if lowest else values[name] >= bar)
            fell |= not ok
            of = f"{'<=' if lowest else '>='} {bar:.{digits}f}" if judged else ""
            one = {"figure": f"{what}: {name}", "value": round(values[name], digits), "unit": unit, "bar": of, "ok": ok}
            line = f"{one['figure']:88} {one['value']:>9} {unit:8} {of:11} {'' if ok else 'FELL SHORT'}"
            print(json.dumps(one, ensure_ascii=False) if options.json else line)

    pooled = {name: [one for part in read[name] for one in part] for name in names}
    figure("processes that want a processor, on average of the minute before (with all idle)", "count", {"straight": load})
    figure("streams measured", "streams", {name: len(pooled[name]) for name in names}, digits=0)
    for part in ("first", "whole"):
        what = {"first": "time to the first byte", "whole": "time of the whole stream"}[part]
        # Of few streams, the 99th percentile is the slowest one.
        for share in (0.5, 0.99 if len(pooled["Waybill"]) >= 400 else 0.9):
            at = f"{what}, p{100 * share:.0f}, at {rate:.0f}/s"
            value = {name: percentile([getattr(one, part) for one in pooled[name]], share) for name in names}
            figure(f"{at}, straight", "ms", {"straight": 1000 * value["straight"]})
            figure(
                f"{at}, ÷ straight",
                "ratio",
                {name: value[name] / value["straight"] for name in names[1:]},
                True,
                slack=0 if part == "first" else 0.05,
            )
    late = {name: sum(one.whole - one.first < PIECES * BETWEEN_MS / 2000 for one in pooled[name]) for name in names}
    figure(f"streams that came in less than half of their {PIECES * BETWEEN_MS} ms", "streams", late, digits=0)
    pieces = {name: statistics.median(one.n_pieces for one in pooled[name]) for name in names}
    figure("pieces of a stream, median", "pieces", pieces, lowest=False, bar=0.9 * pieces["straight"], digits=0)
    what = f"highest rate with p99 of the first byte below {1000 * SOON:.0f} ms, and all recorded {1000 * RECORDED:.0f} ms later"
    figure(what, "1/s", best, lowest=False, digits=0)
    figure(f"processor time of a call, at {rate:.0f}/s", "ms", {name: used[name] / max(1, len(pooled[name])) for name in names[1:]}, lowest=True)
    own = sum(used[f"{name}: generator"] for name in names) / sum(len(pooled[name]) for name in names)
    figure("processor time of a call, of the generator", "ms", {"straight": own})
    for n in ratios["Waybill"]:
        figure(f"stored ÷ new bytes after {n} calls of a conversation", "ratio", {name: ratios[name][n] for name in names[1:]}, lowest=True)
    figure(f"processor time of a call, mean of {calls} calls of a conversation", "ms", {name: heavy[name] for name in names[1:]}, lowest=True)
    value = {name: statistics.median(firsts[name]) for name in names}
    figure(
        "time to the first byte, median of 7 more of these calls, ÷ straight",
        "ratio",
        {name: value[name] / value["straight"] for name in names[1:]},
        lowest=True,
    )
    for what in exact["straight"]:
        counts = {name: exact[name][what] for name in names if what != "recorded requests" or name != "straight"}
        figure(f"{what} as the bytes that were sent, of {n_exact}", "count", counts, lowest=False, bar=n_exact, digits=0)
    say("done")
    return not fell


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--short", action="store_true", help="a small size")
    arguments.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments.add_argument("--waybill", default=os.environ.get("WAYBILL", HERE / "target/release/waybill"), type=Path, help="the program")
    arguments.add_argument("--model", default=HERE / "target/release/scripted-model", type=Path, help="the scripted model server")
    arguments.add_argument("--peers", default=HERE / "target/beside", type=Path, help="folder of the environments of the peers")
    options = arguments.parse_args()
    options.waybill, options.model, options.peers = options.waybill.resolve(), options.model.resolve(), options.peers.absolute()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine = Machine(options)
    try:
        sys.exit(0 if uvloop.run(measure(options, machine)) else 1)
    finally:
        machine.close()


if __name__ == "__main__":
    main()
