"""A check as Markdown, for a CI job's summary or a pull request's comment."""

from collections.abc import Sequence

from turngap.check import words as check_words
from turngap.check.record import CheckRecord
from turngap.core.budget import STARVED_MS
from turngap.report.markdown import bullets, escaped, table


def markdown(record: CheckRecord, llm: Sequence[str] = ()) -> str:
    """The summary: verdict, metrics, moved stage, budgets, and how to do it again.

    `llm` says how fast each side's language model was, as `check_pairs.llm_words` has it.
    """
    look = check_words.look_of(record)
    blocks = [f"## {look.symbol} turngap check: {look.title}"]
    blocks.append(bullets(check_words.why_words(record)))
    if decide := check_words.to_decide(record):
        blocks.append(f"To decide: {escaped(decide)}.")
    blocks += [*_metrics(record), *_stages(record)]
    blocks += [bullets(llm)] if llm else []
    blocks += [*_budgets(record), *_differences(record)]
    blocks += [_basis(record), _again(record)]
    return "\n\n".join(blocks) + "\n"


def _metrics(record: CheckRecord) -> list[str]:
    if not record.metrics:
        return []
    head = ("metric", "verdict", "change", "95 % interval", "limit", "n", "remark")
    rows = [
        (
            metric.name,
            check_words.verdict_words(record, metric.verdict),
            check_words.difference_words(metric),
            check_words.interval_words(metric) or "–",
            check_words.limit_words(metric),
            str(metric.n),
            check_words.metric_note(record, metric) or check_words.detectable_words(metric),
        )
        for metric in record.metrics
    ]
    return [table(head, rows)]


def _stages(record: CheckRecord) -> list[str]:
    if not record.metrics:
        return []
    blocks = [f"Moved stage: {escaped(check_words.moved_words(record))}"]
    if record.stages:
        rows = [
            (
                stage.name,
                f"{check_words.signed_ms(stage.shift_ms)} ms",
                str(stage.n),
                check_words.p_words(stage.p_value),
                check_words.stage_remark(stage, record),
            )
            for stage in record.stages
        ]
        blocks.append(table(("stage", "shift of the typical pair", "n", "significance", ""), rows))
    return blocks


def _budgets(record: CheckRecord) -> list[str]:
    if not record.budgets:
        return []
    head = ("budget", "verdict", "turns within", "95 % interval", "target", "n")
    rows = [
        (
            check_words.budget_name(budget),
            check_words.verdict_words(record, budget.verdict),
            *check_words.budget_figures(budget),
            check_words.percents(budget.target),
            str(budget.n),
        )
        for budget in record.budgets
    ]
    return [table(head, rows)]


def _differences(record: CheckRecord) -> list[str]:
    different = check_words.differences(record)
    return [table(("set differently", "reference", "candidate"), different)] if different else []


def _basis(record: CheckRecord) -> str:
    facts = [
        f"Compared: {check_words.pairs_played(record)}",
        f"Candidate: {check_words.side_words(record.candidate)}",
    ]
    if record.reference is not None:
        facts.insert(1, f"Reference: {check_words.side_words(record.reference)}")
    if record.metrics:
        facts.append(f"This machine's noise: {check_words.noise_words(record.noise)}")
    if starved := check_words.starved_words(record):
        facts.append(f"Caller: {starved}")
    if record.starved_ms != STARVED_MS:
        facts.append(f"Error: {check_words.accepted_words(record)}")
    if saved := check_words.saved_words(record):
        facts.append(f"Saved: {saved}")
    return bullets(facts)


def _again(record: CheckRecord) -> str:
    command = check_words.command(record).replace("`", "")
    return f"{check_words.again_words(record)}\n\n```sh\n{command}\n```"
