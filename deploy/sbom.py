"""Prints the bill of materials of the binary as CycloneDX 1.5: every crate with licence and checksum, from Cargo.lock and cargo metadata."""

import json
import os
import subprocess
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

metadata = json.loads(subprocess.run(
    ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"],
    capture_output=True, check=True).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
root = next(id for id, package in packages.items() if package["name"] == "waybill")
lock = tomllib.loads(Path("Cargo.lock").read_text())
checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}

built, waiting = set(), [root]
while waiting:
    here = waiting.pop()
    if here in built:
        continue
    built.add(here)
    for dependency in nodes[here]["deps"]:
        if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
            waiting.append(dependency["pkg"])


def reference(id: str) -> str:
    return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"


def component(id: str) -> dict:
    package = packages[id]
    found = {"type": "library", "bom-ref": reference(id), "name": package["name"], "version": package["version"], "purl": reference(id)}
    if package.get("license"):
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums.get((package["name"], package["version"])):
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
components = [component(id) for id in sorted(built - {root}, key=reference)]
print(json.dumps({
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components, sort_keys=True))}",
    "version": 1,
    "metadata": {"timestamp": made.isoformat(), "component": {**component(root), "type": "application"}},
    "components": components,
    "dependencies": [
        {"ref": reference(id), "dependsOn": sorted({reference(one["pkg"]) for one in nodes[id]["deps"] if one["pkg"] in built})}
        for id in sorted(built, key=reference)
    ],
}, indent=1))
