"""The picture of a recording's labels shows them where they are, whatever the file is called."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile

from helpers.commandline import turngap_here
from helpers.made_speech import RATE, spoken
from turngap.core.audio import Pcm
from turngap.core.cue import Pause, SpeechBounds
from turngap.scenario.label import LEFT, RIGHT, WIDTH, picture
from turngap.scenario.library import Clip
from turngap.scenario.speech import FoundSpeech, Warned, find_speech

SVG = "{http://www.w3.org/2000/svg}"


def drawn(
    pcm: Pcm, found: FoundSpeech, name: str = "a.wav", rate: int = RATE
) -> ElementTree.Element:
    return ElementTree.fromstring(picture(name, Clip(pcm, rate, None), found))


def classed(tree: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [e for e in tree.iter() if e.get("class") == name]


def test_bounds_errors_and_pauses_lie_where_they_are_in_time() -> None:
    pcm = np.zeros(RATE, dtype=np.int16)
    bounds = SpeechBounds(start_ms=250, end_ms=750, start_error_ms=50, end_error_ms=100)
    tree = drawn(pcm, FoundSpeech(bounds, (Pause(start_ms=400, end_ms=600),), (), 20.0))
    a_second = WIDTH - LEFT - RIGHT
    for side, at in (("start", 0.25), ("end", 0.75)):
        (line,) = classed(tree, f"bound {side}")
        assert float(line.attrib["x1"]) == pytest.approx(LEFT + at * a_second, abs=0.1)
    (error,) = classed(tree, "error end")
    assert float(error.attrib["width"]) == pytest.approx(0.2 * a_second, abs=0.2)
    (pause,) = classed(tree, "pause")
    assert float(pause.attrib["x"]) == pytest.approx(LEFT + 0.4 * a_second, abs=0.1)
    assert float(pause.attrib["width"]) == pytest.approx(0.2 * a_second, abs=0.2)


def test_a_hostile_name_is_text_and_warnings_are_shown() -> None:
    pcm = spoken().pcm
    found = find_speech(pcm, RATE)
    assert found is not None
    warned = FoundSpeech(found.bounds, (), (Warned("edge", "cut <off>"),), found.snr_db)
    tree = drawn(pcm, warned, 'a"<script>.wav')
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert 'a"<script>.wav' in texts
    assert "check: cut <off>" in texts
    assert not list(tree.iter(f"{SVG}script"))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    (tmp_path / "talk").mkdir()
    soundfile.write(tmp_path / "talk/1.wav", spoken().pcm, RATE)
    path = tmp_path / "talk.yaml"
    path.write_text("name: talk\nturns:\n  - {say: a, audio: talk/1.wav}\n", encoding="utf-8")
    return path


def test_label_warns_and_draws_on_request(
    talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = spoken()
    cut = said.pcm[: round((said.end_ms - 60) * RATE / 1000)]
    soundfile.write(talk.parent / "talk/1.wav", cut, RATE)

    done = turngap_here(capsys, "label", talk, "--show", tmp_path / "out")

    assert done.code == 0
    assert "warning: talk/1.wav: the speech ends at the file's edge" in done.err
    assert (tmp_path / "out/talk-1.svg").read_text(encoding="utf-8").startswith("<svg")

    again = turngap_here(capsys, "label", talk, "--json")
    (label,) = again.document()
    assert (label["audio"], label["changed"], label["pauses"]) == ("talk/1.wav", False, [])
    assert "edge" in [warning["kind"] for warning in label["warnings"]]
    assert label["after"]["end_error_ms"] >= 30
