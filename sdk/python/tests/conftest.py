"""The tests run against the program itself, with its own PostgreSQL. The variable WAYBILL_BINARY names it; the scripted model server is beside it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waybill.testing import program


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list], str]]:
    """Starts servers that speak the providers' format and follow rules. Returns the address."""
    started: list[subprocess.Popen[str]] = []

    def start(rules: list) -> str:
        file = tmp_path_factory.mktemp("rules") / "rules.json"
        file.write_text(json.dumps(rules))
        command = [Path(program()).with_name("scripted-model"), file]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        return started[-1].stdout.readline().split()[-1]

    yield start
    for one in started:
        one.terminate()
        one.wait(10)
