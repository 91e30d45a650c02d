"""The pipeline of one conversation."""

from pipecat.frames.frames import InputAudioRawFrame, TranscriptionFrame
from pipecat.tests.utils import SleepFrame, run_test

from turngap.agent.session import end_of_input_audio


async def test_the_callers_audio_ends_there_and_its_words_go_on() -> None:
    said = TranscriptionFrame("hello", "caller", "2026-01-01T00:00:00Z")
    packet = InputAudioRawFrame(bytes(640), 16_000, 1)
    await run_test(
        end_of_input_audio(),
        frames_to_send=[packet, said, packet, SleepFrame(0.01)],
        expected_down_frames=[TranscriptionFrame],
    )
