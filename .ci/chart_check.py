"""Renders the chart with real Helm for each example, and checks that the objects are valid and hold what docs/operations.md promises.

    .ci/chart_check.py HELM WAYBILL
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import kubernetes_validate
import yaml

warnings.filterwarnings("ignore")
helm, waybill = sys.argv[1:]
chart = Path("deploy/helm/waybill")
examples = sorted(Path("deploy/helm/examples").glob("*.yaml"))
# The oldest version that Chart.yaml allows, and the newest that is known.
VERSIONS = ["1.27", kubernetes_validate.latest_version()]
# Kinds of other projects, whose schemas are not at hand.
FOREIGN = {"ScaledObject", "PodMonitor", "ExternalSecret"}
PASSWORD = re.compile(r"://[^\s/@:\"']*:[^\s/@\"']+@|PASSWORD[\"']?\s*[:=,]\s*(value:)?\s*[\"']?\w")
COMMANDS = {"api": "serve", "orchestrator": "orchestrator", "worker": "worker"}
metrics = set(re.findall(r'"(waybill_[a-z_]+)"', Path("crates/core/src/metric.rs").read_text()))
wrong = []


def render(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([helm, "template", "wb", str(chart), "--namespace", "acme", *arguments], capture_output=True, text=True)


def must(holds: bool, what: str) -> None:
    if not holds:
        wrong.append(f"{where}: {what}")


def subset(small: dict, large: dict) -> bool:
    return small.items() <= large.items()


def contained(pod: dict, name: str) -> dict:
    """Checks what every pod has, and returns its container."""
    security = pod["securityContext"]
    must(security["runAsNonRoot"] and security["runAsUser"] > 0, f"{name} may run as root")
    must(security["seccompProfile"]["type"] == "RuntimeDefault", f"{name} has no seccomp profile")
    must(pod["automountServiceAccountToken"] is False, f"{name} has a token of the cluster")
    [container] = pod["containers"]
    inner = container["securityContext"]
    must(inner["readOnlyRootFilesystem"] and not inner["allowPrivilegeEscalation"], f"{name} may write to its root, or gain privileges")
    must(inner["capabilities"] == {"drop": ["ALL"]}, f"{name} has capabilities")
    resources = container["resources"]
    must({"cpu", "memory"} <= resources["requests"].keys() and "memory" in resources["limits"], f"{name} has no requests or no limit of memory")
    asked = subprocess.run([waybill, *container["args"], "--help"], capture_output=True, text=True)
    must(asked.returncode == 0, f"waybill {' '.join(container['args'])}: {asked.stderr.splitlines()[:1]}")
    return container


def deployed(part: str, one: dict, objects: dict, owner: str) -> None:
    spec = one["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    container = contained(pod, part)
    arguments = dict(argument.partition("=")[::2] for argument in container["args"][1:])
    must(container["args"][0] == COMMANDS[part], f"{part} runs {container['args'][0]}")
    must(int(arguments["--connections"]) > 0, f"{part} has no limit of connections")
    lasts = sum(float(arguments.get(flag, 0)) for flag in ("--drain", "--grace"))
    must(pod["terminationGracePeriodSeconds"] >= lasts + 10, f"{part} is killed before it has ended")
    must(part != "api" or float(arguments["--drain"]) >= 5, "the API closes while proxies still send requests")
    probes = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    must(probes == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}, f"{part} has the probes {probes}")
    secrets = [source["secretRef"]["name"] for source in container["envFrom"]]
    must(len(secrets) == 1 and owner not in secrets, f"{part} has the secrets {secrets}")
    keys = {spread["topologyKey"] for spread in pod["topologySpreadConstraints"]}
    must(keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, f"{part} is spread over {keys}")
    must(spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0, f"{part} is stopped before its replacement is ready")
    must(subset(spec["selector"]["matchLabels"], labels), f"{part} does not select its own pods")
    budget = objects["PodDisruptionBudget", f"wb-{part}"]["spec"]
    must(budget["maxUnavailable"] == 1 and subset(budget["selector"]["matchLabels"], labels), f"{part} has no disruption budget")
    is_scaled = ("HorizontalPodAutoscaler", f"wb-{part}") in objects or ("ScaledObject", f"wb-{part}") in objects
    must(("replicas" in spec) != is_scaled, f"{part}: replicas are set by the chart and by an autoscaler, or by none")


def closed(objects: dict) -> None:
    """Checks the network policies: each part reaches what it needs, and the migration the database only."""
    for part in [*COMMANDS, "migrate"]:
        policy = objects["NetworkPolicy", f"wb-{part}"]["spec"]
        ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        must(set(policy["policyTypes"]) == {"Ingress", "Egress"}, f"the policy of {part} is open")
        must(ports >= {53, 5432} and (4222 in ports and 443 in ports) == (part != "migrate"), f"{part} reaches the ports {ports}")
        let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        must(let_in == {"api": {9090, 7070}, "migrate": set()}.get(part, {9090}), f"{part} is reached at {let_in}")


def scaled(queries: list[str]) -> None:
    """Asks Prometheus what the autoscaler would see: of two orchestrators the larger figure, of a target without turns 0, and of no orchestrator nothing."""
    named = {name for query in queries for name in re.findall(r"waybill_[a-z_]+", query)}
    must(named and named <= metrics, f"workers are scaled by {named - metrics}, which no process reports")
    if not shutil.which("promtool"):
        return
    up = [{"series": f'waybill_database_up{{namespace="acme", pod="{pod}"}}', "values": "1"} for pod in "ab"]
    turns = 'target="llm", namespace="acme", pod'
    busy = [
        {"series": f'waybill_queue_oldest_seconds{{{turns}="a"}}', "values": "7"},
        {"series": f'waybill_queue_oldest_seconds{{{turns}="b"}}', "values": "9"},
        *({"series": f'waybill_queue_turns{{{turns}="{pod}", status="pending"}}', "values": "10"} for pod in "ab"),
        *({"series": f'waybill_queue_turns{{{turns}="{pod}", status="processing"}}', "values": "90"} for pod in "ab"),
        {"series": 'waybill_queue_turns{target="llm", namespace="other", status="pending"}', "values": "1000"},
    ]
    cases = [(up + busy, [9, 100]), (up, [0, 0]), ([], [None, None])]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [
        {"expr": query, "eval_time": "0m", "exp_samples": [] if value is None else [{"labels": "{}", "value": value}]}
        for query, value in zip(queries, values)]} for series, values in cases]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"tests": tests}, file)
        file.flush()
        asked = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True)
    must(asked.returncode == 0, f"the queries of the autoscaler: {asked.stdout}{asked.stderr}")


def check(rendered: str) -> None:
    must(not PASSWORD.search(rendered), f"a password is in the release: {PASSWORD.search(rendered)}")
    objects = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(rendered) if one}
    for (kind, name), one in objects.items():
        must(kind != "Secret", f"the chart makes the secret {name}")
        for version in [] if kind in FOREIGN else VERSIONS:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except Exception as error:
                must(False, f"{kind} {name} is not valid in {version}: {str(error)[:300]}")
    job = objects["Job", "wb-migrate"]
    owner = contained(job["spec"]["template"]["spec"], "migrate")["envFrom"][0]["secretRef"]["name"]
    must("pre-install,pre-upgrade" == job["metadata"]["annotations"]["helm.sh/hook"], "the migration is no hook")
    must(job["spec"]["activeDeadlineSeconds"] >= 600, "a migration that waits for a table is killed")
    for part in COMMANDS:
        deployed(part, objects["Deployment", f"wb-{part}"], objects, owner)
    service = objects["Service", "wb-api"]["spec"]
    api = objects["Deployment", "wb-api"]["spec"]["template"]
    must(subset(service["selector"], api["metadata"]["labels"]), "the service selects no pod")
    must(service["ports"][0]["targetPort"] in [port["name"] for port in api["spec"]["containers"][0]["ports"]], "the service has no port")
    if any(kind == "NetworkPolicy" for kind, _ in objects):
        closed(objects)
    if scaler := objects.get(("ScaledObject", "wb-worker")):
        scaled([trigger["metadata"]["query"] for trigger in scaler["spec"]["triggers"]])


for example in [None, *examples]:
    where = example.name if example else "values.yaml"
    chosen = ["--values", str(example)] if example else []
    linted = subprocess.run([helm, "lint", str(chart), "--strict", "--quiet", *chosen], capture_output=True, text=True)
    must(linted.returncode == 0, linted.stdout + linted.stderr)
    rendered = render(*chosen)
    if rendered.returncode:
        must(False, rendered.stderr)
    else:
        check(rendered.stdout)

# What must be refused, and the word that says why.
REFUSED = {
    "worker.replicas=20": "connections",
    "worker.autoscaling.enabled=true,worker.autoscaling.maxReplicas=40": "connections",
    "settings.WAYBILL_NATS_URL=nats://waybill:canary@nats:4222": "secret",
    "settings.WAYBILL_SERVICE_PASSWORD=canary": "secret",
    "ingress.enabled=true,ingress.host=example.com": "tlsSecretName",
    "worker.graceSecond=5": "graceSecond",
    "settings.PASSWORD=x": "PASSWORD",
}
for where, why in REFUSED.items():
    refused = render("--set", where)
    must(refused.returncode != 0 and why in refused.stderr, f"it is not refused: {refused.stderr[:300]}")
    must("canary" not in refused.stderr, "a password is printed")
print(json.dumps({"figure": "what the rendered chart lacks", "value": len(wrong), "unit": "", "bar": "<= 0", "ok": not wrong}))
sys.exit("\n".join(wrong) if wrong else 0)
