"""A run for other programs: JUnit XML for a CI server."""

from xml.etree import ElementTree

from made_records import every_outcome, make_run, make_turn

from turngap.report.ci import run_junit
from turngap.store.runs import Run


def cases(run: Run) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(run_junit(run)).iter("testcase"))


def kinds(case: ElementTree.Element) -> list[str]:
    return [f"{child.tag} {child.get('type', '')}".strip() for child in case]


def test_each_turn_is_a_test_that_fails_with_its_outcome() -> None:
    found = cases(make_run([*every_outcome(), make_turn(turn=8, left_out="the label is wrong")]))
    assert [kinds(case) for case in found] == [
        [],
        ["failure late"],
        ["failure no_reply"],
        ["failure cut_in"],
        ["failure abandoned"],
        ["failure error"],
        ["failure error"],
        ["skipped"],
    ]
    assert [case.get("name") for case in found][:2] == [
        "coffee-order, turn 1",
        "coffee-order, turn 2",
    ]
    assert found[0].get("time") == "0.398250"  # its gap, in s
    assert found[2].get("time") is None
    assert found[3].get("time") is None  # no test takes less than no time
    (late,) = found[1]
    assert late.get("message") == "late: 1035 ms, 235 over the budget"


def test_each_test_of_a_run_has_a_name_of_its_own() -> None:
    turns = [make_turn(repeat=repeat, phase_ms=phase) for repeat in (1, 2) for phase in (0.0, 8.0)]
    names = [case.get("name") for case in cases(make_run(turns))]
    assert len(set(names)) == 4


def test_no_turn_of_an_invalid_run_has_a_verdict() -> None:
    run = make_run(every_outcome(), valid=False, why_invalid=("the caller was late",))
    for case in cases(run):
        assert kinds(case) == ["skipped"]
        assert "the caller was late" in str(case[0].get("message"))


def test_the_suite_counts_its_tests_and_says_what_was_measured() -> None:
    root = ElementTree.fromstring(run_junit(make_run(every_outcome())))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "time")} == {
        "tests": "7",
        "failures": "6",
        "skipped": "0",
        "time": "127.750",
    }
    told = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert (told["agent"], told["commit"], told["run"]) == ("embedded", "7ae7a1d", "x")


def test_the_commit_is_that_of_what_was_measured_in_every_export() -> None:
    run = make_run([make_turn()], agent={"stack": "mine", "commit": "0ddba11-dirty"})
    (row,) = run.rows()
    root = ElementTree.fromstring(run_junit(run))
    (told,) = (p.get("value") for p in root.iter("property") if p.get("name") == "commit")
    assert row["commit"] == told == "0ddba11-dirty"
