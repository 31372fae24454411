"""Tests of the team: `pip install waybill-ai[test]`, then `pytest` in this folder. No key and no network is needed."""

import os
import subprocess
import sys

import pytest
import support

from waybill.testing import program


def test_a_person_agrees_and_the_money_is_paid_back(waybill):
    asked = []
    turn = support.answer(waybill, support.MAIL, lambda request: asked.append(request.tool) or request.approve())
    assert asked == ["refund"], "once, because the customer's mail is from outside"
    assert "38 EUR back" in turn.result()
    _, specialist = turn.tree()
    assert (specialist.profile, specialist.status, specialist.tool_calls) == ("refunds", "success", ["refund"])
    support.check(specialist)
    waybill.replay(*turn.tree()).assert_same_bytes()


def test_a_person_does_not_agree_and_nothing_is_paid(waybill):
    asked = []
    turn = support.answer(waybill, support.MAIL, lambda request: asked.append(request) or request.reject())
    assert asked[0].profile == "refunds"
    assert asked[0].arguments == {"order": "1042", "euros": 38, "reason": "broken on arrival"}
    assert "refunded" not in str(turn.story())
    assert "A colleague looks" in turn.result()


def test_the_check_finds_what_should_not_have_been_handed_over(waybill, monkeypatch):
    lines = [{"call": {"ask_expert": {"expert_profile": "refunds", "question": "{{query}}"}}}, {"say": "{{summary}}"}]
    monkeypatch.setattr(support, "first_line", support.first_line.scripted(lines))
    turn = support.answer(waybill, support.MAIL, lambda request: request.reject())
    with pytest.raises(AssertionError, match=r"the model saw .* in message 3 "):
        support.check(turn.tree()[1])


def test_the_commands_of_the_readme(waybill, waybill_server):
    where = {"cwd": waybill_server.folder, "text": True, "stdout": subprocess.PIPE}
    where["env"] = os.environ | {"WAYBILL_API_URL": waybill.config.url, "WAYBILL_PROJECT": waybill.config.project}
    asked = subprocess.run([sys.executable, support.__file__], input="y\n", timeout=60, check=True, **where).stdout
    assert "38 EUR back" in asked
    assert "refund: approved by loopback: The photo shows it." in asked
    assert "Composed again from the record: <Replay: 5 calls, all the same>" in asked

    left = subprocess.Popen([sys.executable, support.__file__, "--inbox"], **where)
    try:
        command = left.stdout.readline().split("terminal: ")[1].split()
        assert command[:2] == ["waybill", "approve"]
        assert command[2] in subprocess.run([program(), "inbox"], check=True, **where).stdout
        subprocess.run([program(), *command[1:]], check=True, **where)
        assert "38 EUR back" in left.communicate(timeout=30)[0]
    finally:
        left.kill()
