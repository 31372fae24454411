"""Tests of agents: a pytest plugin. Installing the package is enough; the fixtures are there.

    def test_reporter(waybill):                      # a project of its own on a real server, without a key and without a network
        waybill.apply(reporter.scripted([{"call": {"weather": {"city": "Lyon"}}}, {"say": "{{result}}"}]))
        with waybill.worker([weather]):
            turn = waybill.run("reporter", "Lyon?").wait(timeout=20)
        turn.calls[-1].context().assert_saw("21.5").assert_within(tokens=4_000)

The server is the program of this package, or the one that the variable WAYBILL_BINARY names. It starts once for all tests, in a second or two.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import find_binary
from .errors import ConfigError

if TYPE_CHECKING:
    from ._async.client import AsyncWaybill
    from ._sync.client import Waybill

STARTS_WITHIN, ENDS_WITHIN = 60.0, 25.0
#: Settings of the server that tests may pass on. With others, such as WAYBILL_ARTIFACTS or a provider's key, they would reach what is not theirs.
PASSED_ON = ("WAYBILL_LOG", "WAYBILL_LOG_FORMAT", "WAYBILL_POSTGRES_BIN")

#: Runs the server, and ends it when its standard input is closed: also if the tests are killed. Then it removes its folder, too.
SUPERVISE = """
import select, shutil, signal, subprocess, sys
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
while child.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
    pass
if child.poll() is None:
    child.send_signal(signal.SIGINT)
    try:
        child.wait(20)
    except subprocess.TimeoutExpired:
        child.kill()
code = child.wait()
if sys.argv[1] and select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.read(1):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
sys.exit(code)
"""


def program() -> str:
    """Returns the path of the program `waybill`."""
    try:
        return str(find_binary())
    except FileNotFoundError:
        if found := shutil.which("waybill"):
            return found
        raise ConfigError("there is no program `waybill`: install a wheel of waybill-ai for your platform, or set WAYBILL_BINARY") from None


class Server:
    """A server with a database of its own, as `waybill dev` starts it."""

    def __init__(self, *arguments: str, listen: str = "127.0.0.1:0", folder: Path | None = None) -> None:
        # Not pytest's own folder: PostgreSQL may run as another user, who must reach it.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="waybill-test-"))
        self.folder.chmod(0o755)
        ready = self.folder / "ready.json"
        command = [program(), "dev", "--data", str(self.folder / ".waybill"), "--listen", listen, "--ready-file", str(ready), *arguments]
        self.log = self.folder / "log"
        with self.log.open("a") as output:
            supervised = [sys.executable, "-I", "-c", SUPERVISE, "" if folder else str(self.folder), *command]
            environment = {name: value for name, value in os.environ.items() if not name.startswith("WAYBILL_") or name in PASSED_ON}
            options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output, "start_new_session": True}
            self.process = subprocess.Popen(supervised, cwd=self.folder, env=environment, **options)
        until = time.monotonic() + STARTS_WITHIN
        try:
            while not ready.exists():
                if self.process.poll() is not None or time.monotonic() > until:
                    raise ConfigError(f"waybill dev does not start: {self.log.read_text()}")
                time.sleep(0.02)
        except BaseException:
            self.remove()
            raise
        self.url: str = json.loads(ready.read_text())["url"]

    def stop(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.process.stdin.write(b"s")
            self.process.stdin.close()
        self.process.wait(ENDS_WITHIN)

    def remove(self) -> None:
        """Stops the server, and removes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def project(self) -> Waybill:
        """Returns a client of a new project."""
        from ._sync.client import Waybill

        slug = f"t-{uuid.uuid4().hex[:16]}"
        client = Waybill(self.url, None, slug)
        client.api.create_project({"slug": slug})
        return client


@pytest.fixture(scope="session")
def waybill_arguments() -> Sequence[str]:
    """More arguments of `waybill dev`, such as `["--providers", "providers.yaml"]`: define this fixture in your own conftest.py."""
    return ()


@pytest.fixture(scope="session")
def waybill_server(waybill_arguments: Sequence[str]) -> Iterator[Server]:
    """A server for all tests."""
    server = Server(*waybill_arguments)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def waybill(waybill_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waybill]:
    """A client of a project that only this test has."""
    for name in ("WAYBILL_API_URL", "WAYBILL_API_KEY", "WAYBILL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    with waybill_server.project() as client:
        yield client


@pytest.fixture
def async_waybill(waybill: Waybill) -> AsyncWaybill:
    """An asynchronous client of the same project as `waybill`."""
    from ._async.client import AsyncWaybill

    return AsyncWaybill.of(waybill.config)
