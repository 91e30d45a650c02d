"""Settings of the small model in this process."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings


class SmallSettings(BackendSettings):
    """Settings of `small`.

    Attributes:
        model: a directory in CTranslate2's format with its `tokenizer.json` and
            `tokenizer_config.json`; left out: the student model that ships with turngap.
        max_tokens: a reply ends after so many at the latest.
        temperature: 0 always takes the likeliest token, so that two runs say the same.
        seed: of the sampling, where the temperature is above 0; of the whole process.
        threads: of one reply. A small model on a shared machine is fastest with one.
        workers: replies that are made at the same time; more of them wait.
    """

    model: Path | None = None
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 96
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 1
    threads: Annotated[int, Field(ge=1)] = 1
    workers: Annotated[int, Field(ge=1)] = 1
