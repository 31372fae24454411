"""A code review in which content travels by path, in packages of a few hundred tokens. The README says how to run it."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from waybill import Profile, Turn, Waybill

MODEL = os.environ.get("MODEL")
REPOSITORY = Path(__file__).parent / "repository"
PACKED, PER_TURN = 400, 12_000  # tokens: of the files in a package, and of all model calls of a review


class Finding(BaseModel):
    path: str
    line: int
    weight: Literal["must", "should"]
    text: str


class Review(BaseModel):
    findings: list[Finding]


# A package has paths, no content. It is sent only if what it names exists and fits: a review that is not valid does not get to the judge.
FILES = {"paths": [{"at": "/files/*/path"}], "priority": {"items": "/files", "at": "/priority"}}
VALID = {"paths": [{"at": "/reviews/*", "media_type": "application/json", "schema": Review.model_json_schema()}]}
TYPES = [{"handoff_type": {"name": name, "max_tokens": 300, "gate": gate}} for name, gate in (("change", FILES), ("reviews", VALID))]


def agent(name: str, task: str, script: list[dict]) -> Profile:
    """Returns an agent that reads what it was handed, and stores its findings below `reviews`."""
    profile = Profile(
        name,
        model=MODEL or "demo/demo",
        prompt=f'{task} Store the result as JSON at reviews/{name}.json: {{"findings": [{{"path", "line", "weight": "must" or "should", "text"}}]}}. '
        "The path is that of the artifact. Then say in one sentence what you found.",
        internal_tools=["plan_reading", "search_artifacts", "read_artifact", "write_artifact"],
        limits={"tokens": PER_TURN},
        more={"writable_artifacts": ["reviews"]},
    )
    return profile if MODEL else profile.scripted(script)


def read(path: str) -> dict:
    return {"call": {"read_artifact": {"path": path, "part": "whole"}}}


def write(name: str, *findings: Finding) -> dict:
    return {"call": {"write_artifact": {"path": f"reviews/{name}.json", "content": Review(findings=list(findings)).model_dump_json()}}}


sql = Finding(path="change/shop/login.py", line=7, weight="must", text="a name with a quote in it becomes SQL: pass it as a parameter")
md5 = Finding(path="change/shop/login.py", line=14, weight="must", text="MD5 is no hash for passwords: use scrypt, with a salt")
default = Finding(path="change/shop/cart.py", line=4, weight="must", text="all calls share this one list, so customers share a cart")
bare = Finding(path="change/shop/mail.py", line=7, weight="should", text="this hides every error, also a wrong address: catch what may happen")
loop = Finding(path="change/shop/cart.py", line=11, weight="should", text="write `for item in cart`")

plan, find = {"call": {"plan_reading": {}}}, {"call": {"search_artifacts": {"text": "execute("}}}
security_script = [plan, find, read(sql.path), write("security", sql, md5), {"say": "Two things must change."}]
style_script = [plan, read(default.path), read(bare.path), write("style", default, bare, loop), {"say": "One thing must change, two should."}]
judge_script = [read("reviews/security.json"), read("reviews/style.json"), write("judge", sql, md5, default, bare), {"say": "Not yet."}]
security = agent("security", "You review the security of a change.", security_script)
style = agent("style", "You review the style of a change.", style_script)
judge = agent("judge", "You judge reviews: keep what is right and matters, the most important first.", judge_script)


def pack(wb: Waybill) -> tuple[dict, list[str]]:
    """Stores the files, and packs them while the budget lasts, code first. Returns the package, and what was left out."""
    files, left_out, n_tokens = [], [], 0
    for file in sorted(REPOSITORY.rglob("*.*"), key=lambda file: file.suffix != ".py"):
        stored = wb.artifacts.put(f"change/{file.relative_to(REPOSITORY)}", file.read_text(), external=False)
        if n_tokens + (stored.n_tokens or 0) > PACKED:
            left_out.append(f"{stored.path} ({stored.n_tokens} tokens)")
        else:
            n_tokens += stored.n_tokens or 0
            files.append({"path": stored.path, "n_tokens": stored.n_tokens, "priority": "high" if file.suffix == ".py" else "low"})
    return {"handoff_type": "change", "files": files, "n_tokens": n_tokens}, left_out


def review(wb: Waybill, package: dict) -> dict[str, Turn]:
    """Lets two agents review the package at the same time, and the judge their reviews. Returns their turns."""
    wb.apply(*TYPES, security, style, judge)
    turns = {profile.name: wb.handoff(profile, package) for profile in (security, style)}
    for turn in turns.values():
        turn.result(timeout=120)
    turns["judge"] = wb.handoff(judge, {"handoff_type": "reviews", "reviews": [f"reviews/{name}.json" for name in turns]})
    turns["judge"].result(timeout=120)
    return turns


def source(finding: Finding, turns: dict[str, Turn]) -> str:
    """Returns the line that a finding is about. Fails if no reviewer's model has seen it."""
    lines, n = (REPOSITORY / finding.path.removeprefix("change/")).read_text().splitlines(), finding.line
    assert lines[n - 1].strip(), f"{finding.path}:{n} is empty"
    # With the line before or after it: a line such as `return None` is in many files.
    pairs = ["\n".join(pair) for pair in (lines[max(0, n - 2) : n], lines[n - 1 : n + 1]) if len(pair) == 2]
    saw = [turns[name].calls[-1].context().text for name in ("security", "style")]
    assert any(pair in text for pair in pairs for text in saw), f"no reviewer saw {finding.path}:{n}"
    return lines[n - 1].strip()


def spent(turn: Turn) -> str:
    """Says how many tokens of content were handed over and read, and how many the model calls took."""
    handed = [card for card in turn.client.cards_of(turn.summary.context_box_id) if card.metadata.type == "handoff.package"]
    results = [card.content for card in turn.cards() if card.metadata.type == "tool.result"]
    n_read = max(result.get("read", {}).get("total", 0) for result in results)
    return f"package of {handed[0].n_tokens}, {n_read} read by path, {turn.budget().spent.tokens} of {PER_TURN} in {len(turn.calls)} model calls"


if __name__ == "__main__":
    wb = Waybill()
    package, left_out = pack(wb)
    print(f"Packed: {len(package['files'])} files with {package['n_tokens']} of {PACKED} tokens. Left out: {', '.join(left_out)}")
    turns = review(wb, package)
    for turn in turns.values():
        print(f"\n{turn.story()}")
    print("\nThe judge's findings:")
    for finding in Review.model_validate_json(wb.artifacts.text("reviews/judge.json")).findings:
        path = finding.path.removeprefix("change/")
        print(f"  {path}:{finding.line}  {finding.weight}: {finding.text}\n      {source(finding, turns)}")
    print("\nTokens:")
    for name, turn in turns.items():
        print(f"  {name:9} {spent(turn)}")
