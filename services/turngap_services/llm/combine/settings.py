"""Settings of the backends that combine others."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings, BackendSpec, find

Setting = dict[str, Any]


class PairSettings(BackendSettings):
    """Two LLMs by their backends' names, `fast` and `full`, each with its own settings.

    Attributes:
        budget_ms: of a turn, from the person's last word to the agent's first.
        after_llm_ms: what the voice and the line take of it after the first token.
    """

    fast: str = "sim:distilled"
    full: str = "sim:full"
    fast_settings: Setting = Field(default_factory=dict)
    full_settings: Setting = Field(default_factory=dict)
    budget_ms: Annotated[float, Field(gt=0)] = 800.0
    after_llm_ms: Annotated[float, Field(ge=0)] = 150.0

    def part(self, role: str) -> tuple[BackendSpec, BackendSettings]:
        """The backend that plays a role (`fast` or `full`), and its checked settings.

        Raises:
            InputError: there is no such backend, or it does not take these settings.
        """
        spec = find("llm", getattr(self, role))
        values = dict(getattr(self, f"{role}_settings"))
        if self.library is not None:
            values.setdefault("library", self.library)
        return spec, spec.settings(values)

    @model_validator(mode="after")
    def _parts_exist(self) -> Self:
        # An InputError passes through pydantic as it is: it names the part, and what it would take.
        for role in ("fast", "full"):
            self.part(role)
        return self


class RaceSettings(PairSettings):
    """Settings of `race`.

    Attributes:
        deadline_ms: how long after the request the full model may take to its first token and win;
            None: as long as is left of the turn's budget.
    """

    deadline_ms: Annotated[float, Field(ge=0)] | None = None


class OpenerSettings(PairSettings):
    """Settings of `opener`.

    Attributes:
        most_words: of the opening, where its first clause is longer.
        told: the full model is told what was said and asked to go on from it; off: it is asked at
            the same time as the fast one, and what it says is compared with what was said.
        correction: how an opening that was wrong is taken back.
    """

    most_words: Annotated[int, Field(ge=2, le=20)] = 6
    told: bool = True
    correction: Annotated[str, Field(min_length=1)] = "No, sorry."


class RouteSettings(PairSettings):
    """Settings of `route`.

    Attributes:
        threshold: turns of at least so many points (`difficulty`) go to the full model.
        full_ttft_ms: what the full model's first token is taken to need, until it was measured.
    """

    threshold: Annotated[int, Field(ge=0)] = 2
    full_ttft_ms: Annotated[float, Field(ge=0)] = 300.0
