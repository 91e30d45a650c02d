"""How the Whisper that reads the library is trained: every choice that decides the result."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one training run.

    Attributes:
        seed: decides the sentences, voices, noise, their order and the first weights.
        utterances: different recordings, each heard about `steps * batch / utterances` times.
        width, heads: of all layers.
        encoder_layers, decoder_layers: how many.
        window_s: what the encoder reads; a short one costs a Whisper's smallest part.
        hop: samples (16 kHz) from one frame to the next, twice Whisper's own.
        pieces: of the vocabulary, the 256 bytes included.
        position_scale: of the encoder's sinusoids. At their usual size they drown what is heard,
            and a model this small then learns the sentences instead of the sounds.
        ctc_share: of the loss, what comes from spelling what is heard letter by letter, straight
            from the encoder. Without it the decoder's attention does not find the place in the
            audio.
        gentle_steps: before so many, next to no noise is added.
    """

    seed: int = 11
    utterances: int = 6000
    width: int = 160
    heads: int = 4
    encoder_layers: int = 4
    decoder_layers: int = 2
    window_s: int = 8
    hop: int = 320
    pieces: int = 512
    position_scale: float = 0.15
    ctc_share: float = 0.3
    steps: int = 6000
    batch: int = 16
    rate: float = 1.2e-3
    warmup: int = 300
    gentle_steps: int = 1500

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step: up to `rate`, then down to zero, both in a straight line."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        return self.rate * (self.steps - step) / (self.steps - self.warmup)
