"""Whole agents in virtual time, asked for what their recogniser does not know."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

pytest.importorskip("pocketsphinx")
pytest.importorskip("espeakng_loader")

import numpy as np

from training.unknown.takes import sentences
from training.whisper.speech import Voice, speak
from turngap.agent.stack import load_stack, override
from turngap.core.counts import OUT_OF_DOMAIN, OUTSIDE
from turngap.core.cue import SpeechBounds
from turngap.core.results import Turn
from turngap.play import virtual
from turngap.report.turn_words import notes_of
from turngap.scenario.library import Clip, LoadedScenario, domain_of, load_scenarios
from turngap.scenario.model import UserTurn, library_dir, scenario_paths

RATE = 16_000
LEAD = RATE // 5
ASKED = "tell me something interesting about whales"
# Of every fourth sentence, said by voices that neither the library nor the fit has. No domain
# answer at all is wanted, and this number may only go down.
LEAST_OFFERS, DOMAIN_ANSWERS_OF_TODAY = 11, 2
VOICES = tuple(f"en-us+{name}" for name in ("Annie", "m7", "michel", "klatt4", "linda", "Mike"))


def take(spoken: np.ndarray, seed: int) -> tuple[np.ndarray, SpeechBounds]:
    """Speech on a line that is never quite silent."""
    noise = np.random.default_rng(seed).normal(0, 10, len(spoken) + 2 * LEAD)
    noise[LEAD : LEAD + len(spoken)] += spoken
    bounds = SpeechBounds(start_ms=200, end_ms=200 + len(spoken) * 1000 / RATE)
    return np.rint(noise).astype(np.int16), bounds


def spoken_afresh(texts: Sequence[str]) -> list[np.ndarray]:
    """The texts in the other voices, by turns, from a process of its own.

    espeak-ng goes on from where it was: after other sentences the same one sounds different.
    """
    voices = [Voice("espeak-ng", VOICES[n % len(VOICES)]) for n in range(len(texts))]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(speak, voices, texts, [1.0] * len(texts)))


@pytest.fixture(scope="module")
def conversation() -> LoadedScenario:
    """The library's first questions, with another between them."""
    (loaded,) = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    pcm, bounds = take(speak(Voice("espeak-ng", "en-us+Annie"), ASKED, 1.0), 0)
    first, second, _ = loaded.scenario.turns
    other = first.model_copy(update={"say": ASKED, "audio": "other.flac", "speech": bounds})
    # The agent's first turn is one that it knows; the same follows what it does not know.
    scenario = loaded.scenario.model_copy(update={"turns": (first, other, second)})
    clip = replace(loaded.clips[first.audio], pcm=pcm, rate=RATE, speech=bounds)
    return replace(loaded, scenario=scenario, clips={**loaded.clips, "other.flac": clip})


@pytest.mark.parametrize(
    ("agent", "sets"),
    [("embedded", []), ("stock", []), ("embedded", ["llm.backend=best-of"])],
)
def test_it_says_what_it_can_help_with_and_goes_on(
    conversation: LoadedScenario, agent: str, sets: list[str]
) -> None:
    if sets:
        stack = override(load_stack(agent), {"llm": "best-of"}, [])
    else:
        stack = override(load_stack(agent), {"llm": "sim"}, [])
    turns: list[Turn] = virtual.play_virtually(stack, library_dir(), [conversation])
    first, other, second = turns
    assert OUT_OF_DOMAIN in other.transcript
    assert other.reply == domain_of(None).offer(0)
    assert other.counts[OUTSIDE] == 1
    assert "llm_ttft_ms" not in other.counts
    assert other.gap_ms is not None
    assert sum(stage.ms for stage in other.stages) == pytest.approx(other.gap_ms)
    assert other.answer is not None
    assert other.answer.verdict == "wrong"
    assert any("the LLM was not asked" in note for note in notes_of(other))
    for known in (first, second):
        assert OUTSIDE not in known.counts
        assert known.answer is not None
        assert known.answer.verdict == "right"


def test_of_other_sentences_nearly_all_get_what_it_can_help_with() -> None:
    """The replies of the whole default agent, its own model included."""
    (loaded,) = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    first, second, _ = loaded.scenario.turns
    turns: list[UserTurn] = []
    clips: dict[str, Clip] = {}
    texts = sentences("judge")[::4]
    for n, (text, spoken) in enumerate(zip(texts, spoken_afresh(texts), strict=True)):
        pcm, bounds = take(spoken, n)
        said = {"say": text, "audio": f"{n}.flac", "speech": bounds}
        turns.append((second if n else first).model_copy(update=said))
        clip = loaded.clips[first.audio]
        clips[f"{n}.flac"] = replace(clip, pcm=pcm, rate=RATE, speech=bounds)
    scenario = loaded.scenario.model_copy(update={"turns": tuple(turns)})
    # A fast voice, so that less of its replies has to be played.
    stack = override(load_stack("embedded"), {}, ["tts.speed_wpm=450"])
    assert stack.llm.backend == "small"
    talk = replace(loaded, scenario=scenario, clips=clips)
    replies = [turn.reply for turn in virtual.play_virtually(stack, library_dir(), [talk])]
    assert len(replies) == 13
    others = [reply for reply in replies if not reply.startswith("I can help with ")]
    assert len(replies) - len(others) >= LEAST_OFFERS
    assert len(list(filter(None, others))) <= DOMAIN_ANSWERS_OF_TODAY, others
