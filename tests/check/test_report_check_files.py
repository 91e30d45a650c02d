import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commandline import turngap_here
from hypothesis import given
from hypothesis import strategies as st
from made_checks import (
    budgets_only_check,
    every_check,
    incomparable_check,
    make_budget,
    make_check,
    make_metric,
    make_side,
    make_stages,
    make_turns,
    regressed_check,
    store,
    undecided_check,
)
from made_records import make_run, make_turn, scaled

from turngap.check.report import check_report, check_text, junit, read_check, write_reports
from turngap.core.errors import InputError
from turngap.report import ci as writer
from turngap.report.ci import escaped
from turngap.store.checks import CHECK_FILE, CheckRecord
from turngap.store.documents import find_folder, write_document


def markdown(record: CheckRecord) -> str:
    return writer.markdown(check_report(record))


def stored(folder: Path, record: CheckRecord, turns: int = 6) -> CheckRecord:
    """`record` with its runs in `folder`, as `turngap check` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    candidate = store(folder, "candidate", make_turns(turns, slower_ms=41))
    update = {"candidate": make_side(candidate.path.name, turns=turns)}
    if record.reference is not None and record.reference.run is not None:
        reference = store(folder, "reference", make_turns(turns))
        update["reference"] = make_side(reference.path.name, turns=turns)
    record = record.model_copy(update=update)
    write_document(folder / CHECK_FILE, record)
    return record


def cases(record: CheckRecord) -> list[ElementTree.Element]:
    return suite_of(record).findall("testcase")


def suite_of(record: CheckRecord) -> ElementTree.Element:
    suite = ElementTree.fromstring(junit(record, check_text(record))).find("testsuite")
    assert suite is not None
    return suite


@pytest.mark.parametrize("record", every_check())
def test_junit_counts_what_it_holds(record):
    suite = suite_of(record)
    found = suite.findall("testcase")
    assert int(suite.get("tests", "")) == len(found) > 0
    assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
    assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
    assert (suite.findtext("system-out") or "").startswith(check_text(record).splitlines()[0])
    assert float(suite.get("time", "")) == pytest.approx(191.25)


def test_junit_never_passes_what_was_not_decided():
    for record in (undecided_check(), incomparable_check()):
        skipped = [case.find("skipped") for case in cases(record)]
        assert all(s is not None and s.get("message") for s in skipped)
    (first, *_) = cases(incomparable_check())
    skipped = first.find("skipped")
    assert skipped is not None
    assert "another machine" in skipped.get("message", "")
    empty = incomparable_check(metrics=(), budgets=())
    assert [case.get("name") for case in cases(empty)] == ["comparison"]
    nothing = make_check(metrics=(), stages=(), budgets=(), reference=None)
    assert [case.find("skipped") is not None for case in cases(nothing)] == [True]


@given(st.text())
def test_junit_is_xml_whatever_the_texts_hold(text):
    hostile = text + "\x00\x08\x1b]]>\ufffe\ud800<&\"'"
    record = regressed_check(
        why=(hostile,),
        started_utc=hostile,
        candidate=make_side(agent={"stack": hostile}),
        metrics=(make_metric(hostile, verdict="regressed", why=hostile),),
        budgets=(make_budget(name=hostile, verdict="undecided"),),
        moved_stage=hostile,
    )
    root = ElementTree.fromstring(junit(record, check_text(record) + hostile))
    assert len(root.findall("testsuite/testcase")) == 2


def test_a_turn_with_a_starved_caller_is_no_worst_pair_where_there_is_another(tmp_path):
    def run(by, starved):
        return make_run([make_turn(turn=n, marks_ms=scaled(by), starved=n in starved)
                         for n in (1, 2)])  # fmt: skip

    for starved, shown in (({1}, ["2"]), ({1, 2}, ["1", "2"])):
        write_reports(regressed_check(), tmp_path, run(1.5, starved), run(1.0, set()))
        text = (tmp_path / "summary.md").read_text(encoding="utf-8")
        assert re.findall(r"<summary>coffee-order, turn (\d)", text) == shown


def test_a_reply_cannot_end_the_block_that_shows_it(tmp_path):
    hostile = "```\n<script>x</script>\n</details> @team"
    turns = [[make_turn(turn=n, marks_ms=scaled(by), scenario=hostile, transcript=hostile,
                        reply=hostile) for n in (1, 2)] for by in (1.5, 1.0)]  # fmt: skip
    write_reports(regressed_check(), tmp_path, make_run(turns[0]), make_run(turns[1]))
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    outside = re.sub(r"^```(?:text|sh)\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert text.count("```text\n") == 2
    assert "script>x" not in outside
    assert "@" not in outside
    assert text.count("```") == 4


@pytest.mark.parametrize(
    "attack",
    ["<script>", "a | b", "`x`", "[x](y)", "@team", "https://x.example", "**x**", "&lt;", "a\nb"],
)
def test_markdown_takes_nothing_for_markup(attack):
    plain = re.sub(r"\\.", "", escaped(attack))
    assert not re.search(r"[<>|`*\[\]@\n]|://", plain)
    agent = {"stack": f"x```\n{attack}", "k": attack}
    text = markdown(
        make_check(command=f"x```\n{attack}", candidate=make_side(agent=agent), why=(attack,))
    )
    assert text.count("```") == 2


def _arguments(folder: Path, record: CheckRecord):
    _, candidate, reference = read_check(folder)
    return record, folder, candidate, reference


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    record = stored(tmp_path, make_check())
    _, _, candidate, reference = _arguments(tmp_path, record)
    with pytest.raises(InputError, match="cannot write"):
        write_reports(record, tmp_path / "gone", candidate, reference)


@pytest.mark.parametrize("record", [make_check(), budgets_only_check(), incomparable_check()])
def test_a_check_is_read_as_it_was_stored(tmp_path, record):
    record = stored(tmp_path, record)
    again, candidate, reference = read_check(tmp_path)
    assert again == record
    assert len(candidate.turns) == 6
    assert (reference is None) == (record.reference is None or record.reference.run is None)


def test_a_check_that_failed_before_its_first_turn_can_be_read(tmp_path):
    record = stored(tmp_path, incomparable_check(), turns=0)
    write_reports(*_arguments(tmp_path, record))
    assert read_check(tmp_path)[1].turns == ()


@pytest.mark.parametrize("left", [0, 1, 40, 400, -2])
def test_a_check_that_was_cut_short_is_bad_input(tmp_path, left):
    stored(tmp_path, make_check())
    file = tmp_path / CHECK_FILE
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(InputError, match="not JSON") as raised:
        read_check(tmp_path)
    assert raised.value.kind == "document.damaged"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "maybe"}, "verdict"),
        ({"surprise": 1}, "surprise"),
        ({"schema_version": 99}, "schema version 99"),
        ({"schema_version": None}, "schema_version is None"),
        ({"candidate": make_side(None, turns=0).model_dump()}, "no run"),
    ],
)
def test_a_check_of_another_kind_is_bad_input(tmp_path, change, says):
    stored(tmp_path, make_check())
    file = tmp_path / CHECK_FILE
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | change))
    with pytest.raises(InputError, match=says):
        read_check(tmp_path)


@pytest.mark.parametrize("document", ["[]", "3", '"x"', "null"])
def test_json_that_is_no_object_is_bad_input(tmp_path, document):
    (tmp_path / CHECK_FILE).write_text(document)
    with pytest.raises(InputError, match="expected one JSON object"):
        read_check(tmp_path)


@pytest.mark.parametrize("run", ["../outside", "/etc", "..", ".", "", "a/b"])
def test_a_check_cannot_lead_out_of_its_folder(tmp_path, run):
    record = stored(tmp_path / "check", make_check())
    store(tmp_path, "outside", make_turns(3))
    evil = record.model_copy(update={"candidate": make_side(run)})
    (tmp_path / "check" / CHECK_FILE).write_text(evil.model_dump_json())
    with pytest.raises(InputError, match="not a folder next to it"):
        read_check(tmp_path / "check")


def test_a_run_that_is_gone_is_named(tmp_path):
    record = make_check(candidate=make_side("gone"), reference=None)
    (tmp_path / CHECK_FILE).write_text(record.model_dump_json())
    with pytest.raises(InputError, match="gone"):
        read_check(tmp_path)


def test_a_check_is_found_by_folder_file_and_name(tmp_path):
    stored(tmp_path / "c", make_check())
    for name in (str(tmp_path / "c"), str(tmp_path / "c" / CHECK_FILE), "c"):
        assert find_folder(name, CHECK_FILE, tmp_path) == tmp_path / "c"
    assert find_folder("other", CHECK_FILE, tmp_path) is None
    assert find_folder(str(tmp_path), CHECK_FILE, tmp_path) is None


def test_report_prints_a_stored_check_again(tmp_path, capsys):
    record = stored(tmp_path, regressed_check(stages=make_stages("sent"), moved_stage="sent"))
    done = turngap_here(capsys, "report", tmp_path)
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("✗ REGRESSED")
    assert not (tmp_path / "check.html").exists()
    assert turngap_here(capsys, "report", tmp_path, "--json").document() == {
        **record.model_dump(mode="json"),
        "path": str(tmp_path),
    }
    svg = tmp_path / "check.svg"
    written = turngap_here(capsys, "report", tmp_path / CHECK_FILE, "--html", "--svg", svg)
    assert "check.html" in written.err
    for file in (svg, *(tmp_path / name for name in ("check.html", "summary.md", "junit.xml"))):
        assert file.stat().st_size
