"""Checks generated clients.

    check.py examples OPENAPI FOLDER      write examples.ts, which gives every recorded example its generated type
    check.py models OPENAPI FOLDER        read every recorded answer with the generated models
    check.py loose FOLDER                 compare the places without a type, in TypeScript and Python, with the list `any`
"""

import ast
import importlib
import json
import pathlib
import re
import sys


def operations(document):
    for item in document["paths"].values():
        yield from item.values()


def answers(operation):
    """Returns the statuses, media types and contents of an operation that have an example."""
    for status, answer in operation["responses"].items():
        for kind, content in answer.get("content", {}).items():
            if "example" in content:
                yield status, kind, content


def examples(document, folder):
    lines = ['import type { operations } from "./api";']
    for operation in operations(document):
        name = operation["operationId"]
        for status, kind, content in answers(operation):
            if kind == "application/json":
                place = f'operations["{name}"]["responses"]["{status}"]["content"]["{kind}"]'
                lines.append(f"export const {name}_answer: {place} = {json.dumps(content['example'])};")
        for kind, content in operation.get("requestBody", {}).get("content", {}).items():
            if kind == "application/json" and "example" in content:
                place = f'NonNullable<operations["{name}"]["requestBody"]>["content"]["{kind}"]'
                lines.append(f"export const {name}_request: {place} = {json.dumps(content['example'])};")
    (folder / "examples.ts").write_text("\n".join(lines) + "\n")
    return len(lines) - 1


def models(document, folder):
    sys.path.insert(0, str(folder))
    generated = importlib.import_module("models")
    classes = {name.replace("_", "").lower(): kind for name, kind in vars(generated).items() if isinstance(kind, type)}
    n_read = 0
    for operation in operations(document):
        for _, _, content in answers(operation):
            schema = content["schema"].get("$ref", "").rpartition("/")[2]
            if schema:
                classes[schema.replace("_", "").lower()].model_validate(content["example"])
                n_read += 1
    return n_read


def pascal(name):
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[_-]", name))


def in_python(place):
    """Returns the names that a place may have in Python: what a schema has inside it gets a class of its own."""
    parts = place.split(".")
    names = {pascal(parts[-1])}
    if len(parts) > 1:
        names |= {f"{pascal(parts[0])}.{parts[-1]}", f"{pascal(parts[-2])}.{parts[-1]}"}
    return names


def loose_python(path):
    places = set()
    for kind in ast.parse(path.read_text()).body:
        for field in getattr(kind, "body", []) if isinstance(kind, ast.ClassDef) else []:
            if any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(field)):
                name = re.sub(r"\d+$", "", kind.name)
                target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
                # The fields that a class allows beside its own have no name.
                places.add(name if target.id == "__annotations__" else f"{name}.{target.id.rstrip('_')}")
    return places


def loose(folder):
    lines = (pathlib.Path(__file__).parent / "any").read_text().splitlines()
    allowed = {line.split()[0] for line in lines if line and not line.startswith("#")}
    typescript = set((folder / "loose.txt").read_text().split())
    python = loose_python(folder / "models.py")
    wrong = [f"{place}: it has no type in TypeScript: name it in .ci/clients.d/any if it may be any JSON" for place in typescript - allowed]
    wrong += [f"{place}: it has a type: take it out of .ci/clients.d/any" for place in allowed - typescript]
    known = {name for place in allowed for name in in_python(place)}
    wrong += [f"{place}: it is `Any` in Python" for place in python - known]
    print("\n".join(sorted(wrong)), end="\n" if wrong else "")
    return len(wrong)


def figure(name, value, bar, ok):
    print(json.dumps({"figure": f"generated clients: {name}", "value": value, "unit": "", "bar": bar, "ok": ok}))
    sys.exit(not ok)


what, *paths = sys.argv[1:]
folder = pathlib.Path(paths[-1])
if what == "loose":
    n = loose(folder)
    figure("places without a type", n, "<= 0", n == 0)
document = json.loads(pathlib.Path(paths[0]).read_text())
n = {"examples": examples, "models": models}[what](document, folder)
if what == "models":
    figure("answers that the Python models read", n, ">= 70", n >= 70)
