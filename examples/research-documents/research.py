"""A research team over a folder of documents: researchers side by side, and an editor who gets their findings. The README says how to run it."""

import os
import re
import sys
import time
from pathlib import Path

from waybill import Profile, Turn, Waybill, tool

MODEL = os.environ.get("MODEL")
DOCUMENTS = Path(__file__).parent / "documents"
QUESTIONS = ["When did the outage of the checkout begin and end?", "What was the cause of the outage?", "Which remedy does the payment service get?"]
NOTHING = "The documents say nothing about this."
BUDGET = {"tokens": 30_000, "steps": 40, "seconds": 120}  # of the editor and all whom it asks


@tool(effect="pure", timeout=2)
def ask_archive(question: str) -> str:
    """Asks the paper archive, which may take days."""
    time.sleep(60)
    return "found in box 7"


researcher = Profile(
    "researcher",
    model=MODEL or "demo/demo",
    internal_tools=["search_knowledge"],
    description="Answers one question from the documents.",
    prompt="You answer one question. Search, answer with a sentence as it stands in a document, and name the place: (PATH vVERSION, lines FROM–TO). "
    f"If you find nothing, answer: {NOTHING}",
    more={"knowledge": {"folders": ["documents"]}},
)
archivist = Profile(
    "archivist",
    model=MODEL or "demo/demo",
    tools=[ask_archive],
    description="Asks the paper archive. Slow.",
    prompt="You ask the paper archive. If it does not answer, say so in one sentence.",
)
editor = Profile(
    "editor",
    model=MODEL or "demo/demo",
    internal_tools=["fork_join"],
    delegates_to=["researcher", "archivist"],
    prompt="You are asked several questions. Give each to a `researcher` and all of them to the `archivist`, with one call of fork_join. "
    "Then write the report: one line for each finding, each with its place.",
)
if not MODEL:  # without a model, all three follow a script; the editor's depends on the questions
    said = {"needs": "found", "say": "Archive: {{result}}", "or": {"say": "The archive did not answer in time."}}
    researcher = researcher.scripted([{"call": {"search_knowledge": {"question": "{{query}}"}}}, {"say": "{{found}}"}])
    archivist = archivist.scripted([{"call": {"ask_archive": {"question": "{{query}}"}}}, said])


def split(questions: list[str]) -> list[dict]:
    tasks = [{"target_ref": "researcher", "instruction": question} for question in questions]
    tasks.append({"target_ref": "archivist", "instruction": " ".join(questions)})
    return [{"say": "All at once.", "call": {"fork_join": {"tasks": tasks}}}, {"say": "{{summary}}"}]


def research(wb: Waybill, questions: list[str]) -> Turn:
    for file in DOCUMENTS.rglob("*.md"):  # the same again changes nothing
        wb.knowledge.put(f"documents/{file.relative_to(DOCUMENTS)}", file.read_text(), external=False)
    wb.apply(researcher, archivist, editor if MODEL else editor.scripted(split(questions)))
    with wb.worker([ask_archive]):
        return wb.run(editor, "\n".join(questions), limits=BUDGET).wait(progress=True)


def place(finding: Turn) -> str:
    """Returns the place that a finding names. Fails unless the document says so there, and the model saw it, or nothing was found."""
    if finding.result() == NOTHING:
        return f"none: {NOTHING}"
    named = re.fullmatch(r"(.*) \(documents/(\S+) v\d+, lines (\d+)–(\d+)\)", finding.result(), re.DOTALL)
    assert named, f"a finding names no place: {finding.result()}"
    text, path, first, last = named.groups()
    lines = (DOCUMENTS / path).read_text().splitlines()[int(first) - 1 : int(last)]
    assert text in " ".join(lines), f"{path} does not say in its lines {first} to {last}: {text}"
    finding.calls[-1].context().assert_saw(*lines)
    return f"documents/{path}:{first}-{last}"


if __name__ == "__main__":
    turn = research(Waybill(), sys.argv[1:] or QUESTIONS)
    print(f"{turn.story()}\n\nThe report:\n{turn.result()}\n\nPlaces, compared with the documents and with what the models saw:")
    below = turn.tree()[1:]
    for finding in below:
        if finding.profile == "researcher":
            print(f"  {place(finding)}")
    budget = turn.budget()
    print(f"\nTokens: {BUDGET['tokens']} for all; the editor used {budget.spent.tokens}.")
    for one, child in zip(below, budget.children, strict=True):
        print(f"  {one.profile:10} was given {child.given.tokens}, used {child.spent.tokens}, and gave the rest back")
