"""Whole agents in virtual time, asked for what their recogniser does not know."""

from dataclasses import replace

import pytest

pytest.importorskip("pocketsphinx")
pytest.importorskip("espeakng_loader")

import numpy as np

from training.whisper.speech import Voice, speak
from turngap.agent.stack import load_stack, override
from turngap.core.results import Turn
from turngap.core.spoken import OUT_OF_DOMAIN, OUTSIDE
from turngap.play import virtual
from turngap.report.words import notes_of
from turngap.scenario.domain import domain_of
from turngap.scenario.library import LoadedScenario, library_dir, load_scenarios, scenario_paths
from turngap.scenario.model import SpeechBounds

RATE = 16_000
LEAD = RATE // 5
ASKED = "tell me something interesting about whales"


@pytest.fixture(scope="module")
def conversation() -> LoadedScenario:
    """The library's first questions, with another between them."""
    (loaded,) = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    spoken = speak(Voice("espeak-ng", "en-us+Annie"), ASKED, 1.0)
    noise = np.random.default_rng(0).normal(0, 10, len(spoken) + 2 * LEAD)
    noise[LEAD : LEAD + len(spoken)] += spoken
    pcm = np.rint(noise).astype(np.int16)
    bounds = SpeechBounds(start_ms=200, end_ms=200 + len(spoken) * 1000 / RATE)
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
