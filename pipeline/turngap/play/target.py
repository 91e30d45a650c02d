"""Agents that `--agent` and `--against` name: a stack, a stack file, a URL or a checkout."""

import dataclasses
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from turngap.agent.stack import (
    Chosen,
    Stack,
    engines_of,
    held_out_of,
    load_stack,
    override,
    resolved,
    stack_files,
    stand_ins_of,
    tool_callers,
)
from turngap.backends import AGENT, BackendSettings, BackendSpec, Kind, find, value_of
from turngap.backends.weights import bring
from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.caller.starting import place_of
from turngap.core.errors import AgentError, InputError, TurngapError, url_meant
from turngap.core.run_record import HeldOutRecord
from turngap.core.secrets import remember_arguments, text_without_secrets
from turngap.play.options import Flag
from turngap.play.process import argv_of, require_free, running, started
from turngap.scenario.model import Scenario, UserTurn
from turngap.store.documents import git_commit, is_dir
from turngap.store.runs import steady_name


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agent as chosen on the command line.

    Attributes:
        agent: a stack's name, a stack file, a `ws://` URL, or the folder of a checkout of turngap;
            `DIR#STACK` names one of the checkout's stacks (else `embedded`). A stack's name is
            never read as a folder of the same name: write `./NAME` for that.
        backends: replacements of a stack's engines, by kind.
        sets: `table.key=value` settings of a stack.
        seed: for engines that draw random numbers.
        traced: whether the agent reports its marks.
        offers: LLMs that a caller may switch to, as for `turngap serve --offer`.
        dialect, headers: for a URL, as in `Endpoint`.
        start: the command that starts the agent of a URL; None if it runs already.
    """

    agent: str = "embedded"
    backends: Mapping[Kind, str | None] = dataclasses.field(default_factory=dict)
    sets: tuple[str, ...] = ()
    seed: int | None = None
    traced: bool = True
    offers: tuple[str, ...] = ()
    dialect: str = ""
    headers: tuple[str, ...] = ()
    start: str | None = None

    @classmethod
    def of(
        cls,
        agent: str,
        sets: Sequence[str] | None = None,
        llm: str | None = None,
        **how: Any,
    ) -> Self:
        """Build a choice from `--set` and `--llm`; `how` has the other attributes.

        `seed=N` and `marks=false` among the `sets` are attributes of their own, and so is an
        engine, as in `stt=NAME`.

        Raises:
            InputError: a seed is not a number, or marks are neither true nor false.
        """
        remember_arguments(sets or ())
        engines, others = engines_of(sets or ())
        named = {kind: name for kind, name in (how.pop("backends", None) or {}).items() if name}
        backends = {**({"llm": llm} if llm else {}), **named, **engines}
        kept: list[str] = []
        for assignment in others:
            key, _, text = assignment.partition("=")
            if key.strip() == "seed":
                how["seed"] = _of_type(int, assignment, text, "a whole number")
            elif key.strip() == "marks":
                how["traced"] = _of_type(bool, assignment, text, "true or false")
            else:
                kept.append(assignment)
        return cls(agent, backends, tuple(kept), **how)

    @classmethod
    def asked(cls, asked: Mapping[str, Any]) -> Self:
        """Return the agent that a command's options name (`turngap.play.options`).

        Raises:
            InputError: as `of`.
        """
        how = {name: asked[name] for name in ("start", "dialect", "headers") if name in asked}
        how |= {field: asked[name] for field, name in _FIELDS.items() if name in asked}
        how["backends"] = {kind: asked.get(kind) for kind in ("stt", "tts")}
        return cls.of(asked["agent"], asked["sets"], asked.get("llm"), **how)

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the choice that a parent process wrote as a document."""
        remember_arguments(document["sets"])
        lists = {name: tuple(document[name]) for name in ("sets", "offers", "headers")}
        return cls(**{**document, **lists})

    @property
    def flags(self) -> list[Flag]:
        """List the flags that choose the agent, except its name and a URL's (`Endpoint.flags`)."""
        engines = [(k, name) for k, name in self.backends.items() if name and k != "llm"]
        return [
            ("--start", self.start),
            ("--llm", self.backends.get("llm")),
            *(("--set", f"{kind}={name}") for kind, name in engines),
            *(("--set", assignment) for assignment in self.sets),
            ("--set", None if self.seed is None else f"seed={self.seed}"),
            ("--set", None if self.traced else "marks=false"),
        ]

    @property
    def is_url(self) -> bool:
        return "://" in self.agent

    @property
    def endpoint(self) -> Endpoint:
        """Return the address of an agent at a URL, with its dialect and headers."""
        return Endpoint(self.agent, self.dialect, self.headers)

    @property
    def checkout(self) -> "Checkout | None":
        """Return the checkout that is meant: a folder, or `DIR#STACK`."""
        folder, mark, stack = self.agent.partition("#")
        if self.is_url or not (mark or (is_dir(Path(folder)) and folder not in stack_files())):
            return None
        return Checkout(Path(folder).resolve(), stack or "embedded")

    @property
    def name(self) -> str:
        if self.checkout is not None:
            return f"{self.checkout.folder.name}-{self.checkout.stack}"
        if self.is_url:  # its host and port
            return self.shown.partition("/")[0] or "agent"
        return Path(self.agent).stem

    @property
    def shown(self) -> str:
        """Return the name, or the address without query and secrets: `127.0.0.1:8765/ws`."""
        if not self.is_url:
            return self.name
        return text_without_secrets(place_of(self.agent)).partition("?")[0].partition("://")[2]

    @property
    def steady_name(self) -> str:
        """Return the agent's name in telemetry, which is the same in each run."""
        if not self.is_url:
            return self.name
        start = text_without_secrets(self.start or "")
        return steady_name(f"//{self.shown}", start).removeprefix("//")

    def stack(self) -> Stack:
        """Load the stack with its overrides.

        Raises:
            InputError: unknown stack, backend or setting.
        """
        stack = override(load_stack(self.agent), self.backends, self.sets)
        if self.seed is None:
            return stack
        seeded = [f"{k}.seed={self.seed}" for k in ("stt", "llm", "tts") if _has_seed(stack, k)]
        return override(stack, {}, seeded)


_FIELDS = {"seed": "seed", "traced": "marks", "offers": "offers"}


def _of_type(wanted: type, assignment: str, text: str, what: str) -> Any:
    value = value_of(text)
    if type(value) is not wanted:
        raise InputError("stack.set", f"--set {assignment!r}: expected {what}")
    return value


def _has_seed(stack: Stack, kind: Kind) -> bool:
    return "seed" in find(kind, stack.engine(kind).backend).settings_type.model_fields


@dataclass(frozen=True, slots=True)
class Checkout:
    """Another checkout of turngap, which serves a stack of its own with its own code."""

    folder: Path
    stack: str

    @property
    def python(self) -> Path:
        """Its own interpreter; not resolved, because the link would lead out of the environment."""
        return self.folder / ".venv" / "bin" / "python"

    def require(self) -> None:
        """Check that the checkout can be started.

        Raises:
            InputError: the folder is no checkout, or has not been set up.
        """
        if not (self.folder / "pipeline" / "turngap").is_dir():
            raise InputError(
                "checkout.none",
                f"{self.folder} is no checkout of turngap (it has no pipeline/turngap)",
                hint="give a checkout's folder, a stack's name, a stack file or a ws:// URL",
            )
        if not os.access(self.python, os.X_OK):
            raise InputError(
                "checkout.not_set_up",
                f"{self.folder} has no environment of its own (.venv)",
                hint=f"cd {shlex.quote(str(self.folder))} && ./run setup",
            )


def _needs_tools(turn: UserTurn) -> bool:
    tools = turn.expect.tools
    return tools is not None and bool(tools.all_of)


@dataclass(frozen=True, slots=True)
class Target:
    """An agent that can be played against, checked as far as possible without starting it."""

    choice: AgentChoice
    library: Path
    stack: Stack | None

    def describe(self) -> dict[str, Any]:
        if (checkout := self.choice.checkout) is not None:
            return {
                "stack": checkout.stack,
                "checkout": checkout.folder.name,
                "commit": git_commit(checkout.folder),
                "sets": list(self.choice.sets),
                "seed": self.choice.seed,
            }
        if self.stack is None:
            start = {} if self.choice.start is None else {"start": self.choice.start}
            return {"url": self.choice.agent, **start}
        return {"stack": self.stack.name, **self.stack.model_dump(exclude={"name"})}

    def stand_ins(self, scenarios: Iterable[Scenario]) -> tuple[str, ...]:
        """List what is simulated when these scenarios are played, as a run stores it.

        For an agent from a checkout or at a URL, only the voices are known.
        """
        found = stand_ins_of(self._engines())
        voices = any(scenario.voices == "synthetic" for scenario in scenarios)
        return (*found, "synthetic voices") if voices else found

    def held_out(self) -> tuple[HeldOutRecord, ...]:
        """List the held-out figures of the agent's models, as a run stores them."""
        return held_out_of(self._engines())

    def without_tools(self, scenarios: Iterable[Scenario]) -> str | None:
        """Return why scenarios that need tools cannot get right answers; None if they can."""
        wanting = [s.name for s in scenarios if any(_needs_tools(t) for t in s.turns)]
        if not wanting or self.stack is None or self.choice.checkout or self.stack.tools.use:
            return None
        llm = find("llm", self.stack.llm.backend)
        why = "" if llm.tools else f", and its LLM `{llm.name}` calls none"
        return (
            f"{' and '.join(wanting)}: the right answers need tools. This agent offers none{why}. "
            f"To offer them, add --set tools.use=all and an --llm that calls them: {tool_callers()}"
        )

    def _engines(self) -> list[tuple[BackendSpec, BackendSettings]]:
        """List the agent's engines; empty for an agent from a checkout or at a URL."""
        if self.stack is None or self.choice.checkout is not None:
            return []
        return resolved(self.stack, self.library)

    @asynccontextmanager
    async def serving(
        self,
        log: Path,
        on_chosen: Callable[[Chosen], None] = lambda chosen: None,
        waits: Callable[[str], None] = lambda what: None,
        max_sessions: int | None = None,
    ) -> AsyncIterator[Endpoint]:
        """Return the agent's address; start its process first if needed, and keep it running.

        `on_chosen` gets the choices that a stack's process made at its start. `waits` receives the
        reason for waiting for a command. `max_sessions` is how many calls at once our own agent
        must take.
        """
        checkout = self.choice.checkout
        if checkout is not None:
            arguments = self._arguments(checkout.stack, max_sessions)
            async with _serving(checkout, arguments, log) as url:
                yield Endpoint(url, PIPECAT)
        elif self.choice.start is not None:
            async with started(self.choice.start, self.choice.agent, log, waits):
                yield self.choice.endpoint
        elif self.stack is None:
            yield self.choice.endpoint
        else:
            argv = ["turngap", "serve", "--document", "--port", "0", "--json"]
            document = self._document(max_sessions)

            def ready(said: Mapping[str, Any]) -> None:
                on_chosen(Chosen.model_validate(said.get("chosen") or {}))

            async with running(argv, log, on_ready=ready, document=document) as url:
                yield Endpoint(url, PIPECAT)

    def _document(self, max_sessions: int | None) -> dict[str, Any]:
        """Build the document that `turngap serve --document` reads: the choice as it is."""
        # Both sides know the same words: those of the library that is played.
        where = {"library": str(self.library.resolve()), "max_sessions": max_sessions}
        return {"choice": dataclasses.asdict(self.choice), **where}

    def _arguments(self, stack: str, max_sessions: int | None) -> list[str]:
        """Return the arguments that start another checkout of turngap, maybe an older one."""
        arguments = ["serve", "--agent", stack, "--port", "0", "--json"]
        arguments += ["--scenarios", str(self.library.resolve())]
        if max_sessions is not None:
            arguments += ["--max-sessions", str(max_sessions)]
        offers = [("--offer", offer) for offer in self.choice.offers]
        for flag, value in (*self.choice.flags, *offers):
            arguments += [] if value is None else [flag, value]
        return arguments


@asynccontextmanager
async def _serving(checkout: Checkout, arguments: list[str], log: Path) -> AsyncIterator[str]:
    argv, python = ["turngap", *arguments], str(checkout.python)
    try:
        async with running(argv, log, python=python, cwd=checkout.folder) as url:
            yield url
    except TurngapError as e:
        # What it said itself is right as it is; that it did not start may be for its age.
        if e.kind == "stack.set":
            e.hint += (
                f"\n  {checkout.folder} may be too old for seed=N, marks=false or an engine by its "
                "name in --set: drop them, for the candidate too"
            )
        if e.kind != "agent.not_started":
            raise
        raise AgentError(
            "checkout.not_serving",
            f"{checkout.folder} does not serve its stack {checkout.stack!r}: {e.message}",
            hint=f"cd {shlex.quote(str(checkout.folder))} && ./run setup, or is it too old? "
            f"{e.hint}",
        ) from e


def resolve(choice: AgentChoice, library: Path) -> Target:
    """Check the choice before anything is started or played.

    Raises:
        InputError: unknown agent, backend or setting, or an override for a running server.
        AgentError: an engine needs what this machine lacks, or weights that cannot be fetched.
    """
    if choice.start is not None:
        if not choice.is_url:
            raise InputError(
                "start.no_url",
                f"--start starts a bot at a URL, and turngap starts {choice.agent} itself",
                hint="name the URL at which the command serves: --agent ws://127.0.0.1:8765/ws",
            )
        choice.endpoint.check()  # first, since a port may be free later and a typo stays
        argv_of(choice.start)
        require_free(choice.start, choice.agent)
    if choice.checkout is not None:
        choice.checkout.require()
        return Target(choice, library, None)
    if not choice.is_url:
        if choice.dialect or choice.headers:
            raise InputError(
                "agent.endpoint",
                f"{choice.agent} is not a URL, and --dialect and --header are for URLs",
                hint=url_meant(choice.agent)
                or "drop them, or give the ws:// URL of a running agent",
            )
        stack = choice.stack()
        try:
            engines = resolved(stack, library)
        except AgentError as e:
            if choice.agent == AgentChoice().agent and not AGENT.met():
                e.hint += (
                    "\n  or measure a bot of your own, which needs none of this: "
                    "--agent ws://HOST:PORT/PATH"
                )
            raise
        # Here and not where they are loaded: that is a process of its own, which no one watches.
        bring(each for spec, settings in engines for each in spec.downloads(settings))
        return Target(choice, library, stack)
    choice.endpoint.check()
    changed = any(choice.backends.values()) or choice.sets or choice.offers
    if changed or choice.seed is not None or not choice.traced:
        raise InputError(
            "agent.override",
            f"{choice.agent} is a running agent: its engines and marks cannot be set from here",
            hint="drop --llm and --set, or name a stack",
        )
    return Target(choice, library, None)
