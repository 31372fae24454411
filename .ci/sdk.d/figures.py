"""Measures the Python SDK: its size, and how long its import takes."""

import json
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "sdk/python"
GENERATED = {"models.py", "operations.py"}
fell = []


def figure(name, value, unit, most):
    ok = value <= most
    print(json.dumps({"figure": f"Python SDK: {name}", "value": round(value, 3), "unit": unit, "bar": f"<= {most}", "ok": ok}))
    if not ok:
        fell.append(name)


def by_hand():
    sources = [*PACKAGE.glob("waybill/*.py"), *PACKAGE.glob("waybill/_async/*.py"), PACKAGE / "generate.py"]
    return {path: len(path.read_text().splitlines()) for path in sources if path.name not in GENERATED}


def import_time(code):
    """Returns the processor time of an import in a new process, the least of several."""
    program = f"import time; begun = time.process_time(); {code}; print(time.process_time() - begun)"
    return min(float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout) for _ in range(7))


lines = by_hand()
figure("lines by hand", sum(lines.values()), "lines", 4000)
figure("lines of the longest file by hand", max(lines.values()), "lines", 600)
alone = import_time("import httpx2; from pydantic import BaseModel")
figure("import ÷ that of httpx2 and pydantic", import_time("from waybill import Profile, Waybill, Worker, tool") / alone, "ratio", 1.5)
sys.exit(f"fell short: {', '.join(fell)}" if fell else 0)
