"""Settings of the backends that combine others."""

from itertools import zip_longest
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings, BackendSpec, Price, find
from turngap.core.budget import LLM_WINDOW_MS

Setting = dict[str, Any]
# US dollars per million tokens in and out.
UsdPerMillion = tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]


class CombinedSettings(BackendSettings):
    """What all of them have.

    Attributes:
        budget_ms: of a turn, from the person's last word to the agent's first.
        after_llm_ms: what the voice and the line take of it after the first token.
        first_token_ms: a part whose first token is not there by then has failed.
        stall_ms: so has one of which nothing more comes for so long, before its end.
    """

    budget_ms: Annotated[float, Field(gt=0)] = 800.0
    after_llm_ms: Annotated[float, Field(ge=0)] = 150.0
    first_token_ms: Annotated[float, Field(gt=0)] = 3000.0
    stall_ms: Annotated[float, Field(gt=0)] = 5000.0

    def named(self) -> list[tuple[str, Setting]]:
        """The backends that it is made of, by name, each with its settings."""
        return []

    def callers(self) -> list[tuple[str, Setting]]:
        """Those of them that have to call tools for the whole to call any."""
        return self.named()

    def own_prices(self) -> list[UsdPerMillion | None]:
        """What each of them costs; None: its list price, if it has one."""
        return []

    def prices(self) -> list[Price | None]:
        """The price of each part, in their order."""
        listed = (find("llm", name).price for name, _ in self.named())
        return [
            price if own is None else Price(*own)
            for price, own in zip(listed, self.own_prices(), strict=True)
        ]

    def parts(self) -> list[tuple[BackendSpec, BackendSettings]]:
        """The same, found and checked.

        Raises:
            InputError: there is no such backend, or it does not take these settings.
        """
        return [self._found(*part) for part in self.named()]

    def _found(self, name: str, settings: Setting) -> tuple[BackendSpec, BackendSettings]:
        spec = find("llm", name)
        library = {} if self.library is None else {"library": self.library}
        return spec, spec.settings({**library, **settings})

    def why_no_tools(self) -> str | None:
        """Why the whole calls no tools: one of its `callers` does not; None: it does."""
        for spec, own in (self._found(*part) for part in self.callers()):
            if spec.why_no_tools(own) is not None:
                return f"its part {spec.name!r} calls none"
        return None

    @model_validator(mode="after")
    def _parts_exist(self) -> Self:
        # An InputError passes through pydantic as it is: it names the part, and what it would take.
        self.parts()
        return self


class PairSettings(CombinedSettings):
    """Two LLMs by their backends' names, `fast` and `full`, each with its settings and price."""

    fast: str = "sim:distilled"
    full: str = "sim:full"
    fast_settings: Setting = Field(default_factory=dict)
    full_settings: Setting = Field(default_factory=dict)
    fast_price: UsdPerMillion | None = None
    full_price: UsdPerMillion | None = None

    def own_prices(self) -> list[UsdPerMillion | None]:
        """The fast one's, then the full one's."""
        return [self.fast_price, self.full_price]

    def named(self) -> list[tuple[str, Setting]]:
        """The fast one, then the full one."""
        return [(self.fast, self.fast_settings), (self.full, self.full_settings)]


class ByTheFullSettings(PairSettings):
    """Two, of which the full one is asked where a tool is to be called."""

    def callers(self) -> list[tuple[str, Setting]]:
        """The full one."""
        return [(self.full, self.full_settings)]


class BestOfSettings(CombinedSettings):
    """Settings of `best-of`.

    Attributes:
        candidates: backends that are asked at once, the most trusted first; a name may come again.
        candidate_settings: of each, in their order; left out: their defaults.
        candidate_prices: of each likewise; left out: their list prices.
        window_ms: how long after the request the best of what is there by then is chosen.
    """

    candidates: Annotated[tuple[str, ...], Field(min_length=2, max_length=8)] = (
        "sim:full",
        "sim:full-low-batch",
        "sim:distilled",
    )
    candidate_settings: tuple[Setting, ...] = ()
    candidate_prices: tuple[UsdPerMillion, ...] = ()
    window_ms: Annotated[float, Field(ge=0)] = LLM_WINDOW_MS

    def named(self) -> list[tuple[str, Setting]]:
        """The candidates in their order."""
        given = self.candidate_settings[: len(self.candidates)]
        return [(name, own or {}) for name, own in zip_longest(self.candidates, given)]

    def own_prices(self) -> list[UsdPerMillion | None]:
        """The candidates' in their order."""
        without = len(self.candidates) - len(self.candidate_prices)
        return [*self.candidate_prices, *([None] * without)]

    @model_validator(mode="after")
    def _not_more_than_candidates(self) -> Self:
        for name in ("candidate_settings", "candidate_prices"):
            if len(getattr(self, name)) > len(self.candidates):
                raise ValueError(f"more {name} than candidates")
        return self


class RaceSettings(PairSettings):
    """Settings of `race`.

    Attributes:
        deadline_ms: how long after the request the full model may take to its first token and win;
            None: as long as is left of the turn's budget.
    """

    deadline_ms: Annotated[float, Field(ge=0)] | None = None


class OpenerSettings(ByTheFullSettings):
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


class RouteSettings(ByTheFullSettings):
    """Settings of `route`.

    Attributes:
        threshold: turns of at least so many points (`difficulty`) go to the full model.
        full_ttft_ms: what the full model's first token is taken to need, until it was measured.
    """

    threshold: Annotated[int, Field(ge=0)] = 2
    full_ttft_ms: Annotated[float, Field(ge=0)] = 300.0
