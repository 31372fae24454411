"""Checks that every command, flag, setting and value that the files of deploy/ name exists."""

import json
import re
import subprocess
import sys
from pathlib import Path

import yaml

waybill, deploy = sys.argv[1], Path("deploy")
wrong = []


def known(*command: str) -> None:
    """Checks a command. An unknown flag is refused before the help is shown."""
    asked = subprocess.run([waybill, *command, "--help"], capture_output=True, text=True)
    if asked.returncode:
        wrong.append(f"waybill {' '.join(command)}: {asked.stderr.splitlines()[0]}")


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def ends_after(command: str) -> float:
    """The seconds after which a process that is told to end has surely ended. Also checks that an API gives a proxy time."""
    given = dict(re.findall(r"--(drain|grace) (\d+)", command))
    if command.startswith("serve ") and float(given.get("drain", 0)) < 5:
        wrong.append(f"`waybill {command}` gives a proxy no time: add --drain 5")
    return float(given.get("drain", 0)) + float(given.get("grace", 10)) + 10


compose = yaml.safe_load((deploy / "compose.yaml").read_text())
for name, service in compose["services"].items():
    # A password comes from the environment, and an empty one is refused.
    for value in [*service.get("environment", {}).values(), *service.get("command", [])]:
        if re.search(r"://[^/@:]+:(?!\$\{[A-Z_]+:\?\}@)[^/@]*@", value):
            wrong.append(f"compose: {name} has a password in its file")
    for key, value in service.get("environment", {}).items():
        if "PASSWORD" in key and not re.fullmatch(r"\$\{[A-Z_]+:\?\}", value):
            wrong.append(f"compose: {key} of {name} is not taken from the environment")
    if service.get("image") != "waybill":
        continue
    known(*service["command"])
    is_owner = "WAYBILL_OWNER_URL" in service["environment"]
    if is_owner != (name == "migrate"):
        wrong.append(f"compose: {name} has the owner's login, or the migration has none")
    if not (service.get("read_only") and service.get("cap_drop") == ["ALL"]):
        wrong.append(f"compose: {name} may write to its root, or has capabilities")
    if name == "migrate":
        continue
    if service["healthcheck"]["test"] != ["CMD", "/waybill", "health"]:
        wrong.append(f"compose: {name} has no health check")
    if seconds(service["stop_grace_period"]) < ends_after(" ".join(service["command"])):
        wrong.append(f"compose: {name} is killed before it has ended")
known("health")
for unit in deploy.rglob("systemd/**/*.*"):
    text = unit.read_text() if unit.is_file() else ""
    for command in re.findall(r"^ExecStart=/usr/bin/waybill (.+)$", text, re.MULTILINE):
        for part in ["serve", "orchestrator", "worker"] if "%i" in command else [command]:
            known(*command.replace("%i", part).split())
    command = re.search(r"^ExecStart=/usr/bin/waybill (.+)$", text, re.MULTILINE)
    stop = re.search(r"^TimeoutStopSec=(\d+)", text, re.MULTILINE)
    # What a drop-in does not set is as in the unit.
    stop = stop or (unit.suffix == ".conf" and re.search(r"^TimeoutStopSec=(\d+)", (deploy / "systemd/waybill@.service").read_text(), re.MULTILINE))
    if command and stop and int(stop[1]) < ends_after(command[1]):
        wrong.append(f"{unit}: the process is killed before it has ended")
    if "OWNER_URL=" in text and "migrate" not in unit.name:
        wrong.append(f"{unit} has the owner's login")
chart = yaml.safe_load((deploy / "helm/waybill/Chart.yaml").read_text())
settings = {f"WAYBILL_{one['setting'].upper()}" for one in json.loads(subprocess.run(
    [waybill, "config", "show", "--json"], capture_output=True, text=True, check=True).stdout)}
settings |= {"WAYBILL_CONFIG", "WAYBILL_VERSION", "WAYBILL_LOG", "WAYBILL_POSTGRES_ARCHIVE"}
for file in [path for path in deploy.rglob("*") if path.is_file()]:
    for name in re.findall(r"\bWAYBILL_[A-Z_]*[A-Z]\b", file.read_text()):
        if name not in settings and not name.startswith("WAYBILL_SECRET"):
            wrong.append(f"{file}: there is no setting {name}")
version = json.loads(subprocess.run(["cargo", "metadata", "--no-deps", "--format-version=1"], capture_output=True, text=True, check=True).stdout)
version = next(package["version"] for package in version["packages"] if package["name"] == "waybill")
if chart["appVersion"] != version:
    wrong.append(f"the chart is of {chart['appVersion']}, the binary of {version}")
print(json.dumps({"figure": "what deploy/ names and there is not", "value": len(wrong), "unit": "", "bar": "<= 0", "ok": not wrong}))
sys.exit("\n".join(wrong) if wrong else 0)
