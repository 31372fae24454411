"""Every piece of Python in docs/python.md runs, in order. The model is the scripted model server, in the provider's format."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from waybill.testing import Server

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/python.md"


def rule(contains, n_results, **reply):
    return {"contains": contains, "n_results": n_results, "reply": reply} if contains else {"n_results": n_results, "reply": reply}


def call(name, **arguments):
    return [{"name": name, "arguments": arguments}]


RULES = [
    rule("as data", 0, calls=call("stock", item="flour")),
    rule("Buy 20", 0, text="I buy.", calls=call("order", item="flour", kilograms=20)),
    rule("flour", 0, calls=call("stock", item="flour")),
    rule("salt", 0, calls=call("stock", item="salt")),
    rule("Ready?", 0, text="Yes."),
    rule("12", 1, calls=call("submit_result", item="flour", kilograms=12)) | {"times": 1},
    rule("", 1, text="It is done: 12 kg, or 3 kg."),
]


@pytest.fixture(scope="module")
def server(scripted_model, tmp_path_factory):
    url = scripted_model(RULES)
    providers = tmp_path_factory.mktemp("providers") / "providers.yaml"
    one = "provider: {{name: {}, adapter: openai_chat, base_url: {}, record: true}}\n"
    providers.write_text("---\n".join(one.format(name, url) for name in ("openai_chat", "openai")))
    found = Server("--providers", str(providers))
    found.model_url = url
    yield found
    found.remove()


def pieces(page=PAGE):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_page_runs(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    project = server.project().config.project
    for name, value in {
        "WAYBILL_API_URL": server.url,
        "WAYBILL_PROJECT": project,
        "OPENAI_BASE_URL": server.model_url,
        "OPENAI_API_KEY": "sk-test",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WAYBILL_API_KEY", raising=False)
    names = {"__name__": "page"}
    tests = []
    try:
        for piece in pieces():
            if file := re.match(r"# (\w+\.py)\n", piece):
                (tmp_path / file[1]).write_text(piece)
                if file[1].startswith("test_"):
                    tests.append(file[1])
                    continue
            exec(compile(piece, str(PAGE), "exec"), names)
    finally:
        if "worker" in names:
            names["worker"].__exit__()
    said = capsys.readouterr().out
    for text in ("12 ", "'stock'", "success", "Flour is ground from wheat.", "not_found", "Yes."):
        assert text in said, f"{text!r} is not in what the page prints:\n{said}"

    program = subprocess.run([sys.executable, "clerk.py"], capture_output=True, text=True, timeout=60, check=True)
    assert "12 kg" in program.stdout
    assert tests
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    for file in tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, file], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr


#: Where the package is not installed, its plugin is named.
PLUGIN = [] if os.environ.get("PYTHONPATH") is None else ["-p", "waybill.testing"]


@pytest.fixture
def addressed(server, monkeypatch):
    monkeypatch.setenv("WAYBILL_API_URL", server.url)
    monkeypatch.setenv("WAYBILL_PROJECT", server.project().config.project)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.delenv("WAYBILL_API_KEY", raising=False)


def test_the_page_about_langgraph_runs(addressed, capsys):
    names = {"__name__": "page"}
    for piece in pieces(ROOT / "docs/langchain.md"):
        exec(compile(piece, "docs/langchain.md", "exec"), names)
    said = capsys.readouterr().out
    for text in (
        "About flour: there are 12 kg.",
        "[1, 0, -1]",
        "start a new run",
        "{'item': 'flour', 'kilograms': 20}",
        "It is done",
        "bread with butter",
        "['food']",
    ):
        assert text in said, f"{text!r} is not in what the page prints:\n{said}"


def test_the_page_about_openai_agents_runs(addressed, capsys):
    names = {"__name__": "page"}
    for piece in pieces(ROOT / "docs/openai-agents.md"):
        exec(compile(piece, "docs/openai-agents.md", "exec"), names)
    said = capsys.readouterr().out
    for text in (
        "It is done: 12 kg",
        "[None, 'function_call', 'function_call_output', 'message']",
        "start a new run",
        "\n4\n",
        "[2, 4]",
        "True",
        "order\n",
    ):
        assert text in said, f"{text!r} is not in what the page prints:\n{said}"


def test_the_page_about_pydantic_ai_runs(addressed, capsys):
    names = {"__name__": "page"}
    for piece in pieces(ROOT / "docs/pydantic-ai.md"):
        exec(compile(piece, "docs/pydantic-ai.md", "exec"), names)
    said = capsys.readouterr().out
    for text in ("0 3\n", "How much flour is there?", "{'item': 'flour', 'kilograms': 20}"):
        assert text in said, f"{text!r} is not in what the page prints:\n{said}"
    assert said.count("It is done") == 3


def test_the_order_survives_its_process(addressed):
    def order(*arguments):
        command = [sys.executable, ROOT / "examples/langgraph-durable/order.py", "order-1", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    first = order()
    assert first.stdout.readline().startswith("weighed the")
    first.kill()
    first.wait()
    assert order().communicate(timeout=30)[0].endswith("Buy 5 kg of flour, 4 kg of salt, 5 kg of yeast?\n")
    assert "'approved': True" in order("--approve").communicate(timeout=30)[0]
