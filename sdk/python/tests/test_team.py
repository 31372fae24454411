"""What a user writes first, from the beginning to the end."""

from __future__ import annotations

import team


def test_reporter(waybill):
    waybill.apply(team.reporter.scripted([{"call": {"weather": {"city": "Lyon"}}}, {"say": "{{result}}"}]))
    with waybill.worker([team.weather, team.send_mail]):
        turn = waybill.run("reporter", "Lyon?").wait(timeout=20)
    assert turn.status == "success", turn.deliverable
    assert turn.tool_calls == ["weather"]
    turn.calls[-1].context().assert_saw("21.5").assert_within(tokens=4_000)
    waybill.replay(turn).assert_same_bytes()


def test_the_whole_team(waybill, capsys):
    applied = waybill.apply(team.reporter.scripted(team.SCRIPT))
    assert [one.change for one in applied] == ["created"] * 3
    assert [one.change for one in waybill.apply(team.reporter.scripted(team.SCRIPT))] == ["unchanged"] * 3
    team.SENT.clear()
    with waybill.worker([team.weather, team.send_mail]):
        team.ask(waybill)
    said = capsys.readouterr().out
    assert "21.5 0" in said
    assert "success" in said
    assert len(team.SENT) == 1
