"""Checks what was scraped and traced against the dashboard, the alert rules and the turns that were run."""

import json
import os
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

root, run = Path(sys.argv[1]), Path(sys.argv[2])
prometheus, trace_id = os.environ["PROMETHEUS"], os.environ["TRACE"]


def ask(path: str, **params: str) -> dict:
    url = f"{prometheus}{path}?{urllib.parse.urlencode(params)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def figure(name: str, value: float, bar: str, ok: bool) -> bool:
    print(json.dumps({"figure": name, "value": value, "unit": "", "bar": bar, "ok": bool(ok)}, ensure_ascii=False))
    return bool(ok)


dashboard = json.loads((root / "deploy/grafana/waybill.json").read_text())
queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
silent = queries
deadline = time.time() + 60
while silent and time.time() < deadline:
    time.sleep(1)
    silent = [query for query in silent if not ask("/api/v1/query", query=query)["result"]]
ok = figure("queries of the dashboard that return data", len(queries) - len(silent), f">= {len(queries)}", not silent)
for query in silent:
    print(f"no data: {query}", file=sys.stderr)
rules = [rule for group in ask("/api/v1/rules")["groups"] for rule in group["rules"]]
sick = [rule["name"] for rule in rules if rule["health"] == "err"]
ok &= figure("alert rules that cannot be evaluated", len(sick), "<= 0", rules and not sick)


def spans() -> list[dict]:
    found = []
    for line in (run / "collector.out").read_text().splitlines() + (run / "collector.log").read_text().splitlines():
        key, _, value = line.strip().partition(":")
        key, value = key.strip(), value.strip()
        if key == "Trace ID":
            found.append({"trace": value, "attributes": {}})
        elif found and key in ("Parent ID", "ID", "Name"):
            found[-1][key] = value
        elif found and (attribute := re.match(r"-> ([\w.]+): \w+\((.*)\)$", line.strip())):
            found[-1]["attributes"][attribute[1]] = attribute[2]
    return found


# The editor asks three researchers, and each asks the archivist: 1 + 3 + 3 turns. The clerk's turn is another tree of the same trace.
wanted = {"invoke_agent editor": 1, "invoke_agent researcher": 3, "invoke_agent archivist": 3, "invoke_agent clerk": 1}
deadline = time.time() + 60
while time.time() < deadline:
    seen = spans()
    names = [span.get("Name") for span in seen]
    if all(names.count(name) >= n for name, n in wanted.items()):
        break
    time.sleep(1)
ids = {span["ID"] for span in seen}
outside = "eee19b7ec3c1b174"
roots = [span for span in seen if span["Parent ID"] == outside]
orphans = [span for span in seen if span["Parent ID"] not in ids | {outside}]
counts = {name: names.count(name) for name in wanted}
chats = [span for span in seen if span["Name"].startswith("chat ")]
told = [span for span in chats if {"gen_ai.provider.name", "gen_ai.request.model", "gen_ai.usage.input_tokens"} <= span["attributes"].keys()]
ok &= figure("turns of a three-level delegation in the trace", sum(counts.values()), ">= 8", counts == wanted)
ok &= figure("spans of another trace", sum(span["trace"] != trace_id for span in seen), "<= 0", all(span["trace"] == trace_id for span in seen))
ok &= figure("spans that hang below nothing", len(orphans), "<= 0", not orphans)
ok &= figure("spans below the caller's own: the two turns that it asked for", len(roots), ">= 2", len(roots) == 2)
ok &= figure("model calls without what the conventions ask for", len(chats) - len(told), "<= 0", chats and len(chats) == len(told))
tool = (run / "tool.out").read_text().split()
calls = [span["ID"] for span in seen if span["Name"] == "execute_tool fetch"]
ok &= figure("calls of a tool that carried their own span", len(calls), ">= 1", tool == [f"00-{trace_id}-{call}-01" for call in calls] and calls)

lines = [line for line in (run / "orchestrator.log").read_text().splitlines() if line]
ok &= figure("lines of a log that are not JSON", sum(not line.startswith("{") for line in lines), "<= 0", all(json.loads(line) for line in lines))
top = json.loads((run / "top.json").read_text())
ok &= figure("vitals that `waybill top` shows", len(top["vitals"]), ">= 5", len(top["vitals"]) >= 5)
sys.exit(0 if ok else 1)
