"""Settings of the pocketsphinx recogniser."""

from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings

# Mean cepstra of the library's recordings as the decoder hears them, noise floor and pre-roll
# included. With the stock value 4.9 % of the words are wrong instead of 1.0 %;
# `python benchmarks/stt_wer.py --calibrate` measures it again.
CMNINIT = "56.7,-4.8,3.3,6.0,-1.6,-1.2,-3.1,-4.6,-3.2,-2.2,1.0,-1.0,1.4"


# Whose sentences of the library a recogniser is made from.
Side = Literal["person", "agent"]


class PocketsphinxSettings(BackendSettings):
    """Settings of `pocketsphinx`.

    Attributes:
        listens_to: `person`: it knows what people say in the library; `agent`: what they are to be
            told, right and wrong.
        language_weight: how much the sentences of the library count against the sound.
        cmninit: cepstral means that every session starts with.
        noise_dbfs: level of the white noise mixed into what the decoder hears (RMS, full scale).
            Digital silence breaks its features.
        pre_roll_ms: how much audio from before the VAD's start belongs to the utterance.
        while_speaking: decode as the audio arrives, so that next to nothing is left to do when the
            person has ended; off, the whole utterance is decoded then, as by the services that
            pipecat calls segmented, and there are no interim transcripts.
        partial_every_ms: push an interim transcript whenever so much more was heard; None: never.
        pronunciations: words the standard dictionary lacks or has otherwise, in ARPAbet without
            stress: `{siobhan = "SH IH V AO N"}`.
    """

    listens_to: Side = "person"
    language_weight: Annotated[float, Field(gt=0)] = 11.0
    cmninit: Annotated[str, Field(pattern=r"^-?\d+(\.\d+)?(,-?\d+(\.\d+)?)*$")] = CMNINIT
    noise_dbfs: Annotated[float, Field(ge=-90, le=-20)] = -50.0
    pre_roll_ms: Annotated[float, Field(ge=0)] = 600.0
    while_speaking: bool = True
    partial_every_ms: Annotated[float, Field(gt=0)] | None = None
    pronunciations: dict[str, str] = Field(default_factory=dict[str, str])
