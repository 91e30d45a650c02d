"""LLM backends made of other LLM backends, each an ordinary one with its cost counted in full."""

from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings, BackendSpec, Price, find
from turngap.core.budget import LLM_WINDOW_MS
from turngap_services.loading import lazily

Setting = dict[str, Any]
# US dollars per million tokens in and out.
UsdPerMillion = tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]
# A part's backend, its settings, and its own price; None stands for its list price.
Named = tuple[str, Setting, UsdPerMillion | None]


class CombinedSettings(BackendSettings):
    """Settings of all combined models."""

    budget_ms: Annotated[float, Field(gt=0)] = 800.0
    """Budget of a turn, from the person's last word to the agent's first, in ms."""
    after_llm_ms: Annotated[float, Field(ge=0)] = 150.0
    """What the voice and the line take of the budget after the first token, in ms."""
    first_token_ms: Annotated[float, Field(gt=0)] = 3000.0
    """How long a part may take to its first token before it counts as failed, in ms."""
    stall_ms: Annotated[float, Field(gt=0)] = 5000.0
    """How long a part may be silent in mid-reply before it counts as failed, in ms."""

    def named(self) -> list[Named]:
        return []

    def callers(self) -> list[Named]:
        """List the parts that must call tools if the combined model is to call any."""
        return self.named()

    def prices(self) -> list[Price | None]:
        return [Price(*own) if own else find("llm", name).price for name, _, own in self.named()]

    def parts(self) -> list[tuple[BackendSpec, BackendSettings]]:
        """Find the parts' backends and check their settings.

        Raises:
            InputError: a backend does not exist, or does not take these settings.
        """
        return [self._spec_of(part) for part in self.named()]

    def _spec_of(self, part: Named) -> tuple[BackendSpec, BackendSettings]:
        name, settings, _ = part
        spec = find("llm", name)
        library = {} if self.library is None else {"library": self.library}
        return spec, spec.settings({**library, **settings})

    def why_no_tools(self) -> str | None:
        """Name the part that keeps the combined model from calling tools; None if there is none."""
        for spec, own in map(self._spec_of, self.callers()):
            if spec.why_no_tools(own) is not None:
                return f"its part {spec.name!r} calls none"
        return None

    @model_validator(mode="after")
    def _parts_exist(self) -> Self:
        # pydantic lets the InputError through as it is: it names the part and its settings.
        self.parts()
        return self


class PairSettings(CombinedSettings):
    """Two LLMs by their backends' names, `fast` and `full`, each with its settings and price."""

    fast: str = "sim:distilled"
    """Backend of the fast model."""
    full: str = "sim:full"
    """Backend of the full model."""
    fast_settings: Setting = Field(default_factory=dict)
    """Settings of the fast model's backend."""
    full_settings: Setting = Field(default_factory=dict)
    """Settings of the full model's backend."""
    fast_price: UsdPerMillion | None = None
    """Price of the fast model, US dollars per million tokens (in, out); default: list price."""
    full_price: UsdPerMillion | None = None
    """Price of the full model, US dollars per million tokens (in, out); default: list price."""

    def named(self) -> list[Named]:
        fast = (self.fast, self.fast_settings, self.fast_price)
        return [fast, (self.full, self.full_settings, self.full_price)]


class ByTheFullSettings(PairSettings):
    """Two LLMs; only the full one calls tools."""

    def callers(self) -> list[Named]:
        return self.named()[1:]


class BestOfSettings(CombinedSettings):
    """Settings of `best-of`."""

    candidates: Annotated[tuple[str, ...], Field(min_length=2, max_length=8)] = (
        "sim:full",
        "sim:full-low-batch",
        "sim:distilled",
    )
    """Backends that are asked at once, the most trusted first; a name may be repeated."""
    candidate_settings: tuple[Setting, ...] = ()
    """Settings of the candidates, in their order; by default their backends' own."""
    candidate_prices: tuple[UsdPerMillion, ...] = ()
    """Prices of the candidates, US dollars per million tokens [in, out]; by default list prices."""
    window_ms: Annotated[float, Field(ge=0)] = LLM_WINDOW_MS
    """How long after the request the best reply so far is chosen, in ms."""

    def named(self) -> list[Named]:
        most = len(self.candidates)
        given, prices = self.candidate_settings[:most], self.candidate_prices[:most]
        parts = zip_longest(self.candidates, given, prices)
        return [(name, own or {}, price) for name, own, price in parts]

    @model_validator(mode="after")
    def _not_more_than_candidates(self) -> Self:
        for name in ("candidate_settings", "candidate_prices"):
            if len(getattr(self, name)) > len(self.candidates):
                raise ValueError(f"more {name} than candidates")
        return self


class RaceSettings(PairSettings):
    """Settings of `race`."""

    deadline_ms: Annotated[float, Field(ge=0)] | None = None
    """Time to first token within which the full model wins, in ms; by default what is left of the
    turn's budget."""


class OpenerSettings(ByTheFullSettings):
    """Settings of `opener`."""

    most_words: Annotated[int, Field(ge=2, le=20)] = 6
    """The longest opening, in words."""
    told: bool = True
    """Tell the full model the opening and ask it to continue; if off, ask both models at once and
    compare what they say."""
    correction: Annotated[str, Field(min_length=1)] = "No, sorry."
    """How a wrong opening is taken back."""


class RouteSettings(ByTheFullSettings):
    """Settings of `route`."""

    threshold: Annotated[int, Field(ge=0)] = 2
    """Points of difficulty from which a turn goes to the full model."""
    full_ttft_ms: Annotated[float, Field(ge=0)] = 300.0
    """Assumed time to first token of the full model until it was measured, in ms."""


_SERVICE = "turngap_services.llm.combine.service"
_KINDS: dict[str, tuple[type[CombinedSettings], str]] = {
    "race": (
        RaceSettings,
        "Asks a fast and a full model; the full one wins if its first token is there in time.",
    ),
    "route": (
        RouteSettings,
        "Easy turns to a fast model, hard ones to a full one if there is time for it.",
    ),
    "opener": (
        OpenerSettings,
        "A fast model speaks the first clause; a full one continues from it, and may correct it.",
    ),
    "best-of": (
        BestOfSettings,
        "Asks several models at once, and gives the majority's answer when the time is up.",
    ),
}
SPECS = tuple(
    BackendSpec(
        name=name,
        kind="llm",
        settings_type=settings_type,
        create=partial(lazily(f"{_SERVICE}:create"), name),
        prepare=lazily(f"{_SERVICE}:prepare"),
        licence="BSD-2-Clause",
        notes=notes,
        tools=True,
        toolless=settings_type.why_no_tools,
        combines=True,
        judges=False,
    )
    for name, (settings_type, notes) in _KINDS.items()
)
