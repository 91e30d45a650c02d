"""Settings of `adaptive`."""

from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings

Ms = Annotated[float, Field(ge=0)]


class AdaptiveSettings(BackendSettings):
    """Settings of `adaptive`; silence counts from the last audible sample.

    Attributes:
        confidence: from which on Silero's window is speech.
        start_ms: so much speech begins a turn, unless words do so before.
        hold_ms: silence that ends a turn after a complete sentence, and wherever `adapt` is off.
        adapt: hold longer where the words say that more is to come.
        number_ms: silence that ends a turn after digits read out, or an ending that may be either.
        open_ms: after words that cannot be the last, as "and" or "for".
        hesitation_ms: after "um", or words that take something back.
        smart_turn: ask pipecat's smart turn too, beside the hold.
        incomplete_ms: silence that ends a turn that smart turn calls incomplete.
        speculate: ask the LLM, and the TTS for its answer, at the first sign of silence.
        pause_ms: silence that is such a sign.
        conclude_ms: the recogniser is to conclude so long before the hold ends, so that the final
            transcript is there when it does; 0: not before. It hears on if the person does.
        steady_ms: how long the words have to be the same before they are answered: a closure within
            a word is silent too, but what is read of the word by then changes. Over the library's
            32 recordings 40 ms make 25 answers of 57 void instead of 40 of 72.
        barge_in: `attentive`: the agent falls silent at once and speaks on where it was only a
            cough or an "mm-hmm"; `vad`: any speech of `start_ms` stops it for good.
        least_words: so many different words stop the agent for good; "stop" and its like alone do.
        takeover_ms: speech in which too little is recognised stops it after so long.
        final_ms: wait so long for the final transcript where words were read, or the STT does not
            say how long it takes; one that comes later still is answered then.
    """

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    start_ms: Ms = 100.0
    hold_ms: Ms = 250.0
    adapt: bool = True
    number_ms: Ms = 500.0
    open_ms: Ms = 1200.0
    hesitation_ms: Ms = 1500.0
    smart_turn: bool = False
    incomplete_ms: Ms = 700.0
    speculate: bool = True
    pause_ms: Ms = 60.0
    conclude_ms: Ms = 20.0
    steady_ms: Ms = 40.0
    barge_in: Literal["attentive", "vad"] = "attentive"
    least_words: Annotated[int, Field(ge=1)] = 2
    takeover_ms: Ms = 1000.0
    final_ms: Ms = 1000.0
