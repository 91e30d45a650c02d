"""Functions for scripts: `replay`, `score`, `check`, `compare`, `load` and an async twin of each.

`turngap._playing` says in which event loop and thread they play.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from turngap._playing import Line, awaitable, blocking
from turngap.core.budget import (
    CALIBRATION_TURNS,
    DEFAULT_BUDGET_MS,
    NO_REPLY_MS,
    QUIET_MS,
    STARVED_MS,
)
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.play.options import checked

if TYPE_CHECKING:
    from turngap.check.play import Checked
    from turngap.load.keeping import Now
    from turngap.load.play import Loaded
    from turngap.store.comparisons import ComparisonRecord
    from turngap.store.runs import Run

Names = str | Path | Sequence[str | Path]
Texts = str | Sequence[str]
OnTurn = Callable[[Turn], None]


@blocking
async def replay(
    agent: str | Path = "embedded",
    *,
    start: str | None = None,
    dialect: str = "",
    headers: Texts = (),
    scenarios: Names | None = None,
    line: str = "",
    unpaired: bool = False,
    tag: str | None = None,
    repeat: int = 1,
    budget_ms: float | None = None,
    llm: str | None = None,
    stt: str | None = None,
    tts: str | None = None,
    sets: Texts = (),
    seed: int | None = None,
    marks: bool = True,
    phase_ms: float = 0.0,
    greeting_ms: float | None = None,
    stop_on_error: bool = False,
    no_reply_ms: float = NO_REPLY_MS,
    quiet_ms: float = QUIET_MS,
    starved_ms: float = STARVED_MS,
    calibration: int = CALIBRATION_TURNS,
    library: str | Path | None = None,
    label: str = "",
    out: str | Path | None = None,
    otlp: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_turn: OnTurn | None = None,
    progress: bool = True,
) -> "Run":
    """Play recorded people against a voice agent in real time, and measure every turn.

        >>> run = turngap.replay("ws://127.0.0.1:8765/ws", scenarios=["quick-questions"])
        >>> run
        <Run 'runs/...': 3 turns, hit rate 100%, cut in on 0 of 3>

    It works in a script, in a notebook's cell and inside a running event loop; `replay_async` is
    its awaitable twin. If you interrupt it, the turns that were played are stored.

    Args:
        agent: a stack's name, a stack file, or the `ws://` URL of an agent.
        start: a command that starts the agent of that URL, for example `python bot.py`. It runs
            without a shell until everything has been played, and is ended with its children.
        dialect: the protocol of that URL, as `twilio` or `openai-realtime,voice=marin`; by default
            turngap finds it out.
        headers: HTTP headers to open that URL with, each `Name: value`. `${NAME}` in one, or in
            the URL, stands for an environment variable, so that no secret is stored.
            `Sec-WebSocket-Protocol: NAME` names a subprotocol, in place of the dialect's own.
        scenarios: names in the library, files, or folders; by default all of the library.
        line: a line that delays and loses as networks do: a profile, `lte`, faults,
            `delay=80,loss=1%`, or both; each conversation is then played without it, too.
        unpaired: play conversations over the line only.
        tag: play only scenarios with this tag.
        repeat: how often to play everything.
        budget_ms: replaces the budgets that the scenarios name.
        llm: another LLM backend for the stack.
        stt: another STT backend.
        tts: another TTS backend.
        sets: settings of the stack, each `TABLE.KEY=VALUE`, for example `tts.speed_wpm=180`, or
            `stt=NAME`, `seed=N` and `marks=false`, as `--set` takes them.
        seed: for engines that draw random numbers.
        marks: whether an agent that turngap starts reports its marks.
        phase_ms: shifts every turn on the agent's 32 ms grid.
        greeting_ms: how long the agent may take to greet; by default the first call shows how long.
        stop_on_error: end with the first call that the agent loses or ends early; by default the
            next one is played.
        no_reply_ms: how long to wait for a reply, from the end of the person's turn.
        quiet_ms: the silence that ends a reply, unless the agent says when it is over.
        starved_ms: how late the caller may be before a turn counts as starved.
        calibration: known gaps to measure first, about a second each; 0 for none.
        library: the folder of scenarios; by default `./scenarios`, or the one that ships.
        label: a one-line name for the run in `turngap history`.
        out: where runs are stored; by default `./runs`.
        otlp: the URL of an OpenTelemetry collector, which gets a trace of each conversation, and
            histograms; by default where `OTEL_EXPORTER_OTLP_ENDPOINT` says. The logger `turngap`
            logs what was sent, and warns of what could not be sent.
        settings: anything else to store with the run, for example the test that played it.
        on_turn: is called with each turn when it is stored, in another thread.
        progress: whether a line on stderr shows how far the play is, in a terminal or a notebook.

    Returns:
        The stored run. Do not rely on its figures if `run.valid` is False.

    Raises:
        InputError: an argument cannot be used.
        AgentError: the agent cannot be reached, or failed; the error's `stored` is the run so far.
    """
    asked = checked("replay", locals())
    from turngap.play.plan import ReplayPlan
    from turngap.play.rounds import replay as play
    from turngap.report.run import write_html
    from turngap.telemetry import exporting

    plan = ReplayPlan.asked(asked, **(settings or {}))
    with exporting(otlp) as telemetry, Line.shown(plan, on_turn, progress) as shown:
        run, failure = await play(replace(plan, telemetry=telemetry), shown)
    try:
        write_html(run)
    except InputError as e:
        failure = failure or e
    if failure is not None:
        _raise(failure, run)
    return run


@blocking
async def score(  # noqa: D417
    *calls: str | Path,
    person: str = "auto",
    offset_ms: float | None = None,
    budget_ms: float = DEFAULT_BUDGET_MS,
    no_reply_ms: float = NO_REPLY_MS,
    transcribe: str | None = None,
    workers: int | None = None,
    audio: bool = True,
    label: str = "",
    out: str | Path | None = None,
    otlp: str | None = None,
    settings: Mapping[str, Any] | None = None,
    on_turn: OnTurn | None = None,
    progress: bool = True,
) -> "Run":
    """Measure recorded calls, with a person in one channel and an agent in the other.

        run = turngap.score("calls")
        print(run.gap_ms.p50, run.cut_ins)

    A call in which nothing can be measured is listed in `run.record.scored.unscored`, with the
    reason. Called in a script, it starts processes that import this package, not the script.

    Args:
        calls: stereo recordings, or folders of them.
        person: the channel that holds the person, `"left"` or `"right"`; by default each call
            decides it, and its record says why.
        offset_ms: how much later than the person's channel the agent's was recorded.
        budget_ms: a turn is `answered` if its gap is at most this, else `late`.
        no_reply_ms: a turn has no reply if none came within this time.
        transcribe: an STT backend that writes down what the agent says, `STT[,KEY=VALUE…]`.
        workers: how many calls are heard at once; by default one for each processor.
        audio: whether the run keeps the audio of each turn.
        label, out, otlp, settings, on_turn, progress: as in `replay`.

    Returns:
        The stored run. `run.record.scored` has what is known of each call.

    Raises:
        InputError: an argument cannot be used, or no call could be scored.
    """
    asked = checked("score", locals())
    from turngap.play.plan import Progress
    from turngap.report.run import write_html
    from turngap.score.play import ScorePlan
    from turngap.score.play import score as play
    from turngap.telemetry import exporting

    plan = ScorePlan.asked(asked, **(settings or {}))
    with exporting(otlp) as telemetry, Line(len(plan.files), on=progress) as line:
        done = count(1)
        run, failure = await play(
            replace(plan, telemetry=telemetry),
            Progress(on_turn=on_turn or (lambda _: None)),
            lambda: line.reach(next(done), "calls"),
        )
    write_html(run)
    if failure is not None:
        _raise(failure, run)
    return run


@blocking
async def check(  # noqa: D417
    agent: str | Path = "embedded",
    *,
    start: str | None = None,
    against: str | Path | None = None,
    start_against: str | None = None,
    dialect: str = "",
    headers: Texts = (),
    against_dialect: str = "",
    against_headers: Texts = (),
    against_sets: Texts = (),
    baseline: str | Path | None = None,
    budgets: Mapping[str, float] | None = None,
    save: str | Path | None = None,
    target: float = 0.95,
    rounds: int | None = None,
    phases: int = 1,
    limit_p50_ms: float = 30.0,
    limit_p95_ms: float = 100.0,
    until_decided: bool = False,
    max_minutes: float = 10.0,
    scenarios: Names | None = None,
    line: str = "",
    tag: str | None = None,
    llm: str | None = None,
    stt: str | None = None,
    tts: str | None = None,
    sets: Texts = (),
    seed: int | None = None,
    no_reply_ms: float = NO_REPLY_MS,
    quiet_ms: float = QUIET_MS,
    starved_ms: float = STARVED_MS,
    calibration: int = CALIBRATION_TURNS,
    library: str | Path | None = None,
    label: str = "",
    out: str | Path | None = None,
    otlp: str | None = None,
    on_turn: OnTurn | None = None,
    progress: bool = True,
) -> "Checked":
    """Compare an agent with a reference, and say whether it got slower, as `turngap check` does.

        >>> new, old = "ws://127.0.0.1:8765/ws", "ws://127.0.0.1:8766/ws"
        >>> check = turngap.check(new, against=old, scenarios=["quick-questions"], rounds=18)
        >>> check.verdict
        'pass'
        >>> check.path
        PosixPath('runs/...-check')

    Args:
        agent: the candidate; a stack's name, a stack file or a `ws://` URL.
        against: the reference, which is played alternately with the candidate; the folder of
            another checkout of turngap will do as well.
        start, start_against: commands that start the agents of these URLs, as in `replay`.
        dialect, headers: how the agent's URL is spoken to, as in `replay`.
        against_dialect, against_headers: dialect and headers of the reference's URL; by default the
            agent's dialect, and its headers where the scheme and the host of both URLs are the
            same.
        against_sets: settings of the reference, as `sets`.
        baseline: a stored reference in place of `against`, made with `save` on the same machine.
        budgets: `gap` or a stage's name to its budget in ms.
        save: stores the candidate as a baseline in this file, if it passes.
        target: the share of turns that must keep each budget, with confidence; below 1, since no
            number of turns shows that every turn will.
        rounds: how often to play; each round plays every turn twice on both sides. By default 2,
            or as many as it takes to decide on a clear shift.
        phases: how many positions on the agent's 32 ms grid the rounds go through.
        limit_p50_ms: the smallest regression of the median that must not pass.
        limit_p95_ms: the same for p95.
        until_decided: plays on while undecided, and begins no further round after `max_minutes`.
        max_minutes: see `until_decided`.
        line: as in `replay`, for both sides; the same conversation has the same line.
        scenarios, tag, llm, stt, tts, sets, seed, starved_ms: as in `replay`.
        no_reply_ms, quiet_ms: as in `replay`.
        calibration, library, label, out, otlp, on_turn, progress: as in `replay`.

    Returns:
        The check: its `verdict` (`pass`, `regressed`, `undecided` or `cannot_compare`), its
        `record` with each figure, its folder `path`, and the runs `candidate` and `reference`.

    Raises:
        InputError: an argument cannot be used, or the baseline cannot be read.
        AgentError: an agent cannot be reached, or failed; the error's `stored` is the check so far.
    """
    asked = checked("check", locals())
    from turngap.check.plan import CheckPlan
    from turngap.check.play import check as play
    from turngap.check.report import write_reports
    from turngap.telemetry import exporting

    plan = CheckPlan.asked(asked)
    with exporting(otlp) as telemetry, Line.shown(plan, on_turn, progress) as shown:
        finished = await play(replace(plan, telemetry=telemetry), shown)
    write_reports(finished.record, finished.path, finished.candidate, finished.reference)
    if finished.failure is not None:
        _raise(finished.failure, finished)
    return finished


@dataclass(frozen=True, slots=True)
class Compared:
    """A finished comparison: its record, as `compare.json` has it, and its folder."""

    record: "ComparisonRecord"
    path: Path

    def __repr__(self) -> str:
        names = ", ".join(backend.name for backend in self.record.backends)
        return f"<Compared {str(self.path)!r}: {names}>"


@blocking
async def compare(  # noqa: D417
    *llms: str,
    agent: str | Path = "embedded",
    scenarios: Names | None = None,
    line: str = "",
    tag: str | None = None,
    rounds: int = 1,
    phases: int = 1,
    budget_ms: float | None = None,
    prices: Mapping[str, tuple[float, float]] | None = None,
    stt: str | None = None,
    tts: str | None = None,
    sets: Texts = (),
    seed: int | None = None,
    no_reply_ms: float = NO_REPLY_MS,
    quiet_ms: float = QUIET_MS,
    starved_ms: float = STARVED_MS,
    library: str | Path | None = None,
    label: str = "",
    out: str | Path | None = None,
    otlp: str | None = None,
    on_turn: OnTurn | None = None,
    progress: bool = True,
) -> Compared:
    """Compare LLM backends of one agent over the same recordings, as `turngap compare` does.

        compared = turngap.compare("teacher=small", "student=small,model=student")
        for backend in compared.record.backends:
            print(backend.name, backend.gap_ms["p50"], backend.cut_ins)

    Args:
        llms: two backends or more, each `[LABEL=]BACKEND[,KEY=VALUE…]`.
        agent: the stack that all of them answer for.
        rounds: how often each backend plays everything.
        phases: how many positions on the agent's 32 ms grid the rounds go through.
        prices: US dollars per million tokens in and out, by a backend's label.
        scenarios, line, tag, budget_ms, stt, tts, sets, seed, starved_ms: as in `replay`.
        no_reply_ms, quiet_ms: as in `replay`.
        library, label, out, otlp, on_turn, progress: as in `replay`.

    Returns:
        The comparison: its `record`, with the figures of each backend, and its folder `path`.
        `record.inconclusive` lists the pairs that cannot be compared because the caller was late.

    Raises:
        InputError: an argument cannot be used.
        AgentError: an agent failed; the error's `stored` is the comparison so far.
    """
    asked = checked("compare", locals())
    from turngap.compare.play import ComparePlan
    from turngap.compare.play import compare as play
    from turngap.compare.report import write_reports
    from turngap.telemetry import exporting

    plan = ComparePlan.asked(asked, dict(prices or {}))
    with exporting(otlp) as telemetry, Line.shown(plan, on_turn, progress) as shown:
        record, path, failure = await play(replace(plan, telemetry=telemetry), shown)
    write_reports(record, path)
    compared = Compared(record, path)
    if failure is not None:
        _raise(failure, compared)
    return compared


@blocking
async def load(  # noqa: D417
    agent: str | Path = "embedded",
    *,
    start: str | None = None,
    dialect: str = "",
    headers: Texts = (),
    sessions: int | str | None = None,
    max_sessions: int | None = None,
    min_sessions: int | None = None,
    max_minutes: float = 15.0,
    rate: str | None = None,
    arrivals: str | None = None,
    duration_s: float | None = None,
    warm_up_s: float | None = None,
    budget_ms: float = DEFAULT_BUDGET_MS,
    target: float = 0.95,
    confidence: float = 0.95,
    callers: int | None = None,
    on: str = "local",
    ray_address: str | None = None,
    scenarios: Names | None = None,
    line: str = "",
    tag: str | None = None,
    llm: str | None = None,
    stt: str | None = None,
    tts: str | None = None,
    sets: Texts = (),
    seed: int | None = None,
    greeting_ms: float | None = None,
    no_reply_ms: float = NO_REPLY_MS,
    quiet_ms: float = QUIET_MS,
    starved_ms: float = STARVED_MS,
    calibration: int = CALIBRATION_TURNS,
    library: str | Path | None = None,
    label: str = "",
    out: str | Path | None = None,
    otlp: str | None = None,
    on_now: "Callable[[Now], None] | None" = None,
    progress: bool = True,
) -> "Loaded":
    """Find how many calls at once an agent holds, and how sure that is, as `turngap load` does.

        loaded = turngap.load("ws://127.0.0.1:8765/ws", max_sessions=16)
        print(loaded.capacity.sessions, "sessions, at least", loaded.capacity.low, "on time")

    Calls are made by a schedule that no agent can slow down, and a gap is counted from when the
    person was scheduled to end. A call that is refused, dropped or opened too late counts as turns
    missed. Called in a script, it starts processes that import this package, not the script.

    Args:
        sessions: a level to hold, `16`, or a ramp, `"1..64"`. Without it and `rate` the
            most sessions are searched for, up to `max_sessions` (32).
        min_sessions: the level at which the search begins.
        max_minutes: a search that has certified a level starts no further step after this time.
        rate: how many calls arrive in a time, as `"2/s"` or `"30/min"`; `arrivals` is `"poisson"`
            or `"constant"`.
        duration_s, warm_up_s: how long each step is measured, and how long it runs before that.
        budget_ms: a turn is on time if its gap is at most this.
        target, confidence: the share of turns that has to be on time, and how sure that has to be.
        callers: how many processes call; by default as many as it takes.
        on, ray_address: where the callers run, `"local"` or `"ray"`, and the Ray cluster's address.
        seed: of the schedule, and for engines that draw random numbers.
        on_now: gets the progress about once a second, in another thread.
        agent, start, dialect, headers, scenarios, line, tag, llm, stt: as in `replay`.
        tts, sets, greeting_ms, starved_ms, calibration, library, label, out, otlp: as in `replay`.
        no_reply_ms, quiet_ms: as in `replay`.

    Returns:
        The load test: its `capacity` (`sessions`, `low`, `why`), its `record` with every step, its
        `turns` and its folder `path`.

    Raises:
        InputError: an argument cannot be used.
        AgentError: the agent failed; the error's `stored` is the load test so far.
    """
    asked = checked("load", locals())
    from turngap.load.export import write_reports
    from turngap.load.keeping import LoadProgress
    from turngap.load.plan import LoadPlan
    from turngap.load.play import load as play
    from turngap.telemetry import exporting

    plan = LoadPlan.asked(asked)
    with exporting(otlp) as telemetry, Line(plan.probable_s, on=progress) as shown:

        def tell(now: "Now") -> None:
            shown.reach(now.done_s, "s")
            if on_now is not None:
                on_now(now)

        loaded = await play(replace(plan, telemetry=telemetry), LoadProgress(on_now=tell))
    write_reports(loaded.record, loaded.path)
    if loaded.failure is not None:
        _raise(loaded.failure, loaded)
    return loaded


replay_async = awaitable(replay)
check_async = awaitable(check)
compare_async = awaitable(compare)
load_async = awaitable(load)
score_async = awaitable(score)


def _raise(failure: TurngapError, stored: Any) -> NoReturn:
    failure.stored = stored
    raise failure
