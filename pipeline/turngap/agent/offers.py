"""The LLMs that an agent offers: which there are, which are loaded, and why one is not."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from turngap.agent.stack import require_tools
from turngap.backends import BackendChoice, BackendSettings, BackendSpec, ConfiguredBackend, specs
from turngap.core.errors import InputError

State = Literal["ready", "unloaded", "loading", "failed"]


class Offers:
    """The LLMs that an agent offers, the stack's own first; what they load is shared by sessions.

    Attributes:
        answered: those that have answered a turn since the agent began.

    Raises (when made):
        InputError: two of one name.
    """

    def __init__(self, offers: Sequence[ConfiguredBackend], *, preload: bool = False) -> None:
        self._offers = {offer.name: offer for offer in offers}
        if len(self._offers) < len(offers):
            names = ", ".join(offer.name for offer in offers)
            raise InputError(
                "offer.twice",
                f"two offered LLMs have the same name: {names}",
                hint="name one: --offer slow=sim,ttft_ms=400",
            )
        self.answered: set[str] = set()
        self._preload = preload
        self._locks = {offer.name: asyncio.Lock() for offer in offers}
        self._why_failed: dict[str, str] = {}
        self._loaded = {offer.name for offer in offers if offer.spec.prepare is None}

    @property
    def first(self) -> ConfiguredBackend:
        return next(iter(self._offers.values()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._offers)

    @property
    def narrow(self) -> bool:
        """Return whether one of them may know only the conversations of the library."""
        return any(offer.spec.narrow is not None for offer in self._offers.values())

    @property
    def simulated(self) -> frozenset[str]:
        """Those in which a script answers in place of a model."""
        offers = self._offers.items()
        return frozenset(name for name, o in offers if o.spec.scripted(o.settings))

    def get(self, name: str) -> ConfiguredBackend:
        """Return the LLM of that name.

        Raises:
            InputError: it is not offered.
        """
        if name not in self._offers:
            raise InputError(
                "llm.not_offered",
                f"this agent does not offer the LLM {name!r}",
                hint=f"offered: {', '.join(self._offers)}; `turngap serve --offer NAME` adds one",
            )
        return self._offers[name]

    def prepare(self) -> None:
        """Load the stack's own LLM, and those that were asked for by name. Slow."""
        for offer in self._offers.values() if self._preload else (self.first,):
            offer.prepare()
            self._loaded.add(offer.name)

    async def load(self, name: str) -> ConfiguredBackend:
        """Load an LLM that no session has used yet, in a thread, while conversations go on.

        Raises:
            TurngapError: it cannot be loaded; asking again tries again.
        """
        offer = self.get(name)
        async with self._locks[name]:
            if name not in self._loaded:
                try:
                    await asyncio.to_thread(offer.prepare)
                except Exception as e:
                    self._why_failed[name] = str(e) or type(e).__name__
                    raise
                self._why_failed.pop(name, None)
                self._loaded.add(name)
        return offer

    def state(self, name: str) -> State:
        """Return the LLM's state: whether it could answer at once."""
        if name in self._loaded:
            return "ready"
        if self._locks[name].locked():
            return "loading"
        return "failed" if name in self._why_failed else "unloaded"

    def as_json(self) -> list[dict[str, Any]]:
        """Each LLM with its state, for whoever is to pick one."""
        rows: list[dict[str, Any]] = []
        simulated = self.simulated
        for name in self._offers:
            row: dict[str, Any] = {"name": name, "state": str(self.state(name))}
            if name in simulated:
                row["simulated"] = True
            if name in self._why_failed and row["state"] == "failed":
                row["why"] = self._why_failed[name]
            rows.append(row)
        return rows


def offers_of(
    own: tuple[BackendSpec, BackendSettings],
    wanted: Sequence[str] | None,
    library: Path | None,
    *,
    tools: bool = False,
) -> Offers:
    """Collect the stack's own LLM and the others that its callers may pick.

    Args:
        own: the stack's LLM and its settings.
        wanted: `[LABEL=]BACKEND[,KEY=VALUE…]` each, loaded when the agent starts; None: every LLM
            that this machine has and that needs no settings, loaded when it is first picked.
        library: the scenarios that an engine may be made from.
        tools: whether the conversation has tools, so that all have to call them.

    Raises:
        InputError: an unknown backend or setting, a name twice, or one that calls no tools.
        AgentError: one that was asked for lacks something on this machine.
    """
    spec, settings = own
    first = ConfiguredBackend(spec.name, spec, settings)
    defaults = {} if library is None else {"library": library}
    if wanted is not None:
        asked_for = [BackendChoice.parse(text).configured("llm", defaults) for text in wanted]
        for offer in asked_for if tools else ():
            require_tools(offer.spec, offer.settings)
        return Offers([first, *asked_for], preload=True)
    others = (s for s in specs() if s.kind == "llm" and s.name != spec.name and not s.missing())
    ready = [offer for s in others if (offer := _as_it_is(s, defaults)) is not None]
    if tools:
        ready = [offer for offer in ready if offer.spec.why_no_tools(offer.settings) is None]
    return Offers([first, *ready])


def _as_it_is(spec: BackendSpec, defaults: Mapping[str, Any]) -> ConfiguredBackend | None:
    """Configure the backend with its default settings; None if it needs a setting."""
    try:
        return ConfiguredBackend(spec.name, spec, spec.settings(dict(defaults)))
    except InputError:
        return None
