"""Continue a run that was interrupted: the same plan, checked against what is there today."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngap import __version__
from turngap.caller.dialects.registry import dialect_of_host
from turngap.core.errors import InputError
from turngap.core.run_record import METRICS_VERSION, TOLD_BY_THE_LINE, PlanRecord
from turngap.core.secrets import REMOVED, without_secrets
from turngap.play.plan import ReplayPlan
from turngap.play.target import AgentChoice
from turngap.scenario.library import content_hashes
from turngap.store.folders import read_record
from turngap.store.provenance import git_commit, this_machine
from turngap.store.runs import Run, read_run


def read_unfinished(path: Path) -> Run:
    """Read a run that may hold no turn yet; raises as `read_run` does otherwise."""
    try:
        return read_run(path)
    except InputError as e:
        if e.kind != "run.empty":
            raise
        return Run(read_record(path), (), path)


def continued(
    run: Run,
    *,
    agent: str | None = None,
    start: str | None = None,
    headers: Sequence[str] = (),
    sets: Sequence[str] = (),
    library: Path | None = None,
) -> ReplayPlan:
    """Plan to play what a run lacks, under its own settings.

    Args:
        run: as `read_unfinished` gives it.
        agent: its URL again, where the one that was stored lost a secret.
        start: the command that starts it, again. A stored one is never run unasked: the run may be
            somebody else's.
        headers: those that it was opened with, again, where one holds a secret.
        sets: settings that were stored without their secrets, again.
        library: the folder of its scenarios, where that has moved.

    Raises:
        InputError: the run does not say how it was played, a secret is missing, or its agent, its
            scenarios or its metrics are not the same any more.
    """
    asked = run.record.plan
    if asked is None:
        raise InputError(
            "resume.no_plan",
            f"{run.path} does not say how it was played, so it cannot be continued",
            hint="only what `turngap replay` has stored can be; play it again as a whole",
        )
    if run.record.metrics_version != METRICS_VERSION:
        raise InputError(
            "resume.metrics",
            f"{run.path} has figures of metrics version {run.record.metrics_version}, this turngap "
            f"computes version {METRICS_VERSION}",
            hint=f"continue it with turngap {run.record.turngap_version}, or play it again",
        )
    then = run.record.agent.get("start")
    if then is not None and start is None:
        raise InputError(
            "resume.start",
            f"the agent of {run.path} was started by a command, which is run again only if you "
            "give it again",
            hint=f"turngap replay --resume {run.path} --start {shlex.quote(str(then))}",
        )
    files = asked.files
    if library is not None:
        files = tuple(str(library / _within(Path(asked.library), Path(f))) for f in files)
    plan = ReplayPlan.of(
        _choice(run, asked, agent=agent, start=start, headers=headers, sets=sets),
        files,
        None,
        library or Path(asked.library),
        {},
        rounds=asked.rounds,
        phase=asked.phase,
        budget_ms=asked.budget_ms,
        greeting_ms=asked.greeting_ms,
        calibration_turns=asked.calibration_turns,
        starved_ms=run.record.starved_ms,
        continues=run,
    )
    _require_same(plan, run)
    return plan


def _within(library: Path, file: Path) -> Path:
    """Return a file's path within its library; its name, if it is elsewhere."""
    inside = Path(os.path.relpath(file, library))
    return Path(file.name) if ".." in inside.parts else inside


def changes_since(run: Run) -> list[str]:
    """List what has changed since the run began, but does not prevent continuing it."""
    record = run.record
    pairs = (
        ("turngap", record.turngap_version, __version__),
        ("the commit", record.commit, git_commit()),
        ("the machine", record.machine.fingerprint, this_machine().fingerprint),
    )
    return [f"{what} is {now}, and was {then}" for what, then, now in pairs if then != now]


def _choice(
    run: Run,
    asked: PlanRecord,
    *,
    agent: str | None,
    start: str | None,
    headers: Sequence[str],
    sets: Sequence[str],
) -> AgentChoice:
    given = {text.partition("=")[0]: text for text in sets}
    known = {text.partition("=")[0] for text in asked.sets}
    if strangers := sorted(given.keys() - known):
        raise InputError(
            "resume.settings",
            f"--set {strangers[0]}: the run was played without it, and is continued as it began",
            hint="drop it, or play a run of its own",
        )
    merged = tuple(given.get(text.partition("=")[0], text) for text in asked.sets)
    choice = AgentChoice(
        agent or asked.agent,
        {kind: name for kind, name in asked.backends.items() if kind in ("stt", "llm", "tts")},
        merged,
        asked.seed,
        asked.marks,
        start=start,
        # Where the dialect was found out, the run goes on in it.
        dialect=asked.dialect or str(run.record.agent.get("dialect") or ""),
        headers=tuple(headers) or asked.headers,
    )
    path = run.path
    if REMOVED in choice.agent:
        raise _no_secret(path, asked.agent, "--agent URL")
    # The run may be somebody else's, and its URL too: no variable of this environment is sent there
    # unasked.
    service = dialect_of_host(choice.agent) if choice.is_url else None
    if agent is None and service is not None and service.key is not None:
        raise InputError(
            "resume.secret",
            f"{asked.agent} is a public service that is given your key, which is sent there only "
            "if you name it again",
            hint=f"turngap replay --resume {path} --agent {shlex.quote(asked.agent)}",
        )
    if agent is None and "${" in choice.agent:
        raise _no_secret(path, asked.agent, "--agent URL")
    for header in () if headers else asked.headers:
        if REMOVED in header or "${" in header:
            raise _no_secret(path, header, "--header 'NAME: VALUE'")
    for text in merged:
        if REMOVED in text:
            raise _no_secret(path, text, f"--set {text.partition('=')[0]}=VALUE")
    return choice


def _no_secret(path: Path, stored: str, again: str) -> InputError:
    return InputError(
        "resume.secret",
        f"secrets are not stored: {stored}",
        hint=f"give it again: turngap replay --resume {path} {again}",
    )


def _require_same(plan: ReplayPlan, run: Run) -> None:
    """Raise if another agent or other scenarios would be played than before."""
    hashes = content_hashes(plan.scenarios)
    then = run.record.scenario_hashes
    if changed := [name for name in then if hashes.get(name) != then[name]]:
        raise InputError(
            "resume.changed",
            f"{', '.join(changed)}: not what {run.path} played, it was changed since",
            hint="continue with the scenarios of that time (name their folder), or play it again",
        )
    agent = without_secrets(plan.target.describe())
    before = {k: v for k, v in run.record.agent.items() if k not in TOLD_BY_THE_LINE}
    if differing := _differing(before, _as_stored(agent)):
        raise InputError(
            "resume.agent",
            f"the agent is not the one that {run.path} played: {', '.join(differing)} differs",
            hint="continue with the agent of that time, or play a run of its own",
        )


def _as_stored(value: Any) -> Any:
    """Convert the value as JSON does when it stores and reads it."""
    return json.loads(json.dumps(value, default=str))


def _differing(then: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in dict.fromkeys((*then, *now)):
        a, b = then.get(key), now.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differing(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}")
    return found
