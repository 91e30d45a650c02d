"""`turngap turns` on the command line, against scripted agents in virtual time."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
from commandline import Finished, turngap_here
from virtual_agents import VirtualAgents

from turngap.store.comparisons import TurnsRecord
from turngap.testing.agent import Reply, Script

Capsys = pytest.CaptureFixture[str]

RATE = 16_000
SPEECH = """\
name: {name}
turns:
  - say: one, and two
    audio: {name}/1.wav
    speech: {{start_ms: 200, end_ms: {end}}}
{pauses}"""


def tone(ms: float) -> np.ndarray:
    t = np.arange(round(ms * RATE / 1000)) / RATE
    return np.rint(8000 * np.cos(2 * np.pi * 220 * t)).astype(np.int16)


def quiet(ms: float) -> np.ndarray:
    return np.zeros(round(ms * RATE / 1000), np.int16)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Nine turns of two tones each, 900 ms long, with pauses of 0 to 1600 ms between them."""
    folder = tmp_path / "mine"
    for number in range(9):
        name, pause_ms = f"turn-{number}", 200 * number
        (folder / name).mkdir(parents=True)
        sound = [quiet(200), tone(900), quiet(pause_ms), tone(900), quiet(200)]
        soundfile.write(folder / name / "1.wav", np.concatenate(sound), RATE)
        pause = f"[{{start_ms: 1100, end_ms: {1100 + pause_ms}}}]" if pause_ms else "[]"
        text = SPEECH.format(name=name, end=2000 + pause_ms, pauses=f"    pauses: {pause}\n")
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def hasty(virtual_agents: VirtualAgents) -> str:
    """An agent that takes 900 ms of silence for the turn's end, and answers 20 ms later."""
    return virtual_agents.url_of(Script((Reply(delay_ms=920),), hold_ms=900))


def run(capsys: Capsys, tmp_path: Path, *arguments: str | Path) -> Finished:
    return turngap_here(capsys, *arguments, "--out", tmp_path / "runs")


def measured(capsys: Capsys, tmp_path: Path, *arguments: str | Path) -> TurnsRecord:
    done = run(capsys, tmp_path, "turns", *arguments, "--json")
    assert done.code == 0, done.err
    document = done.document()
    assert document.pop("valid") is True
    assert Path(document.pop("path"), "report.html").is_file()
    return TurnsRecord.model_validate(document)


def test_an_agent_that_cannot_be_varied_has_a_point_and_what_waiting_would_do(
    hasty: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    asked = (library, "--agent", hasty, "--label", "hasty")
    record = measured(capsys, tmp_path, *asked)
    assert record.label == "hasty"
    (point,) = record.points
    # Pauses of 1000, 1200, 1400 and 1600 ms are longer than its hold.
    assert (point.heard.hits, point.heard.n, point.gap_n) == (4, 9, 5)
    assert point.decided is not None
    assert (point.decided.hits, point.decided.n) == (4, 9)
    drawn = {row.from_ms: (row.heard.hits, row.heard.n) for row in point.pauses}
    assert drawn == {0: (0, 0), 200: (0, 1), 400: (0, 2), 800: (3, 4), 1600: (1, 1)}
    assert point.gap_ms.value == pytest.approx(920, abs=1)
    assert record.measured.points[0].cut_ins == pytest.approx(4 / 9)
    # It decided 900 ms into a pause of 1600: after 700 ms more of waiting no cut-in is left.
    assert record.waiting.gap_at_share_ms.value == pytest.approx(1620, abs=30)
    # Silence alone: 8 of 9 turns hold a pause, of 200 ms or more.
    assert record.silence.points[0].cut_ins == pytest.approx(8 / 9)
    assert record.silence.gap_at_share_ms.value == pytest.approx(1605, abs=5)
    assert record.silence.cut_ins_at_gap.value == pytest.approx(7 / 9)


def test_the_report_says_where_the_agent_lies_and_where_it_cut_in(
    hasty: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    done = run(capsys, tmp_path, "turns", library, "--agent", hasty)
    assert done.code == 0, done.err
    for said in (
        "gap at 5 % cut-ins",
        "silence alone",
        "the agent, had it waited longer",
        "4 of 9, 44 %",
        "into a pause of 1000 ms",
        "labelled in all 9 recorded turns",
    ):
        assert said in done.out, said
    (folder,) = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<audio") == 4
    assert "eot-bench" in page
    again = turngap_here(capsys, "report", folder)
    assert again.out == done.out


def test_recordings_without_labels_say_what_to_do(
    hasty: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    for file in library.glob("*.yaml"):
        text = file.read_text(encoding="utf-8").partition("    pauses:")[0]
        file.write_text(text, encoding="utf-8")
    done = run(capsys, tmp_path, "turns", library, "--agent", hasty)
    assert done.code == 0
    assert "no recording has labelled pauses" in done.out
    assert "labelled in 0 of 9" in done.out


def test_a_replay_says_which_pause_a_cut_in_fell_into(
    hasty: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    arguments = (library / "turn-6.yaml", "--agent", hasty, "--calibration", "0")
    done = run(capsys, tmp_path, "replay", *arguments)
    assert "into a pause of 1200 ms" in done.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["turns", "--vary", "turn.hold_ms"], "expected TABLE.KEY=V1,V2"),
        (["turns", "--vary", "turn.hold_ms=100"], "expected 2 to 8"),
        (["turns", "--vary", "turn.hold_ms=1,2,3,4,5,6,7,8,9"], "expected 2 to 8"),
        (["turns", "--vary", "hold=1,2"], "expected TABLE.KEY=V1,V2"),
        (["turns", "--vary", "turn.nonsense=1,2"], "allowed:"),
        (["turns", "--vary", "turn.hold_ms=soon,later"], "turn backend 'adaptive'"),
        (
            ["turns", "--vary", "turn.hold_ms=0,100", "--agent", "ws://127.0.0.1:9/"],
            "running agent",
        ),
        (["turns", "--agent", "nobody"], "known: embedded"),
        (["turns", "--virtual", "--agent", "ws://127.0.0.1:9/"], "keeps virtual time"),
        (["turns", "--rounds", "0"], "--rounds"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_starts(
    arguments: list[str], says: str, capsys: Capsys
) -> None:
    done = turngap_here(capsys, *arguments)
    assert done.code == 2, done.err
    assert says in done.err


def test_a_built_in_agent_is_varied_in_virtual_time(
    library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    pytest.importorskip("pocketsphinx")
    pytest.importorskip("espeakng_loader")
    arguments = (library / "turn-1.yaml", library / "turn-8.yaml", "--virtual")
    record = measured(capsys, tmp_path, *arguments, "--vary", "turn.stop_secs=0.2,2.0",
                      "--agent", "stock")  # fmt: skip
    assert record.virtual
    assert record.setting == "turn.stop_secs"
    assert [point.value for point in record.points] == ["0.2", "2.0"]
    assert all(point.turns == 2 for point in record.points)
    again = turngap_here(capsys, "report", next((tmp_path / "runs").iterdir()))
    assert "lower bounds" in again.out


def test_an_agent_that_fails_ends_it_with_4_and_what_was_played_is_kept(
    virtual_agents: VirtualAgents, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    dying = virtual_agents.url_of(Script((Reply(action="garbage"),)))
    done = run(capsys, tmp_path, "turns", library, "--agent", dying)
    assert done.code == 4
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "turns.json").is_file()


def test_a_stored_curve_leads_to_no_other_folder(
    hasty: str, library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    measured(capsys, tmp_path, library / "turn-1.yaml", "--agent", hasty)
    (folder,) = (tmp_path / "runs").iterdir()
    stored = (folder / "turns.json").read_text(encoding="utf-8")
    record = TurnsRecord.model_validate_json(stored)
    away = stored.replace(f'"run": "{record.points[0].run}"', '"run": "../elsewhere"')
    (folder / "turns.json").write_text(away, encoding="utf-8")
    done = turngap_here(capsys, "report", folder)
    assert done.code == 2
