"""Measures the way to a first agent with a tool of one's own: the first piece of docs/python.md, in an environment that has nothing but Python.

    first.py BINARY FOLDER

The scripted model server beside the binary stands for the model's provider.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS, LINES, SECONDS = 5, 20, 60
binary, home = Path(sys.argv[1]), Path(sys.argv[2]) / "first"
fell = []


def figure(name, value, unit, most):
    ok = value <= most
    print(json.dumps({"figure": f"Python SDK: {name}", "value": round(value, 1), "unit": unit, "bar": f"<= {most}", "ok": ok}), flush=True)
    if not ok:
        fell.append(name)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_wheel():
    machine = os.uname().machine
    shipped = home / f"shipped/linux-{machine}"
    shipped.mkdir(parents=True)
    run("strip", "-o", shipped / "waybill", binary)
    run(sys.executable, ROOT / "deploy/packages/make.py", home / "shipped", home / "out", "--only", "wheel", "--level", "1")
    return next((home / "out").glob("*.whl"))


def start_model(folder):
    rules = [
        {"n_results": 0, "reply": {"calls": [{"name": "stock", "arguments": {"item": "flour"}}]}},
        {"n_results": 1, "contains": "12", "reply": {"text": "There are 12 kg of flour."}},
    ]
    (folder / "rules.json").write_text(json.dumps(rules))
    model = subprocess.Popen([binary.with_name("scripted-model"), folder / "rules.json"], stdout=subprocess.PIPE, text=True)
    url = model.stdout.readline().split()[-1]
    (folder / "providers.yaml").write_text(f"provider: {{name: openai_chat, adapter: openai_chat, base_url: {url}}}\n")
    return model


def main():
    shutil.rmtree(home, ignore_errors=True)
    wheel, folder = make_wheel(), home / "empty"
    folder.mkdir()
    piece = re.search(r"```python\n(# clerk\.py\n.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)[1]
    (folder / "clerk.py").write_text(piece)
    venv.create(folder / "venv", with_pip=True)
    known = {name: value for name, value in os.environ.items() if not name.startswith(("WAYBILL", "PYTHON"))}
    environment = known | {"PATH": f"{folder}/venv/bin:/usr/bin:/bin"}
    model = start_model(folder)
    begun, dev = time.monotonic(), None
    try:
        run("pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder, env=environment)
        command = [folder / "venv/bin/waybill", "dev", "--providers", "providers.yaml", "--listen", "127.0.0.1:0"]
        with (folder / "log").open("w") as log:
            dev = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        while not (folder / ".waybill/ready.json").exists():
            if dev.poll() is not None:
                sys.exit((folder / "log").read_text())
            time.sleep(0.05)
        said = run(folder / "venv/bin/python", "clerk.py", cwd=folder, env=environment)
        took = time.monotonic() - begun
    finally:
        model.terminate()
        if dev and dev.poll() is None:
            dev.send_signal(signal.SIGINT)
            dev.wait(30)
    if "12 kg" not in said:
        sys.exit(f"the first agent says: {said}")
    figure("commands from an empty environment to the first answer of one's own agent", 3, "", COMMANDS)
    figure("lines of one's own agent with its tool", len(piece.splitlines()), "lines", LINES)
    figure("from pip install to its answer", took, "s", SECONDS)


main()
sys.exit(f"fell short: {', '.join(fell)}" if fell else 0)
