"""Continue an interrupted run with the same plan, after checking that nothing has changed."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngap.agent.stack import stack_files
from turngap.backends import value_of
from turngap.caller.dialects.registry import dialect_of_host, dialects, transport_of
from turngap.caller.line.spec import parse_line
from turngap.caller.opening import check_url
from turngap.caller.starting import is_start
from turngap.core import __version__
from turngap.core.errors import InputError
from turngap.core.run_record import (
    METRICS_VERSION,
    TOLD_BY_THE_LINE,
    CalibrationRecord,
    OffsetRecord,
    PieceRecord,
    PlanRecord,
    RunRecord,
    worse_offset,
)
from turngap.core.secrets import REMOVED, without_secrets
from turngap.core.untrusted import printable
from turngap.play.options import Flag, quoted, require_ranges, typed
from turngap.play.plan import ReplayPlan
from turngap.play.target import AgentChoice
from turngap.report.words import flat
from turngap.scenario.library import content_hashes
from turngap.scenario.model import SUFFIXES, library_dir, library_for
from turngap.store.documents import git_commit, this_machine
from turngap.store.runs import Run

# Numbers of a stored plan.
_TAKEN = {
    *("rounds", "phase", "budget_ms", "calibration_turns"),
    *("greeting_ms", "no_reply_ms", "quiet_ms", "unpaired"),
}


def continued(
    run: Run,
    *,
    agent: str | None = None,
    start: str | None = None,
    dialect: str = "",
    headers: Sequence[str] = (),
    sets: Sequence[str] = (),
    scenarios: Sequence[str] = (),
) -> ReplayPlan:
    """Plan to play the missing conversations of a run, with its own settings.

    A stored document may be another person's. Only its plan of turns, numbers, an installed stack
    and a plain URL are taken from it. The user has to give all else (`to_type`) again, as for
    `turngap replay`.

    `scenarios` are the folder of its scenarios, if that has moved, or their files.

    Raises:
        InputError: the run does not say how it was played, something has to be given again, or its
            agent, its scenarios or its metrics have changed.
    """
    asked = run.record.plan
    if asked is None:
        raise InputError(
            "resume.no_plan",
            f"{run.path} does not say how it was played, so it cannot be continued",
            hint="only runs of `turngap replay` can be continued; play it again as a whole",
        )
    if run.record.metrics_version != METRICS_VERSION:
        raise InputError(
            "resume.metrics",
            f"{run.path} has figures of metrics version {run.record.metrics_version}, this turngap "
            f"computes version {METRICS_VERSION}",
            hint=f"continue it with turngap {run.record.turngap_version}, or play it again",
        )
    given: list[Flag] = [
        *(("--agent", agent), ("--start", start), ("--dialect", dialect or None)),
        *(("--header", each) for each in headers),
        *(("--set", each) for each in sets),
        *(("", each) for each in scenarios),
    ]
    stored = {_key(("--set", text)): text for text in _sets(asked)}
    known = {_key(flag): str(flag[1]) for flag in given if flag[1] is not None}
    if strangers := [key for key in known if key.startswith("--set ") and key not in stored]:
        raise InputError(
            "resume.settings",
            f"{strangers[0]}: the run was played without this setting",
            hint="drop it, or start a new run",
        )
    spoiled = {_key(flag) for flag in given if REMOVED in str(flag[1])}
    needed = dict.fromkeys(map(_key, to_type(run)))
    if lacking := [key for key in needed if key not in known or key in spoiled]:
        command = command_to_resume(run)
        secrets = f", with your secrets in place of {REMOVED}" if REMOVED in command else ""
        raise InputError(
            "resume.typed",
            f"{run.path} may be another person's, so settings that run something or name a secret "
            f"are not taken from it: {', '.join(lacking)}",
            hint=f"check each word of this command, then run it{secrets}: {command}",
        )
    choice = AgentChoice.of(
        agent or asked.agent,
        [known.get(key, text) for key, text in stored.items()],
        start=start,
        # Where the dialect was found out, the run continues in it.
        dialect=dialect or _dialect(run),
        headers=tuple(headers) or asked.headers,
    )
    numbers = asked.model_dump(include={"budget_ms", "greeting_ms", "no_reply_ms", "quiet_ms"})
    require_ranges("replay", repeat=asked.rounds, calibration=asked.calibration_turns, **numbers)
    library = library_for(scenarios)
    files = [known.get(_key(("", f)), str(library / _within(asked, f))) for f in asked.files]
    plan = ReplayPlan.of(
        choice,
        files,
        None,
        library,
        {},
        starved_ms=run.record.starved_ms,
        continues=run,
        line=parse_line(asked.line) if asked.line else None,
        **asked.model_dump(include=_TAKEN),
    )
    _require_same(plan, run)
    return plan


def command_to_resume(run: Run) -> str:
    """Return the command that plays the missing conversations of a `replay` run."""
    words = typed((flag, printable(str(value))) for flag, value in to_type(run))
    return " ".join(["turngap replay --resume", quoted(run.path), *map(str.strip, words)])


def to_type(run: Run) -> list[Flag]:
    """List the parts of a stored plan that only the user may name; scenarios have no flag.

    Each of them runs, opens or loads something, or sends out a secret of the user's.
    """
    asked, start = run.record.plan, run.record.agent.get("start")
    assert asked is not None
    dialect, headers = _dialect(run), asked.headers
    outside = any(_within(asked, file).startswith("..") for file in asked.files)
    moved = os.path.relpath(Path(asked.library), library_dir()) != "."
    names = asked.files if outside else (asked.library,) if moved else ()
    flags: list[Flag] = [
        *(("", name) for name in names),
        ("--start", start),
        ("--dialect", None if dialect in ("", *dialects()) else dialect),
        *(("--header", each) for each in headers if any(map(_is_secret, headers))),
        *(("--set", text) for text in _sets(asked) if not _is_number(text)),
    ]
    needed = [flag for flag in flags if flag[1] is not None]
    # What the user types goes to the agent, so a URL is typed with it.
    if not _is_plain(asked.agent) or (needed and "://" in asked.agent):
        needed.insert(0, ("--agent", asked.agent))
    return needed


def _key(flag: Flag) -> str:
    """Name the thing that a flag gives: one of several settings, or a scenario by its file."""
    name, value = flag
    if name == "--set":
        return f"--set {printable(value.partition('=')[0])}"
    path = Path(value) if name == "" else None
    if path is not None and path.suffix in SUFFIXES:
        return f"scenario {printable(path.name)}"
    return name or "the scenarios' folder"


def _within(asked: PlanRecord, file: str) -> str:
    """Return a scenario's path within its library; it begins with `..` if it is outside."""
    return os.path.relpath(Path(file), Path(asked.library))


def _sets(asked: PlanRecord) -> list[str]:
    """List the agent's overrides, each as `--set` takes it."""
    seed = [] if asked.seed is None else [f"seed={asked.seed}"]
    marks = [] if asked.marks else ["marks=false"]
    return [*(f"{k}={name}" for k, name in asked.backends.items()), *asked.sets, *seed, *marks]


def _dialect(run: Run) -> str:
    stored = run.record.plan.dialect if run.record.plan else ""
    return stored or str(run.record.agent.get("dialect") or "")


def _is_number(assignment: str) -> bool:
    return isinstance(value_of(assignment.partition("=")[2]), int | float)


def _is_secret(text: str) -> bool:
    return REMOVED in text or "${" in text


def _is_plain(agent: str) -> bool:
    """Return whether the agent is an installed stack, or a WebSocket URL that gets no secret.

    An `http(s)://` URL is none: something is posted to it.
    """
    posts = is_start(agent) or transport_of(agent) == "webrtc"
    if "://" not in agent or _is_secret(agent) or posts:
        return agent in stack_files()
    check_url(agent, agent)
    service = dialect_of_host(agent)
    return service is None or service.key is None


def changes_since(run: Run) -> list[str]:
    """List the changes since the run began that do not prevent continuing it."""
    record = run.record
    pairs = (
        ("turngap", record.turngap_version, __version__),
        ("the commit", record.commit, git_commit()),
        ("the machine", record.machine.fingerprint, this_machine().fingerprint),
    )
    return [f"{what} is {now}, and was {then}" for what, then, now in pairs if then != now]


def _require_same(plan: ReplayPlan, run: Run) -> None:
    """Raise if another agent or other scenarios would be played than before."""
    hashes = content_hashes(plan.scenarios)
    then = run.record.scenario_hashes
    if changed := [name for name in {**then, **hashes} if hashes.get(name) != then.get(name)]:
        raise InputError(
            "resume.changed",
            f"{', '.join(changed)}: changed since {run.path} was played",
            hint="continue with the same scenarios as before (name their folder), or play it again",
        )
    line = run.record.line
    if plan.line is not None and line is not None and plan.line.numbers() != line.settings:
        raise InputError(
            "resume.changed",
            f"the line {plan.line.text} has other numbers than when {run.path} was played",
            hint="play it again, or continue it with the same turngap as before",
        )
    agent = without_secrets(plan.target.describe()) | {"marks": plan.target.choice.traced}
    before = {k: v for k, v in run.record.agent.items() if k not in TOLD_BY_THE_LINE}
    before["marks"] = run.record.plan is None or run.record.plan.marks
    now = json.loads(json.dumps(agent, default=str))  # as it is stored
    a, b = dict(flat(before)), dict(flat(now))
    if differing := [name for name in {**a, **b} if a.get(name, "–") != b.get(name, "–")]:
        raise InputError(
            "resume.agent",
            f"the agent is not the one that {run.path} played: {', '.join(differing)} differs",
            hint="continue with the same agent as before, or start a new run",
        )


# What a piece has as the run itself does.
_OF_A_PIECE = (
    *("started_utc", "finished_utc", "turngap_version", "commit", "machine"),
    *("clock_offset", "calibration", "failure"),
)


def next_piece(run: Run, opening: RunRecord) -> RunRecord:
    """Build the record of a stored run that continues now; `opening` is the record of a new run.

    A killed piece does not know its number of turns: all that no earlier piece has are its own.
    """
    if not run.turns:
        kept = {"settings": run.record.settings, "label": run.record.label}
        return opening.model_copy(update=kept)
    known = run.record.pieces or (_piece(run.record, 0),)
    others = sum(piece.turns for piece in known[:-1])
    last = known[-1].model_copy(update={"turns": len(run.turns) - others})
    pieces = [piece for piece in (*known[:-1], last) if piece.turns]
    update = {
        "finished_utc": None,
        "failure": None,
        "pieces": (*pieces, _piece(opening, 0)),
    }
    return run.record.model_copy(update=update)


def noted(record: RunRecord, known: dict[str, Any]) -> RunRecord:
    """Add the known facts of the present piece to the record of a run that is being played."""
    if not record.pieces:
        return record.model_copy(update=known)
    *earlier, last = record.pieces
    return record.model_copy(update={"pieces": (*earlier, last.model_copy(update=known))})


def with_last_piece(opening: RunRecord, ended: dict[str, Any], turns: int) -> RunRecord:
    """Add the facts known at the end of a run with this many turns to its record.

    A run of one piece lists no pieces.
    """
    if not opening.pieces:
        return opening.model_copy(update=ended)
    *earlier, last = opening.pieces
    last = last.model_copy(update={**ended, "turns": turns - sum(piece.turns for piece in earlier)})
    pieces = (*earlier, last) if last.turns else tuple(earlier)
    offset: OffsetRecord | None = None
    for piece in pieces:
        if piece.clock_offset is not None:
            offset = worse_offset(offset, piece.clock_offset)
    worst = {
        "pieces": pieces if len(pieces) > 1 else (),
        "clock_offset": offset,
        "calibration": _worst_calibration(pieces),
    }
    return opening.model_copy(update={**ended, **worst})


def _worst_calibration(pieces: tuple[PieceRecord, ...]) -> CalibrationRecord | None:
    known = [piece.calibration for piece in pieces if piece.calibration is not None]
    return max(known, key=lambda c: c.error_ms.max or 0.0, default=None)


def _piece(record: RunRecord, turns: int) -> PieceRecord:
    return PieceRecord(turns=turns, **{name: getattr(record, name) for name in _OF_A_PIECE})
