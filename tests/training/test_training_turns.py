"""The generated turns with pauses: what needs no speech engine and no vocoder."""

import itertools
from collections import Counter

import numpy as np
import pytest

from training.turns.make import ANCHORS, main, plan_of, scenario_text
from training.turns.plan import PAUSE_LEAST_MS, PAUSE_MOST_MS, planned
from training.turns.sentences import SETS, SetName, sentences
from training.turns.sound import Take, melody, on_the_line, tightened
from training.turns.speakers import RATE, SPEAKERS, Speaker
from turngap.scenario.model import parse_scenario

PLANS = {name: [plan_of(name, i, 15) for i in range(len(sentences(name)))] for name in SETS}


def test_no_sentence_and_no_voice_is_in_both_sets() -> None:
    words = {name: {s.words for s in sentences(name)} for name in SETS}
    assert all(len(words[name]) == len(sentences(name)) >= 300 for name in SETS)
    assert not words["fit"] & words["judge"]
    voices = {name: {speaker.voice for speaker, _ in SPEAKERS[name].voices} for name in SETS}
    assert not voices["fit"] & voices["judge"]


@pytest.mark.parametrize("name", SETS)
def test_a_sentence_has_a_place_for_a_pause_between_any_two_parts(name: SetName) -> None:
    for sentence in sentences(name):
        assert len(sentence.places) == len(sentence.parts) - 1
        assert all(part and part == part.strip() for part in sentence.parts), sentence
        assert not set(sentence.words) & set(",.?=|>#0123456789"), sentence
    lengths = [len(s.words.split()) for s in sentences(name)]
    assert min(lengths) == 1
    assert max(lengths) >= 30


def test_the_judges_set_has_enough_turns_with_pauses_of_each_kind() -> None:
    pausing = [plan for plan in PLANS["judge"] if plan.silences]
    assert len(pausing) >= 240
    kinds = Counter(silence.kind for plan in pausing for silence in plan.silences)
    assert min(kinds.values()) >= 30
    assert kinds["whole"] >= 100


@pytest.mark.parametrize("name", SETS)
def test_silence_alone_gets_as_far_as_on_people(name: SetName) -> None:
    draw = np.random.default_rng(3)
    known = [s for s in sentences(name) if s.places]
    many = [planned(s, name, draw) for s in known * 8]
    assert {len(plan.silences) for plan in many} == {1, 2, 3}
    pauses = [[silence.ms for silence in plan.silences] for plan in many]
    assert all(PAUSE_LEAST_MS <= ms <= PAUSE_MOST_MS for ms in itertools.chain(*pauses))
    for hold_ms, share in ANCHORS.items():
        cut_in = float(np.mean([max(each) > hold_ms for each in pauses]))
        assert abs(cut_in - share) < 0.03


def test_a_turn_is_the_same_whatever_else_is_made_and_another_with_another_seed() -> None:
    assert plan_of("judge", 7, 15) == PLANS["judge"][7]
    assert plan_of("judge", 7, 16) != PLANS["judge"][7]
    again = plan_of("judge", 7 + len(sentences("judge")), 15)
    assert again.speaker != PLANS["judge"][7].speaker


def test_fillers_stand_beside_pauses_and_are_said() -> None:
    with_filler = [p for p in PLANS["judge"] if any(s.filler for s in p.silences)]
    assert 20 < len(with_filler) < 120
    for plan in with_filler:
        for number, silence in enumerate(plan.silences):
            before = plan.stretches[number].text.split()[-1]
            after = plan.stretches[number + 1].text.split()[0]
            if silence.filler:
                assert (before if silence.filler == "before" else after) in ("um", "uh")


def test_the_melody_ends_where_its_tone_says() -> None:
    times, hz = np.arange(100) / 100, np.full(100, 120.0)
    ends: dict[str, float] = {}
    for plan in PLANS["judge"]:
        for stretch in plan.stretches:
            made = melody(times, hz, stretch.ending, Speaker("flite", "slt"), 0.0)
            assert np.allclose(made[:50], 120.0)  # no ending takes longer than 400 ms
            ends[stretch.ending.tone] = float(12 * np.log2(made[-1] / 120))
    assert set(ends) == {"L-L%", "H-L%", "L-H%", "H-H%", "none"}
    assert ends["L-L%"] < 0 < ends["H-H%"]


def test_an_engines_own_pause_is_cut_to_a_closure() -> None:
    tone = 0.1 * np.sin(np.arange(RATE // 2) * 0.2)
    gap = np.zeros(RATE // 4)
    ms = len(tightened(np.concatenate([tone, gap, tone]))) * 1000 / RATE
    assert 1070 <= ms <= 1100


def test_the_line_moves_nothing_and_keeps_its_level() -> None:
    clean = np.zeros(2 * RATE)
    clean[RATE // 2 : RATE] = 0.1 * np.sin(np.arange(RATE // 2) * 2 * np.pi * 700 / RATE)
    scenes = [plan.scene for plan in PLANS["judge"]]
    assert any(scene.telephone for scene in scenes)
    for scene in scenes[:60]:
        pcm = on_the_line(clean, 0.1 / np.sqrt(2), scene, np.random.default_rng(1))
        loud = np.abs(pcm) > 0.5 * np.abs(pcm[RATE // 2 : RATE]).max()
        first, last = np.flatnonzero(loud)[[0, -1]]
        assert abs(first - RATE // 2) < RATE // 100
        assert last < RATE + RATE // 5  # echoes only
        rms = 20 * np.log10(np.sqrt(np.mean((pcm[RATE // 2 : RATE] / 32768.0) ** 2)))
        assert abs(rms - scene.active_dbfs) < 6


def test_a_turn_reads_as_a_scenario_with_its_pauses_and_kinds(tmp_path) -> None:
    plan = next(p for p in PLANS["judge"] if len(p.silences) == 2 and p.scene.telephone)
    take = Take(np.zeros(9, np.int16), (300.0, 4000.1), ((900.0, 1200.5), (2000.0, 2100.0)))
    scenario = parse_scenario(tmp_path / "judge-001.yaml", scenario_text("judge-001", plan, take))
    (turn,) = scenario.turns
    assert (turn.say, scenario.voices) == (plan.say, "synthetic")
    assert [(p.start_ms, p.end_ms) for p in turn.pauses or ()] == list(take.pauses_ms)
    assert {"pause", "telephone"} <= set(scenario.tags)
    quiet = next(p for p in PLANS["judge"] if not p.silences)
    text = scenario_text("judge-002", quiet, Take(take.pcm, take.speech_ms, ()))
    assert parse_scenario(tmp_path / "judge-002.yaml", text).turns[0].pauses == ()


@pytest.mark.parametrize("given", [["--n", "0"], ["--seed", "-1"]])
def test_numbers_that_make_no_set_are_refused(given, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--set", "fit", "--out", str(tmp_path / "new"), *given])
    assert stopped.value.code == 2
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_over(tmp_path, capsys) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        main(["--set", "fit", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_missing_engines_are_named_with_what_installs_them(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="flite, festival, espeak-ng; install them: apt-get"):
        main(["--set", "fit", "--out", str(tmp_path / "new")])
