"""The client against what goes wrong: lost connections, other versions, forks, proxies, certificates; and what it makes of types."""

from __future__ import annotations

import asyncio
import datetime
import enum
import http.client
import json
import multiprocessing
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

import pytest
from lossy import LossyProxy
from pydantic import BaseModel

from waybill import AsyncWaybill, Profile, TurnFailed, Waybill, config, tool
from waybill.errors import ApiError, ConfigError, IdempotencyMismatch, Invalid, InvalidPackage, NotFound, NotYet, OlderServer, Unanswered
from waybill.wire import EventReader, Pauses, clock_ahead, uuid7


def echo(name="echo", script=({"say": "You said {{query}}"},), **more):
    return Profile(name, model="demo/demo", prompt="You repeat.", **more).scripted(list(script))


class Between(ThreadingHTTPServer):
    """A proxy that changes requests and answers, as another version of the server would."""

    daemon_threads = True

    def __init__(self, url: str, change) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers.items()), body))
                if (made := change(self.command, self.path, body)) is None:
                    there = urlsplit(url)
                    connection = http.client.HTTPConnection(there.hostname, there.port, timeout=60)
                    headers = {name: value for name, value in self.headers.items() if name.lower() not in ("accept-encoding", "host")}
                    path = self.path if self.path.startswith("/") else urlsplit(self.path).path + "?" + urlsplit(self.path).query
                    connection.request(self.command, path, body, headers)
                    answer = connection.getresponse()
                    made = answer.status, answer.read(), answer.headers["content-type"]
                    made = outer.after(self.path, *made)
                status, content, kind = made
                self.send_response(status)
                self.send_header("content-type", kind or "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

        self.asked, self.after = [], lambda path, *answer: answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


def passing(method, path, body):
    return None


def problem(status, code, detail, **more):
    return status, json.dumps({"status": status, "code": code, "detail": detail, **more}).encode(), "application/problem+json"


def at(waybill, url, **more) -> Waybill:
    return Waybill(url, None, waybill.config.project, **more)


# What a start makes of it


def test_a_key_starts_a_turn_once(waybill):
    waybill.apply(echo())
    first, second = (waybill.run("echo", "Hello.", key="one") for _ in range(2))
    assert first.id == second.id
    with pytest.raises(IdempotencyMismatch, match="new key"):
        waybill.run("echo", "Goodbye.", key="one")


def test_many_are_started_and_each_has_its_outcome(waybill):
    waybill.apply(echo())
    turns = waybill.run_many("echo", {"a": "One.", "b": "Two."}, labels={"team": "blue"})
    assert [turns[key].result(timeout=20) for key in ("a", "b")] == ["You said One.", "You said Two."]
    assert {one.agent_turn_id for one in waybill.turns(label="team=blue", most=1)} == {turn.id for turn in turns.values()}
    with pytest.raises(NotFound):
        waybill.run("nobody", "Hello.")
    with pytest.raises(ConfigError, match="labels"):
        waybill.run("echo", "Hello.", label={"team": "blue"})


def test_a_turn_that_fails_says_why(waybill):
    waybill.apply(echo("endless", [{"call": {"list_artifacts": {}}}], internal_tools=["list_artifacts"], limits={"steps": 2}))
    turn = waybill.run("endless", "Go on.")
    with pytest.raises(TurnFailed, match="limit_reached"):
        turn.result(timeout=20)
    assert "failed" in repr(turn)


def test_a_wait_ends_in_time(waybill):
    waybill.apply(Profile("idle", model="demo/demo", prompt="-", target="no-worker"))
    turn = waybill.run("idle", "Wait.")
    begun = time.monotonic()
    with pytest.raises(NotYet):
        turn.wait(timeout=0.5)
    with pytest.raises(NotYet, match="after="):
        list(turn.watch(timeout=0.5))
    assert time.monotonic() - begun < 5
    assert turn.stop("enough").stopped == "ended"
    assert turn.wait(5).status == "canceled"


def test_the_asynchronous_client_does_the_same(waybill, async_waybill):
    waybill.apply(echo())

    async def ask():
        async with async_waybill as wb:
            turn = await wb.run("echo", "Hello.")
            kinds = [event.kind async for event in turn.watch(tokens=True)]
            session = await wb.session(title="Talk")
            said = await (await session.run("echo", "Again.")).result(timeout=20)
            many = await asyncio.gather(*[wb.run("echo", str(n)) for n in range(10)])
            ends = [await one.result(timeout=20) for one in many]
            return kinds, said, len(await session.messages()), ends, await turn.usage(), (await turn.replay()).is_same, await turn.calls()

    # Two event loops, one client: connections of the first are of no use in the second.
    for _ in range(2):
        kinds, said, n_messages, ends, usage, is_same, calls = asyncio.run(ask())
        assert kinds[-1] == "task"
        assert (said, n_messages, usage.n_steps, is_same, len(calls)) == ("You said Again.", 2, 1, True, 1)
        assert ends == [f"You said {n}" for n in range(10)]


# What goes wrong on the way


def test_a_watch_survives_lost_connections(waybill):
    calls = [{"call": {"list_artifacts": {}}}] * 12
    waybill.apply(echo("busy", [*calls, {"say": "done"}], internal_tools=["list_artifacts"]))
    proxy = LossyProxy(urlsplit(waybill.config.url).port, 0.25, seed=3)
    try:
        client = at(waybill, proxy.url)
        for tree in (False, True):
            turn = client.run("busy", "Work.")
            events = [event for event in turn.watch(tree=tree, tokens=True, timeout=60) if event.id is not None]
            told = waybill.turn(turn.id).watch()
            assert [event.data["event_id"] for event in events] == [event.data["event_id"] for event in told if event.id is not None]
            assert events[-1].kind == "task"
            assert turn.status == "success"
        assert proxy.n_cut > 3
    finally:
        proxy.close()


def test_starts_through_a_bad_network_happen_once(waybill):
    waybill.apply(echo())
    proxy = LossyProxy(urlsplit(waybill.config.url).port, 0.2, seed=5)
    try:
        client = at(waybill, proxy.url)
        ids = {client.run("echo", f"Hello {n}.").id for n in range(20)}
    finally:
        proxy.close()
    assert proxy.n_cut > 3
    assert len(ids) == len(list(waybill.turns())) == 20


def test_what_the_server_asks_for_is_kept(waybill):
    refused = iter([problem(429, "rate_limited", "slow down", retry_after=1), problem(503, "unavailable", "later", retry_after=1)])
    between = Between(waybill.config.url, lambda method, path, body: next(refused, None) if "/turns" in path else None)
    waybill.apply(echo())
    begun = time.monotonic()
    turn = at(waybill, between.url).run("echo", "Hello.")
    assert time.monotonic() - begun > 2
    starts = [(headers["idempotency-key"], body) for method, path, headers, body in between.asked if method == "POST"]
    assert len(starts) == 3
    assert len(set(starts)) == 1, "the same bytes under the same key"
    assert turn.result(timeout=20) == "You said Hello."


def test_what_does_not_help_is_not_tried_again(waybill):
    between = Between(waybill.config.url, lambda *_: problem(500, "internal", "broken"))
    with pytest.raises(Exception, match="same key"):
        at(waybill, between.url, patience=1).run("echo", "Hello.")
    assert len(between.asked) > 1
    between.asked.clear()
    with pytest.raises(Exception, match="internal"):
        at(waybill, between.url).api.claim_calls({"worker": "w", "target": "t"})
    assert len(between.asked) == 1, "a claim is never sent again"


def test_an_answer_of_something_in_between_is_said_to_be_one(waybill):
    between = Between(waybill.config.url, lambda *_: (403, b"<html>blocked by the proxy</html>", "text/html"))
    with pytest.raises(Exception, match=r"not from Waybill.*blocked by the proxy"):
        at(waybill, between.url).me()


# Other versions


def test_an_older_server_without_an_operation(waybill):
    def older(method, path, body):
        return problem(404, "not_found", "there is no such path") if "/forks/compare" in path else None

    def document(path, status, content, kind):
        if path != "/openapi.json":
            return status, content, kind
        said = json.loads(content)
        said["info"]["version"] = "0.0.9"
        said["paths"] = {name: item for name, item in said["paths"].items() if "forks/compare" not in name}
        return status, json.dumps(said).encode(), kind

    between = Between(waybill.config.url, older)
    between.after = document
    client = at(waybill, between.url)
    with pytest.raises(OlderServer, match=r"0\.0\.9.*Upgrade the server"):
        client.compare(uuid7(), uuid7())
    with pytest.raises(NotFound) as refused:
        client.turn(uuid7()).refresh()
    assert not isinstance(refused.value, OlderServer), "it knows the operation, but there is no such turn"


def test_an_older_server_without_fields(waybill):
    def without(path, status, content, kind):
        if "/turns/" not in path or status != 200:
            return status, content, kind
        said = json.loads(content)
        del said["turn"]["root_turn_id"], said["turn"]["labels"]
        return status, json.dumps(said).encode(), kind

    between = Between(waybill.config.url, passing)
    between.after = without
    waybill.apply(echo())
    turn = at(waybill, between.url).run("echo", "Hello.")
    assert turn.result(timeout=20) == "You said Hello."
    assert (turn.summary.profile_name, turn.summary.n_steps) == ("echo", 1)
    assert turn.summary.created_at
    with pytest.raises(AttributeError):
        turn.summary.root_turn_id


def test_a_newer_server_with_more_of_everything(waybill):
    def more(path, status, content, kind):
        if "/turns/" not in path or "events" in path or status != 200:
            return status, content, kind
        said = json.loads(content)
        said["turn"] |= {"inbox_status": "a_new_word", "colour": "blue"}
        return status, json.dumps(said).encode(), kind

    between = Between(waybill.config.url, passing)
    between.after = more
    waybill.apply(echo())
    turn = at(waybill, between.url).run("echo", "Hello.").wait(20)
    assert (turn.summary.inbox_status, turn.summary.colour) == ("a_new_word", "blue")


# Processes, proxies, certificates


def fork_child(client, turn_id, results):
    results.put(client.turn(turn_id).refresh().status)


def test_a_forked_process_has_its_own_connections(waybill):
    waybill.apply(echo())
    turn = waybill.run("echo", "Hello.").wait(20)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    children = [context.Process(target=fork_child, args=(waybill, turn.id, results)) for _ in range(4)]
    for child in children:
        child.start()
    for _ in range(20):
        assert turn.refresh().id == turn.id
    assert [results.get(timeout=20) for _ in children] == ["success"] * 4
    for child in children:
        child.join(10)


def test_threads_share_a_client(waybill):
    waybill.apply(echo())
    found = []
    threads = [threading.Thread(target=lambda n=n: found.append(waybill.run("echo", str(n)).result(timeout=30))) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert sorted(found) == [f"You said {n}" for n in range(8)]


def test_a_proxy_is_used(waybill):
    between = Between(waybill.config.url, passing)
    client = at(waybill, "http://waybill.example", proxy=between.url)
    assert client.api.show_project().slug == waybill.config.project
    assert between.asked[0][1].startswith("http://waybill.example/v1/projects/")


def test_a_certificate_authority_of_its_own(waybill, tmp_path, monkeypatch):
    file = tmp_path / "server.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            file,
            "-out",
            tmp_path / "ca.pem",
            "-days",
            "2",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    between = Between(waybill.config.url, passing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", file)
    between.socket = context.wrap_socket(between.socket, server_side=True)
    url = between.url.replace("http://", "https://")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(Unanswered, match="CERTIFICATE_VERIFY_FAILED"):
        at(waybill, url, patience=0.2).api.show_project()
    assert at(waybill, url, ca_file=str(tmp_path / "ca.pem")).api.show_project().slug == waybill.config.project
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert at(waybill, url).api.show_project().slug == waybill.config.project


def test_a_trace_is_sent_along(waybill, monkeypatch):
    # The package may be missing; what is tested is that its propagator is asked.
    import sys
    import types

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    propagate = types.ModuleType("opentelemetry.propagate")
    propagate.inject = lambda carrier: carrier.update(traceparent=trace, baggage="secret=1")
    module = types.ModuleType("opentelemetry")
    module.propagate = propagate
    monkeypatch.setitem(sys.modules, "opentelemetry", module)
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", propagate)
    between = Between(waybill.config.url, passing)
    at(waybill, between.url).api.show_project()
    headers = between.asked[0][2]
    assert headers["traceparent"] == trace
    assert "baggage" not in headers, "it may hold what is not for others"


def test_a_package_is_handed_over_once(waybill):
    waybill.artifacts.put("notes.md", "12 kg", external=False)
    clerk = Profile("clerk", model="demo/demo", prompt="-").scripted([{"say": "Read."}])
    waybill.apply({"handoff_type": {"name": "notes", "gate": {"paths": [{"at": "/path"}]}}}, clerk)
    package = {"handoff_type": "notes", "path": "notes.md", "timestamp": "2026-01-04T10:30:00Z"}
    turn = waybill.handoff(clerk, package, key="notes-1", instruction="Read the notes.")
    assert waybill.handoff(clerk, package, key="notes-1", instruction="Read the notes.").id == turn.id
    assert turn.result(20) == "Read."
    turn.calls[0].context().assert_saw("Read the notes.", "notes.md").assert_did_not_see("12 kg")
    with pytest.raises(ConfigError, match="timestamp"):
        waybill.handoff(clerk, {"handoff_type": "notes", "path": "notes.md"}, key="notes-2")
    with pytest.raises(InvalidPackage, match=r"none\.md does not exist"):
        waybill.handoff(clerk, package | {"path": "none.md"})


def test_where_the_server_is(tmp_path, monkeypatch):
    for name in ("WAYBILL_API_URL", "WAYBILL_API_KEY", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert Waybill().config.base == "http://127.0.0.1:7070/v1/projects/demo"
    monkeypatch.setattr(config, "DEFAULT", "http://127.0.0.1:1")
    with pytest.raises(Unanswered, match=r"no server is at http://127\.0\.0\.1:1: run `waybill dev` in this folder"):
        Waybill(patience=60).me()
    (tmp_path / ".waybill").mkdir()
    (tmp_path / ".waybill/ready.json").write_text('{"url": "http://127.0.0.1:7071", "project": "other", "pid": 1}')
    (tmp_path / ".waybill/key").write_text("wb_test_x\n")
    assert (Waybill().config.base, Waybill().config.key) == ("http://127.0.0.1:7071/v1/projects/other", "wb_test_x")
    monkeypatch.setenv("WAYBILL_API_URL", "https://waybill.example/")
    assert Waybill().config.base == "https://waybill.example/v1/projects/demo"
    assert "wb_test" not in repr(Waybill(key="wb_test_secret")) + repr(Waybill(key="wb_test_secret").config)
    with pytest.raises(ConfigError, match="http"):
        Waybill("waybill.example")


# Small things


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Box(BaseModel):
    title: str
    size: Size


def test_the_schema_of_a_tool():
    @tool(effect="pure")
    def pack(items: list[Box], kind: Literal["gift", "parcel"] = "parcel", by: datetime.date | None = None, *, call) -> dict[str, int]:
        """Packs boxes.

        In the order in which they are named.

        Args:
            items (list): What to pack,
                in order.
            kind: How to pack it.

        Returns:
            How many there are of each.
        """
        return {}

    said = pack.manifest()
    assert (said["name"], said["description"]) == ("pack", "Packs boxes.\n\nIn the order in which they are named.")
    properties = said["parameters"]["properties"]
    assert set(properties) == {"items", "kind", "by"}
    assert said["parameters"]["required"] == ["items"]
    assert (properties["items"]["description"], properties["kind"]["enum"]) == ("What to pack, in order.", ["gift", "parcel"])
    assert "title" in said["parameters"]["$defs"]["Box"]["properties"]
    assert said["result"] == {"additionalProperties": {"type": "integer"}, "type": "object"}
    assert pack.signature.read('{"items": [{"title": "a", "size": "small"}]}')["items"] == [Box(title="a", size=Size.SMALL)]
    assert pack([], call=None) == {}
    assert repr(pack) == "<Tool pack(items, kind, by): pure, target python-tools>"


def test_what_cannot_be_a_tool():
    def no_hint(city) -> str:
        """Says."""

    def no_docstring(city: str) -> str: ...

    def rest(*cities: str) -> str:
        """Says."""

    for function, said in ((no_hint, "type hint"), (no_docstring, "docstring"), (rest, "name")):
        with pytest.raises(ConfigError, match=said):
            tool(function)


def test_events_are_read_whole_or_not_at_all():
    reader = EventReader()
    lines = ["id: 7", "event: step", 'data: {"a":', "data: 1}", "", ": comment", "id: 8", "event: task", "data: {"]
    events = [event for line in lines for event in reader.take(line)]
    assert [(one.kind, json.loads(one.data), one.id) for one in events] == [("step", {"a": 1}, 7)]
    reader.cut()
    assert reader.after == 7
    assert [one.id for line in ["id: 9", "", "data: x", ""] for one in reader.take(line)] == [None]
    assert reader.after == 9


def test_ids_and_pauses():
    ids = [uuid7() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {one[14] for one in ids} == {"7"}
    assert ids[0][:8] <= ids[-1][:8]
    assert Pauses(0).pause() is None
    assert Pauses(10).pause(retry_after=20) is None
    assert 2 <= Pauses(10).pause(retry_after=2) <= 2.5


def test_a_wrong_request_is_explained(waybill):
    with pytest.raises(Invalid, match="unknown field"):
        waybill.api.start_turn({"profile_name": "echo", "instruction": "x", "colour": "blue"})
    assert isinstance(AsyncWaybill.of(waybill.config), AsyncWaybill)
    urllib.request.urlopen(f"{waybill.config.url}/health", timeout=5)


# What may be an attack


def test_no_secret_is_shown():
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    for key in ("wb_secret\r\nx: y", "wb_secret with spaces", "wb_sécret"):
        with pytest.raises(ConfigError) as error:
            Waybill(url, key)
        assert "wb_s" not in str(error.value)
    assert Waybill(url, "wb_secret\n").config.key == "wb_secret"
    wb = Waybill(url, "wb_secret", proxy="http://user:wb_secret@127.0.0.1:9")
    assert "wb_secret" not in repr(wb) + repr(wb.config)
    wb = Waybill(url, "wb_secret", headers={"x-more": "wb_secret\n"}, patience=5)
    begun = time.monotonic()
    with pytest.raises(ConfigError, match="characters of the headers") as error:
        wb.me()
    assert "wb_secret" not in str(error.value)
    assert error.value.__suppress_context__
    assert time.monotonic() - begun < 2
    listening.close()
    with pytest.raises(ConfigError, match="no password") as error:
        Waybill("http://user:wb_secret@127.0.0.1:9")
    assert "wb_secret" not in str(error.value)
    for wrong in ("http://", "http://[::1", "http://a:b", "ftp://a"):
        with pytest.raises(ConfigError):
            Waybill(wrong)


def test_a_key_is_not_sent_to_a_server_of_another_user(tmp_path, monkeypatch):
    for name in ("WAYBILL_API_URL", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WAYBILL_API_KEY", "wb_secret")
    (tmp_path / ".waybill").mkdir()
    (tmp_path / ".waybill/ready.json").write_text('{"url": "http://127.0.0.1:9", "project": "demo"}')
    monkeypatch.chdir(tmp_path)
    assert Waybill().config.key == "wb_secret"
    monkeypatch.setattr("os.getuid", lambda: (tmp_path / ".waybill/ready.json").stat().st_uid + 1)
    monkeypatch.setattr("waybill.config.ROOT", -1)
    with pytest.raises(ConfigError, match="another user"):
        Waybill()


def test_no_id_leads_to_another_address(waybill):
    seen = Between(waybill.config.url, passing)
    wb = at(waybill, seen.url)
    for wrong in ("..", ".", ""):
        with pytest.raises(ConfigError):
            wb.turn(wrong).refresh()
        with pytest.raises(ConfigError):
            wb.api.forget_session(wrong)
    assert not seen.asked
    with pytest.raises(NotFound):
        wb.turn("../../x?y#z").refresh()
    assert seen.asked[0][1].endswith("/turns/..%2F..%2Fx%3Fy%23z")
    assert "%2F" in Waybill("http://a", None, "../x").config.base
    with pytest.raises(ConfigError):
        Waybill("http://a", None, "..")
    for wrong in ("bestellung-ü", "two words", "two\nlines", "", "x" * 201):
        with pytest.raises(ConfigError, match="`key`"):
            wb.run("echo", "Hello.", key=wrong)


@pytest.mark.parametrize("said", [b"", b"<html>", b"null", b"[1]", b'"x"', b"NaN", b"[" * 100_000, b'"\xff"'])
def test_an_answer_that_is_none_is_an_error_of_this_package(waybill, said):
    wb = at(waybill, Between(waybill.config.url, lambda *_: (200, said, "application/json")).url, patience=0.5)
    for ask in (wb.turn(uuid7()).refresh, wb.turn(uuid7()).receipts):
        with pytest.raises(ApiError):
            ask()


@pytest.mark.parametrize("pause", [-5, "9", 1e308, True, None])
def test_a_pause_that_is_none_is_not_made(waybill, pause):
    busy = problem(503, "busy", "later", retry_after=pause)
    wb = at(waybill, Between(waybill.config.url, lambda *_: busy).url, patience=0.3)
    with pytest.raises(ApiError, match="busy"):
        wb.me()


def test_events_of_a_later_version_are_passed_over(waybill):
    lines = b"""event: news\ndata: {"more": 1}\n\nid: 7\nevent: step\ndata: {"agent_turn_id": "x", "status": "running"}\n\n"""
    wb = at(waybill, Between(waybill.config.url, lambda *_: (200, lines, "text/event-stream")).url)
    event = next(wb.events())
    assert (event.kind, event.id) == ("step", 7)


def test_a_wait_ends_in_time_also_without_a_network(waybill):
    silent = socket.create_server(("127.0.0.1", 0))
    for url in (f"http://127.0.0.1:{silent.getsockname()[1]}", "http://127.0.0.1:9"):
        begun = time.monotonic()
        with pytest.raises((NotYet, Unanswered)):
            at(waybill, url).turn(uuid7()).wait(timeout=1)
        assert time.monotonic() - begun < 6
    silent.close()


def test_the_clock_of_the_server():
    now = datetime.datetime.now(datetime.timezone.utc)
    assert clock_ahead(format_datetime(now)) == 0
    assert 3590 < clock_ahead(format_datetime(now + datetime.timedelta(hours=1))) < 3610
    for wrong in (None, "", "Thu, 99 Foo 99999999 00:00:00 GMT", "x"):
        assert clock_ahead(wrong) == 0
