"""The feed behind the TTS and its restarts."""

import pytest
from pipecat.frames.frames import InterruptionFrame, TextFrame
from pipecat.tests.utils import SleepFrame, run_test

from turngap.agent.feed import SpeechFeed
from turngap.agent.speculation import SpeculationDropped
from turngap.agent.speech_output import SpeechOutput
from turngap.testing import ManualClock


@pytest.mark.parametrize(("kind", "kept"), [(SpeculationDropped, "Sure"), (InterruptionFrame, "")])
async def test_the_next_answers_first_words_survive_the_end_of_the_guess_before(
    kind: type[InterruptionFrame], kept: str
) -> None:
    clock, feed = ManualClock(), SpeechFeed()
    feed.start(0)
    feed.text(0, "Sure")  # of the next guess, while the TTS was still falling silent
    await run_test(
        SpeechOutput(feed, clock, cut_lead=False),
        frames_to_send=[kind()],
        expected_down_frames=[kind],
    )
    feed.end()
    assert "".join(feed.take(0)) == kept


async def test_after_an_interruption_nothing_waits_for_speech_that_nobody_asked_for() -> None:
    # pipecat's flush probe, for one: a typed turn is asked only once it has come through.
    await run_test(
        SpeechOutput(SpeechFeed(), ManualClock(), cut_lead=False),
        frames_to_send=[InterruptionFrame(), SleepFrame(0.01), TextFrame("probe")],
        expected_down_frames=[InterruptionFrame, TextFrame],
    )
