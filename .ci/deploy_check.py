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


compose = yaml.safe_load((deploy / "compose.yaml").read_text())
ours = {name: service for name, service in compose["services"].items() if service.get("image") == "waybill"}
for service in ours.values():
    known(*service["command"])
values = yaml.safe_load((deploy / "helm/waybill/values.yaml").read_text())
chart = yaml.safe_load((deploy / "helm/waybill/Chart.yaml").read_text())
template = (deploy / "helm/waybill/templates/parts.yaml").read_text()
for part, command in {"api": "serve", "orchestrator": "orchestrator", "worker": "worker"}.items():
    if f'"{part}" "{command}"' not in template:
        wrong.append(f"the chart does not run {command}")
    known(command, *values[part]["arguments"])
for path in re.findall(r"\.Values\.([A-Za-z.]+)", template):
    here = values
    for key in path.split("."):
        if not isinstance(here, dict) or key not in here:
            wrong.append(f"values.yaml has no {path}")
            break
        here = here[key]
opened = len(re.findall(r"{{-? *(?:if|range|with|define|block)\b", template))
if opened != len(re.findall(r"{{-? *end\b", template)):
    wrong.append("the chart's template does not close what it opens")
known("serve", "--listen=0.0.0.0:1", "--behind-tls")
known("worker", "--providers=x.yaml")
known("serve", "--providers=x.yaml")
settings = {f"WAYBILL_{one['setting'].upper()}" for one in json.loads(subprocess.run(
    [waybill, "config", "show", "--json"], capture_output=True, text=True, check=True).stdout)}
settings |= {"WAYBILL_CONFIG", "WAYBILL_VERSION", "WAYBILL_LOG"}
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
