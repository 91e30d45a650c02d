"""Recipe of the Whisper that reads the library: every choice that decides the result."""

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one training run.

    Attributes:
        seed: decides the sentences, voices, noise, their order and the first weights.
        utterances: different recordings, each heard about `steps * batch / utterances` times.
        width, heads: the width and heads of every layer.
        encoder_layers, decoder_layers: how many.
        window_s: the audio that the encoder reads; the library's longest utterance and a pre-roll
            fit in nine tenths of it.
        hop: samples (16 kHz) from one frame to the next, twice Whisper's own.
        pieces: the size of the vocabulary, the 256 bytes included.
        position_scale: the scale of the encoder's sinusoids. At their usual size they drown the
            audio, and a model this small then learns the sentences instead of the sounds.
        ctc_share: the share of the loss that comes from spelling the audio letter by letter,
            straight from the encoder. Without it the decoder's attention does not find the place in
            the audio.
        narrow_share: the share of steps in which the encoder reads the audio and up to a second
            more instead of its whole window, which takes less time.
        steps: how many; the last `falling` of them with a rate that falls to zero.
        gentle_steps: the number of first steps that take only the shorter half of the utterances,
            leave voices as they are, and add almost no noise.
        matrix_rate: learning rate of the matrices inside the layers, by Muon.
        rate: learning rate of all else, by AdamW.
    """

    seed: int = 11
    utterances: int = 6000
    width: int = 160
    heads: int = 4
    encoder_layers: int = 4
    decoder_layers: int = 2
    window_s: int = 6
    hop: int = 320
    pieces: int = 512
    position_scale: float = 0.15
    ctc_share: float = 0.3
    narrow_share: float = 0.85
    steps: int = 2700
    batch: int = 16
    matrix_rate: float = 3e-3
    rate: float = 1.2e-3
    warmup: int = 300
    falling: int = 1000
    gentle_steps: int = 600

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def height_at(self, step: int) -> float:
        """Return the factor of a step's rates: it rises to 1, stays there, then falls to 0."""
        return min(1.0, (step + 1) / self.warmup, (self.steps - step) / self.falling)

    def continues(self, other: "Recipe", step: int) -> bool:
        """Return whether this recipe's first `step` steps are the same as those of `other`.

        So a run may become longer or shorter until its rate falls.
        """
        alike = self == replace(other, steps=self.steps)
        falls_from = min(self.steps, other.steps) - self.falling
        return self == other or (alike and step <= falls_from)
