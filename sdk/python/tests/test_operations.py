"""UI-5: every operation of the API can be reached from the client."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from pathlib import Path

import pytest

from waybill import errors
from waybill._async.operations import AsyncOperations
from waybill._sync.operations import OPERATIONS, Operations
from waybill.errors import ApiError, OlderServer
from waybill.testing import program

ROOT = Path(__file__).resolve().parents[3]
# What they need to be understood, where no example would do.
SAID = {
    "turns": "0",
    "kind": "knowledge",
    "left": "0",
    "right": "0",
    "path": "a/b",
    "reason": "a test",
    "q": "0" * 8,
    "content_months": 1,
    "id": "00000000-0000-7000-8000-000000000000",
}


@pytest.fixture(scope="module")
def document():
    return json.loads(subprocess.run([program(), "openapi"], check=True, capture_output=True).stdout)


def operations(document):
    return [(path, method, operation) for path, item in document["paths"].items() for method, operation in item.items()]


def test_each_operation_is_a_method_with_all_parameters(document):
    for path, method, operation in operations(document):
        name = operation["operationId"]
        known = OPERATIONS[name]
        assert (known.method, known.path) == (method.upper(), path)
        wanted = {one["name"] for one in operation.get("parameters", []) if one["in"] in ("path", "query")} - {"project", "key"}
        for kind in (Operations, AsyncOperations):
            parameters = {one.rstrip("_") for one in inspect.signature(getattr(kind, name)).parameters}
            assert wanted <= parameters, name
            assert "body" in parameters or "requestBody" not in operation, name
            assert "key" in parameters or not known.keyed, name
    assert len(OPERATIONS) == len(operations(document))


def arguments(method, path):
    """Returns arguments that the server reads, and refuses at the latest because there is nothing of that name."""
    given = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self" or parameter.default is not parameter.empty:
            continue
        if name == "body":
            given[name] = b"" if "bytes" in str(parameter.annotation) else {}
        else:
            given[name] = SAID.get(name, SAID["id"] if "{" in path else "x")
    return given


def test_the_server_knows_each_operation(waybill):
    """Each is called, and answered by its handler: not by the one for unknown paths, and not by one for another method."""
    n_answered = 0
    for name, operation in sorted(OPERATIONS.items()):
        method = getattr(waybill.api, name)
        given = arguments(getattr(Operations, name), operation.path)
        try:
            if operation.answer == "text":
                next(iter(method(**given, **({"root": SAID["id"]} if name == "watch_project" else {}))))
            elif name not in ("begin_login", "finish_login"):  # for browsers: they answer with pages
                method(**given, patience=0)
        except OlderServer as error:
            pytest.fail(f"{name}: {error}")
        except ApiError as error:
            assert error.code not in ("method_not_allowed", "no_problem"), f"{name}: {error}"
        n_answered += 1
    assert n_answered == len(OPERATIONS)


def test_each_code_of_the_documents_has_a_class():
    text = (ROOT / "docs/api.md").read_text()
    listed = text[text.index("* **Errors**") : text.index("`retry_after` is present")]
    codes = {code for code in re.findall(r"`([a-z_]+)`", listed)} - {"code", "retry_after"}
    assert len(codes) > 25
    assert codes <= set(errors.CLASSES), codes - set(errors.CLASSES)
    for kind in errors.CLASSES.values():
        assert kind.advice, kind


def test_each_code_of_the_server_has_a_class():
    sources = [*ROOT.glob("crates/api/src/**/*.rs")]
    if not sources:
        pytest.skip("the sources of the server are not here")
    text = "\n".join(path.read_text() for path in sources)
    codes = set(re.findall(r'Problem::(?:new\([^,]+,|conflict\(|busy\()\s*"([a-z_]+)"', text))
    # Of the recorder, whose clients are those of model providers.
    assert codes - set(errors.CLASSES) <= {"websocket", "cannot_record"}
