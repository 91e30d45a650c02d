"""The turns of a stored comparison, judged by a model: each backend's by the same one."""

from collections.abc import Callable
from pathlib import Path

from turngap.core.comparison import judged_figures
from turngap.core.comparison_record import ComparisonRecord
from turngap.harness.compare import store
from turngap.harness.judge import Engine, expectations, judged
from turngap.runs import StoredRun, read_run


def judge_comparison(
    record: ComparisonRecord,
    folder: Path,
    model: Engine,
    library: Path | None,
    on_turn: Callable[[], None] = lambda: None,
) -> tuple[ComparisonRecord, list[StoredRun]]:
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
        backend.model_copy(update={"judged": judged_figures(run.turns)})
        for backend, run in zip(record.backends, again, strict=True)
    )
    used = again[0].record.judged_with
    after = record.model_copy(update={"backends": backends, "judged_with": used})
    store(folder, after)
    return after, again
