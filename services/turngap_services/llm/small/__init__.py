"""The fast path: a small language model in this process, streaming token by token."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec
from turngap_services.loading import ON_A_CARD, Compute, Device, lazily, needs

Shipped = Literal["teacher", "student"]


class SmallSettings(BackendSettings):
    """Settings of `small`."""

    model: Shipped | Path = "teacher"
    """One of turngap's own models, `teacher` or the smaller `student`, or a directory in
    CTranslate2's format with `tokenizer.json` and `tokenizer_config.json`."""
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 96
    """The longest reply, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 always takes the likeliest token, so that two runs say the same."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the sampling above temperature 0, for the whole process."""
    device: Device = "cpu"
    """Where the model runs: `cpu`, `cuda`, or `auto` for the card where there is one."""
    compute_type: Compute | None = None
    """CTranslate2's type of calculation; by default int8 on a CPU, on a card the best it has."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads for one reply; on a shared machine a small model is fastest with one."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Replies made at the same time; further ones wait."""
    system_prompt: str | None = None
    """The model's prompt in place of the stack's own. turngap's models know one form of
    it, with facts, that of the stack `embedded`."""

    @property
    def directory(self) -> Path:
        """Return the model's folder."""
        return Path(__file__).parent / self.model if isinstance(self.model, str) else self.model


SPEC = BackendSpec(
    name="small",
    kind="llm",
    settings_type=SmallSettings,
    create=lazily("turngap_services.llm.small.model:create"),
    prepare=lazily("turngap_services.llm.small.model:prepare"),
    requires=needs("small", "ctranslate2", "tokenizers"),
    on_a_card=ON_A_CARD,
    licence="MIT AND Apache-2.0 AND BSD-2-Clause",
    notes="CTranslate2 on the CPU, in process; ships with two models of turngap's own.",
    held_out=lazily("turngap_services.llm.small.held_out:held_out_share"),
    narrow=lambda settings: isinstance(settings.model, str),
    judges=False,
)
