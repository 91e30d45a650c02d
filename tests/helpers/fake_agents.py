"""Agents that answer at once, so that a whole check takes no time."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import SCENARIOS
from made_records import MARKS_MS, make_turn

from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.check.plan import CheckPlan
from turngap.check.play import Checked, check
from turngap.core.errors import AgentError
from turngap.core.results import Turn
from turngap.core.stored import PacingRecord
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target, resolve
from turngap.store.checks import CheckRecord

OLD, NEW = "ws://127.0.0.1:9/old", "ws://127.0.0.1:9/new"
ENOUGH = 18  # rounds of 2 conversations, which a pass takes 36 of, and of 6 pairs


class FakeAgents:
    """Stands in for audio: `marks` of a turn by agent, with noise; and notes what was played."""

    def __init__(self) -> None:
        self.played: list[tuple[str, int, int]] = []
        self.slower: dict[str, Callable[[int], float]] = {}
        self.starved: Callable[[str, int], bool] = lambda _url, _nth: False
        self.dies_after: int | None = None
        self.lines: dict[str, dict[str, Any]] = {}
        self._rng = np.random.default_rng(1)

    async def play(
        self, run: Any, scenario: Any, endpoint: Endpoint, *, repeat: int = 1, phase: int = 0
    ) -> None:
        """In place of `RunInProgress.play`."""
        url = endpoint.url
        self.played.append((url, repeat, phase))
        if line := self.lines.get(url):
            run._opening = run._opening.model_copy(update={"agent": run._opening.agent | line})
        if self.dies_after is not None and len(self.played) > self.dies_after:
            raise AgentError("line.lost", "the line was lost")
        for number, _ in enumerate(scenario.scenario.turns, start=1):
            turn = self.turn(url, scenario.scenario.name, number, repeat, phase)
            run._writer.append_turn(turn)
            run.turns.append(turn)
            run._on_turn(turn)

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> Turn:
        starved = self.starved(url, len(self.played))
        late = self._rng.normal(0, 5) + self.slower.get(url, lambda _: 0.0)(len(self.played))
        marks = {k: at + (late if at > 300 else 0.0) for k, at in MARKS_MS.items()}
        return make_turn(
            scenario=scenario,
            turn=number,
            repeat=repeat,
            phase_ms=phase / 16,
            marks_ms=marks,
            pacing=PacingRecord(
                packets=150, late_ms_p50=0.1, late_ms_max=22.0 if starved else 0.4, starved=starved
            ),
        )


async def speaks_pipecat(endpoint: Endpoint, *_: object) -> Endpoint:
    """In place of `identify`, which would call."""
    return replace(endpoint, dialect=PIPECAT)


async def somebody_is_there(endpoint: Endpoint) -> None:
    """In place of `Endpoint.knock`."""


class Served:
    """In place of a process: it is reached by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Endpoint:
        return Endpoint(self.name)

    async def __aexit__(self, *_: object) -> None:
        pass


def stand_in(
    monkeypatch: pytest.MonkeyPatch, fake: FakeAgents, name_of: Callable[[Target], str]
) -> None:
    """Have `fake` played against in place of every stack, by the name that `name_of` gives it."""

    async def play(run: Any, *where: Any, **how: Any) -> None:
        await fake.play(run, *where, **how)

    monkeypatch.setattr(RunInProgress, "play", play)
    monkeypatch.setattr("turngap.play.rounds.identify", speaks_pipecat)
    monkeypatch.setattr(Target, "serving", lambda target, *_: Served(name_of(target)))


def target(agent: str) -> Target:
    return resolve(AgentChoice(agent), SCENARIOS)


async def checked(plan: CheckPlan) -> Checked:
    return await check(plan)


def stored(done: Checked) -> CheckRecord:
    return CheckRecord.model_validate_json((done.path / "check.json").read_text(encoding="utf-8"))


def spoil(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | changes), encoding="utf-8")
