"""Tests of the review: `pip install waybill-ai[test]`, then `pytest` in this folder. No key and no network is needed."""

import os
import subprocess
import sys

import pytest
import review

from waybill import errors
from waybill.testing import program


def test_the_reviews_go_to_the_judge_and_no_content_goes_along(waybill):
    package, left_out = review.pack(waybill)
    assert [file["path"] for file in package["files"]] == [f"change/shop/{name}.py" for name in ("cart", "login", "mail")]
    assert package["n_tokens"] <= review.PACKED
    assert left_out[0].startswith("change/data/prices.csv (")
    turns = review.review(waybill, package)

    verdict = review.Review.model_validate_json(waybill.artifacts.text("reviews/judge.json"))
    assert verdict.findings == [review.sql, review.md5, review.default, review.bare]
    assert review.source(review.default, turns) == "def add(item, cart=[]):"
    starts = {name: turn.calls[0].context() for name, turn in turns.items()}
    starts["security"].assert_saw("change/shop/login.py").assert_did_not_see("execute(", "prices.csv")
    starts["judge"].assert_saw("reviews/security.json", "reviews/style.json").assert_did_not_see(review.sql.text, "change/")
    turns["judge"].calls[-1].context().assert_saw(review.sql.text, review.loop.text).assert_did_not_see("import hashlib")
    assert all(turn.budget().spent.tokens < review.PER_TURN for turn in turns.values())
    waybill.replay(*turns.values()).assert_same_bytes()


def test_a_finding_about_a_line_that_no_reviewer_saw_is_found(waybill):
    turns = review.review(waybill, review.pack(waybill)[0])
    with pytest.raises(AssertionError, match=r"no reviewer saw change/data/prices\.csv:2"):
        review.source(review.Finding(path="change/data/prices.csv", line=2, weight="must", text="too dear"), turns)
    path = next(one for one in review.REPOSITORY.rglob("*.py") if "" in one.read_text().splitlines())
    line = path.read_text().splitlines().index("") + 1
    empty = review.Finding(path=f"change/{path.relative_to(review.REPOSITORY)}", line=line, weight="must", text="?")
    with pytest.raises(AssertionError, match="is empty"):
        review.source(empty, turns)


def test_a_review_that_is_not_valid_does_not_get_to_the_judge(waybill, monkeypatch):
    wrong = {"call": {"write_artifact": {"path": "reviews/style.json", "content": '{"findings": "none"}'}}}
    monkeypatch.setattr(review, "style", review.style.scripted([wrong, {"say": "It is stored."}]))
    with pytest.raises(errors.InvalidPackage, match=r"style\.json.*findings"):
        review.review(waybill, review.pack(waybill)[0])
    assert [turn.profile_name for turn in waybill.turns(profile="judge")] == []


def test_the_commands_of_the_readme(waybill, waybill_server):
    where = {"cwd": waybill_server.folder, "text": True, "stdout": subprocess.PIPE, "timeout": 60, "check": True}
    where["env"] = os.environ | {"WAYBILL_API_URL": waybill.config.url, "WAYBILL_PROJECT": waybill.config.project}
    said = subprocess.run([sys.executable, review.__file__], **where).stdout
    assert "  shop/login.py:7  must: a name with a quote" in said
    assert "of 12000 in 5 model calls" in said
    assert "change/data/prices.csv" in subprocess.run([program(), "artifact", "list"], **where).stdout
    stored = subprocess.run([program(), "artifact", "get", "reviews/judge.json", "-"], **where).stdout
    assert len(review.Review.model_validate_json(stored).findings) == 4
