"""Settings of Whisper."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings

MODEL = "base.en"


class WhisperSettings(BackendSettings):
    """Settings of `whisper`.

    Attributes:
        model: a directory in CTranslate2's format, the name of a size (`tiny.en`, `base.en`,
            `large-v3-turbo`, ...), or a repository on the hub. The latter two are downloaded once.
        offline: take a model that was downloaded before, and ask nobody.
        cache: where downloaded models are kept; left out: where the hub's client keeps them.
        language: two letters; `auto` lets the model find out, anew each time that it reads.
        device: where the model runs.
        compute_type: what it calculates with, in CTranslate2's words.
        threads: of one reading. On a CPU that is shared, one is fastest.
        workers: readings at the same time, of different sessions; more of them wait.
        beam_size: hypotheses followed at a time.
        window: `full`: the encoder reads 30 s, as Whisper was trained, of silence where there is no
            more. `fit`: it reads what there is and a little more, which costs a small model a
            tenth; most models want to be fine-tuned for that.
        initial_prompt: text of the kind that is to come, which sets its style and spelling.
        hotwords: words to be expected.
        no_speech: from this probability on, what was read is taken for no speech.
        pre_roll_ms: how much audio from before the VAD's start belongs to the utterance.
        while_speaking: read as the person speaks; off, only when the utterance is over.
        pause_ms: so much silence is a pause, in which all that was said until then is read.
        partial_every_ms: between pauses too, read whenever so much more was said, and less often
            where readings take long; None: in pauses alone. What is read in mid-sentence is old by
            the next pause: `adaptive` may begin an answer to it that it has to withdraw.
    """

    model: Annotated[str, Field(min_length=1)] = MODEL
    offline: bool = False
    cache: Path | None = None
    language: Annotated[str, Field(pattern=r"^([a-z]{2,3}|auto)$")] = "en"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compute_type: Literal[
        "default",
        "auto",
        "int8",
        "int8_float32",
        "int8_float16",
        "int8_bfloat16",
        "int16",
        "float16",
        "bfloat16",
        "float32",
    ] = "int8"
    threads: Annotated[int, Field(ge=1)] = 1
    workers: Annotated[int, Field(ge=1)] = 1
    beam_size: Annotated[int, Field(ge=1, le=10)] = 1
    window: Literal["full", "fit"] = "full"
    initial_prompt: str | None = None
    hotwords: str | None = None
    no_speech: Annotated[float, Field(gt=0, le=1)] = 0.6
    pre_roll_ms: Annotated[float, Field(ge=0)] = 600.0
    while_speaking: bool = True
    pause_ms: Annotated[float, Field(ge=20)] = 60.0
    partial_every_ms: Annotated[float, Field(ge=20)] | None = None

    @property
    def spoken(self) -> str | None:
        """The language; None: to be found out."""
        return None if self.language == "auto" else self.language
