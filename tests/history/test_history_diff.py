"""`turngap history diff`: two stored runs judged as a check judges them, or refused."""

from pathlib import Path

import pytest
from commandline import turngap_here
from every_document import every_document
from history_runs import stored
from html_page import Page
from made_records import MARKS_MS, make_record, make_turn

LATER = {"started_utc": "2026-11-22T15:28:03.250+00:00"}


def turns(slower_ms: float = 0.0, n: int = 40, **changes):
    """Turns of as many conversations, whose reply comes later by so much."""
    jitter = (0.0, 4.0, -3.0, 1.0, -2.0)
    found = []
    for i in range(n):
        late = slower_ms + jitter[i % 5]
        marks = {m: at + (late if at > 300 else 0.0) for m, at in MARKS_MS.items()}
        found.append(make_turn(repeat=i + 1, marks_ms=marks, audio=None, **changes))
    return found


@pytest.fixture
def reference(tmp_path) -> Path:
    return stored(tmp_path, turns())


def diff(capsys, *arguments):
    return turngap_here(capsys, "history", "diff", *arguments)


def test_a_slower_run_is_regressed_and_its_stage_is_named(tmp_path, reference, capsys):
    slow = stored(tmp_path, turns(80.0), commit="new", **LATER)
    file = tmp_path / "diff.html"
    done = diff(capsys, reference.name, "latest", "--runs", tmp_path, "--html", file, "--json")
    document = done.document()
    assert (done.code, document["verdict"]) == (1, "regressed")
    assert document["moved_stage"] == "llm_first_token"
    (p50,) = [m for m in document["metrics"] if m["name"] == "gap p50"]
    assert p50["low"] < 80 < p50["high"]
    assert document["candidate_path"] == str(slow)
    shown = Page(file.read_text())
    shown.assert_safe()
    assert "2 days apart" in shown.text
    assert "commit 7ae7a1d new" in shown.text
    assert "hit rate 100 % 100 %" in shown.text
    done = diff(capsys, reference, slow)
    assert "REGRESSED" in done.out
    assert "to decide" not in done.out


def test_the_same_agent_passes(tmp_path, reference, capsys):
    again = stored(tmp_path, turns(1.0, n=60), **LATER)
    done = diff(capsys, reference, again, "--json")
    assert done.document()["verdict"] == "undecided"  # of 40 turns 10 % may be lost unseen
    assert next(m["verdict"] for m in done.document()["metrics"]) == "pass"
    done = diff(capsys, reference, again)
    assert "40 turns that both took; 0 of the reference and 20 of the candidate" in " ".join(
        done.out.split()
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"machine": make_record().machine.model_copy(update={"fingerprint": "other"})},
            "two machines",
        ),
        ({"metrics_version": 1}, "metrics versions"),
        ({"scenario_hashes": {"coffee-order": "changed"}}, "changed in between: coffee-order"),
        ({"starved_ms": 40.0}, "might be 10 ms late, the candidate's 40"),
        ({"failure": "the line was lost"}, "candidate's run ended early: the line was lost"),
        ({"finished_utc": None}, "candidate's run has no end: it was killed, or is being played"),
        ({"planned_turns": 60}, "candidate's run holds 40 of 60 planned turns"),
        ({"valid": False, "why_invalid": ("no replies",)}, "run is not valid: no replies"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(
    tmp_path, reference, capsys, changes, why
):
    other = stored(tmp_path, turns(), **LATER, **changes)
    done = diff(capsys, reference, other, "--json")
    document = done.document()
    assert (done.code, document["verdict"], document["metrics"]) == (3, "cannot_compare", [])
    assert why in "; ".join(document["why"])
    assert "CANNOT COMPARE" in diff(capsys, reference, other).out


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"finished_utc": None}, "the reference's run has no end"),
        ({"planned_turns": 60}, "the reference's run holds 40 of 60 planned turns"),
        ({"valid": False}, "the reference's run is not valid: no reason was stored"),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused_too(tmp_path, reference, capsys, changes, why):
    other = stored(tmp_path / "other", turns(), **LATER, **changes)
    document = diff(capsys, other, reference, "--json").document()
    assert document["verdict"] == "cannot_compare"
    assert why in "; ".join(document["why"])


def test_a_starved_reference_is_refused(tmp_path, reference, capsys):
    # Its turns that have no twin are starved: no pair shows it.
    late = [*turns(), *turns(scenario="pizza-order", starved=True)]
    starved = stored(tmp_path, late, **LATER)
    document = diff(capsys, starved, reference, "--json").document()
    assert document["verdict"] == "cannot_compare"
    assert "in the reference's run, the caller was starved in 40 of 80" in document["why"][0]


def test_another_budget_moves_no_hit_rate(tmp_path, reference, capsys):
    tight = stored(tmp_path, turns(budget_ms=300.0), budget_ms=300.0, **LATER)
    for one, other, ms in ((reference, tight, "800"), (tight, reference, "300")):
        document = diff(capsys, one, other, "--json").document()
        (hits,) = [m for m in document["metrics"] if m["name"] == "hit rate"]
        assert (hits["difference"], document["rejudged"]) == (0, 40)
        text = " ".join(diff(capsys, one, other).out.split())
        assert f"40 turns of the reference were played under another budget ({ms} ms)" in text


def test_a_diff_took_no_longer_than_its_judging(tmp_path, reference, capsys):
    again = stored(tmp_path, turns(), **LATER)
    document = diff(capsys, reference, again, "--json").document()
    assert document["started_utc"] == document["finished_utc"]
    assert document["started_utc"] != LATER["started_utc"]


def test_runs_without_a_turn_in_common_are_refused(tmp_path, reference, capsys):
    other = stored(tmp_path, turns(scenario="pizza-order"), **LATER)
    done = diff(capsys, reference, other, "--json")
    assert (done.code, done.document()["verdict"]) == (3, "cannot_compare")
    assert "the runs share no turn" in done.document()["why"][0]


def test_what_is_no_run_is_bad_input_and_says_what_to_give(tmp_path, reference, capsys):
    check = every_document(tmp_path / "all")["check"]
    done = diff(capsys, reference, check)
    assert done.code == 2
    assert "is not a single run: it holds" in done.err
    assert diff(capsys, reference, tmp_path / "gone").code == 2
    done = diff(capsys, reference, reference)
    assert (done.code, "the same run" in done.err) == (2, True)


def test_without_two_runs_it_says_which_two_may_be_compared(tmp_path, reference, capsys):
    done = diff(capsys, "--runs", tmp_path)
    assert (done.code, "there are no two such runs" in done.err) == (2, True)
    newer = stored(tmp_path, turns(), **LATER)
    for given, said in (((), "none was given"), ((reference.name,), f"only {reference.name} was")):
        done = diff(capsys, *given, "--runs", tmp_path)
        assert done.code == 2
        assert f"expected two runs to compare, the older one first; {said}" in done.err
        command = f"turngap history diff {reference} {newer}\n"
        assert f"the two latest that can be compared: {command}" in done.err
    assert diff(capsys, reference, newer).code != 2
