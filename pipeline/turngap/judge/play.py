"""Stored runs judged again: by the sound of the agent, and by a model."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.backends import BackendChoice, ConfiguredBackend, find, specs
from turngap.clocks import MonotonicClock
from turngap.compare.record import COMPARISON_FILE, ComparisonRecord
from turngap.core.errors import InputError
from turngap.core.results import AnswerRecord, JudgedWith, JudgeRecord, Turn
from turngap.core.summary import counted_turns, other_verdicts
from turngap.judge.prompt import MAX_TOKENS, PROMPT, question, verdict_of
from turngap.judge.transcribe import reply_audio, transcribe
from turngap.scenario.answers import answer_again
from turngap.scenario.library import library_dir, library_paths, load_scenario
from turngap.scenario.model import Scenario
from turngap.store.documents import write_document
from turngap.store.folders import utc_now
from turngap.store.runs import Run, read_run, rewritten

# Of an engine's settings: the side of the conversation that a closed-domain recogniser knows.
LISTENS_TO = "listens_to"


def judge_backend(text: str, library: Path | None) -> ConfiguredBackend:
    """Parse and configure the LLM for `--judge`.

    Raises:
        InputError: unknown backend or setting, not of that form, or an LLM that judges nothing.
        AgentError: it needs what this machine lacks.
    """
    choice = BackendChoice.parse(text)
    spec = find("llm", choice.backend)
    if not spec.judges:
        those = ", ".join(s.name for s in specs() if s.kind == "llm" and s.judges)
        raise InputError(
            "judge.cannot",
            f"llm backend {spec.name!r} can give no verdict on an answer",
            hint=f"those that can: {those}; take another one than those judged",
        )
    return choice.configured("llm", {"library": library_dir(library)})


def recogniser_backend(text: str, library: Path | None) -> ConfiguredBackend:
    """Parse and configure the STT for `--transcribe`, set to listen to the agent.

    Raises:
        InputError: unknown backend or setting, or not of that form.
        AgentError: it needs what this machine lacks.
    """
    choice = BackendChoice.parse(text)
    defaults: dict[str, Any] = {"library": library_dir(library)}
    if LISTENS_TO in find("stt", choice.backend).settings_type.model_fields:
        defaults[LISTENS_TO] = "agent"
    return choice.configured("stt", defaults)


def judged_with(engine: ConfiguredBackend, prompt: str | None = None) -> JudgedWith:
    """Build the record of the judge that a run stores."""
    settings = engine.settings.model_dump(mode="json", exclude={"library"})
    return JudgedWith(
        backend=engine.spec.name,
        settings=settings,
        closed_domain=engine.spec.closed_domain,
        prompt=prompt,
        utc=utc_now(),
    )


def expectations(run: Run, library: Path | None) -> Mapping[str, Scenario]:
    """Load the scenarios that a run played, by name.

    Raises:
        InputError: one is not there, or is not what was played any more.
    """
    folder = library_dir(library)
    known = {path.stem: path for path in library_paths(folder)}
    names = dict.fromkeys(turn.scenario for turn in run.turns)
    found: dict[str, Scenario] = {}
    for name in names:
        if name not in known:
            raise InputError(
                "judge.no_scenario",
                f"{run.path} played the scenario {name!r}, which is not in {folder}",
                hint="name the folder that it was played from: --scenarios DIR",
            )
        loaded, played = load_scenario(known[name]), run.record.scenario_hashes.get(name)
        if played is not None and loaded.content_hash() != played:
            raise InputError(
                "judge.changed",
                f"{known[name]} is not what {run.path} played: it was changed since",
                hint="judge with the scenarios of that time, or play again",
            )
        found[name] = loaded.scenario
    return found


OnTurn = Callable[[], None]


def transcribed(
    run: Run, recogniser: ConfiguredBackend, scenarios: Mapping[str, Scenario], on_turn: OnTurn
) -> Run:
    """Judge each turn by what the recogniser makes of the agent's recorded sound, and store that.

    Raises:
        InputError: the run cannot be written to.
        TurngapError: the recogniser cannot be made.
    """
    recogniser.prepare()

    async def answers() -> list[AnswerRecord]:
        return [await _answer(run, turn, recogniser, scenarios, on_turn) for turn in run.turns]

    return _stored(run, "transcribed", asyncio.run(answers()), judged_with(recogniser))


async def _answer(
    run: Run,
    turn: Turn,
    recogniser: ConfiguredBackend,
    scenarios: Mapping[str, Scenario],
    on_turn: OnTurn,
) -> AnswerRecord:
    expected = scenarios[turn.scenario].turns[turn.turn - 1].expect
    pcm = reply_audio(run, turn) if expected.reply is not None else None
    text, why = "", "no sound of it was recorded"
    if pcm is not None:
        transcript = await transcribe(recogniser.spec, recogniser.settings, pcm)
        text, why = transcript.text, transcript.why_none or ""
    on_turn()
    return answer_again(expected, turn, text, why)


def judged(
    run: Run, model: ConfiguredBackend, scenarios: Mapping[str, Scenario], on_turn: OnTurn
) -> Run:
    """Have a model judge each turn of which something was heard, and store its verdicts.

    It judges the recogniser's words where a run was transcribed, else the agent's.

    Raises:
        InputError: the run cannot be written to.
        TurngapError: the model cannot be used at all; of one that fails at a turn, that is stored.
    """
    model.prepare()

    async def verdicts() -> list[JudgeRecord]:
        service = model.spec.create(model.settings, MonotonicClock())
        try:
            return [await _verdict(run, turn, service, scenarios, on_turn) for turn in run.turns]
        finally:
            await service.cleanup()

    return _stored(run, "judged", asyncio.run(verdicts()), judged_with(model, PROMPT))


async def _verdict(
    run: Run,
    turn: Turn,
    service: Any,
    scenarios: Mapping[str, Scenario],
    on_turn: OnTurn,
) -> JudgeRecord:
    asked = scenarios[turn.scenario].turns[turn.turn - 1]
    answer = turn.transcribed or turn.answer
    if asked.expect.reply is None:
        verdict = JudgeRecord(right=None, why="nothing is expected of this reply")
    elif not answer.heard:
        verdict = JudgeRecord(right=None, why="no words of a reply are known")
    else:
        text = question(asked, _before(run, turn), answer.heard)
        verdict = await _asked(service, text)
    on_turn()
    return verdict.model_copy(update={"source": answer.source})


def _before(run: Run, turn: Turn) -> list[Turn]:
    """List the turns of the same call before this one."""
    call = (turn.scenario, turn.repeat)
    return [t for t in run.turns if (t.scenario, t.repeat) == call and t.turn < turn.turn]


async def _asked(service: Any, text: str) -> JudgeRecord:
    messages: Any = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
    try:
        said = await service.run_inference(LLMContext(messages), max_tokens=MAX_TOKENS)
    except Exception as e:
        why = " ".join(str(e).split())[:200]
        return JudgeRecord(right=None, why=f"the judge failed: {type(e).__name__}: {why}")
    return verdict_of(said)


def _stored(
    run: Run, name: str, verdicts: Iterable[AnswerRecord | JudgeRecord], by: JudgedWith
) -> Run:
    """Keep the turns' verdicts under `name`, and who gave them in the run's record."""
    pairs = zip(run.turns, verdicts, strict=True)
    turns = tuple(turn.model_copy(update={name: verdict}) for turn, verdict in pairs)
    return rewritten(run, run.record.model_copy(update={f"{name}_with": by}), turns)


# The turns of a stored comparison, judged by a model: each backend's by the same one.


def judge_comparison(
    record: ComparisonRecord,
    folder: Path,
    model: ConfiguredBackend,
    library: Path | None,
    on_turn: Callable[[], None] = lambda: None,
) -> tuple[ComparisonRecord, list[Run]]:
    """Have the model judge every run of the comparison in `folder`, and store what it said.

    The rules' verdicts, and all that rests on them, stay as they are.

    Raises:
        InputError: a run or its scenarios are not there or were changed, or cannot be written to.
        TurngapError: the model cannot be used; what it had judged by then is stored in its runs.
    """
    runs = [read_run(folder / backend.run) for backend in record.backends]
    known = [expectations(run, library) for run in runs]
    again = [judged(run, model, of, on_turn) for run, of in zip(runs, known, strict=True)]
    backends = tuple(
        backend.model_copy(update={"judged": other_verdicts(counted_turns(run.turns), "judged")})
        for backend, run in zip(record.backends, again, strict=True)
    )
    used = again[0].record.judged_with
    after = record.model_copy(update={"backends": backends, "judged_with": used})
    write_document(folder / COMPARISON_FILE, after)
    return after, again
