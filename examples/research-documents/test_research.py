"""Tests of the team: `pip install waybill-ai[test]`, then `pytest` in this folder. No key and no network is needed."""

import os
import subprocess
import sys

import pytest
import research


def test_the_editor_gets_the_findings_and_a_slow_agent_holds_nobody_up(waybill):
    turn = research.research(waybill, research.QUESTIONS)
    report, (*found, late) = turn.result(), turn.tree()[1:]
    assert [finding.profile for finding in found] == ["researcher"] * 3
    assert late.profile == "archivist"
    places = [research.place(finding) for finding in found]
    assert places == ["documents/timeline.md:5-6", "documents/services/payments.md:10-11", "documents/follow-up.md:5-6"]
    turn.calls[-1].context().assert_saw(*(finding.result() for finding in found), "did not answer in time")
    assert all(text in report for text in ("began at 09:12", "a slow bank", "five seconds", "did not answer in time"))

    done = {finding.id: finding.refresh().summary.finished_at for finding in [*found, late]}
    assert max(done[finding.id] for finding in found) < done[late.id], "they did not wait for the slow one"
    assert (turn.summary.finished_at - turn.summary.created_at).total_seconds() < 30, "the archive takes 60 seconds"

    budget = turn.budget()
    assert [child.given.tokens < research.BUDGET["tokens"] / 4 for child in budget.children] == [True] * 4
    assert budget.returned.tokens == budget.lent.tokens - sum(child.spent.tokens for child in budget.children)
    waybill.replay(*turn.tree()).assert_same_bytes()


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        ("The outage never ended. (documents/timeline.md v1, lines 5–6)", r"timeline\.md does not say in its lines 5 to 6: The outage never ended"),
        ("The outage never ended (timeline.md, line 5).", r"names no place: The outage never ended"),
    ],
)
def test_a_place_that_does_not_say_so_is_found(waybill, monkeypatch, claim, wrong):
    claims = [{"say": claim}]
    monkeypatch.setattr(research, "researcher", research.researcher.scripted(claims))
    _, finding, *_ = research.research(waybill, research.QUESTIONS).tree()
    with pytest.raises(AssertionError, match=wrong):
        research.place(finding)


def test_the_command_of_the_readme(waybill):
    environment = os.environ | {"WAYBILL_API_URL": waybill.config.url, "WAYBILL_PROJECT": waybill.config.project}
    command = [sys.executable, research.__file__, "Who noticed the outage first?", "Who won the chess game?"]
    said = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60, check=True).stdout
    assert "  documents/timeline.md:10-11\n  none: The documents say nothing about this.\n" in said
    assert "Tokens: 30000 for all" in said
    assert said.count("gave the rest back") == 3
