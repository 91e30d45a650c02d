"""Two stored runs judged as in a check, without playing anything."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from turngap.check import baseline as baselines
from turngap.check import words
from turngap.check.baseline import lines_differ
from turngap.check.play import judged, noise_of, side_of, too_starved, verdict_of
from turngap.check.report import check_report
from turngap.check.verdict import Judgement, judge
from turngap.core.paired import Limits, Pair
from turngap.core.results import Turn
from turngap.report import words as report_words
from turngap.report.sections import Column, Line, Report, Section, Table
from turngap.store.checks import CheckRecord
from turngap.store.folders import started_at, status_of, utc_now
from turngap.store.runs import Run

OTHER_CALLS = (
    "the runs were scored from other calls, so no turn of one has a twin in the other: compare the "
    "intervals of their figures (turngap report A B), or gate each by turngap score --min-hit-rate"
)


def compare_stored(reference: Run, candidate: Run, limits: Limits | None = None) -> CheckRecord:
    """Judge a run by an older one, over the turns of both, by the candidate's budgets.

    If the runs cannot be compared, the verdict says so and `why` has every reason. The record's
    instants are those of the judging, because nothing was played.
    """
    limits, now_utc = limits or Limits(), utc_now()
    twins = _twins(reference, candidate)
    pairs = [
        Pair(
            now.key,
            baselines.judged_by(baselines.reading_of(then), now.budget_ms),
            baselines.reading_of(now),
        )
        for then, now in twins
    ]
    reasons = why_not_comparable(reference, candidate)
    if not reasons and not pairs and candidate.record.scored:
        reasons = [OTHER_CALLS]
    elif not reasons and not pairs:
        reasons = ["the runs share no turn: neither the same scenarios nor the same rounds"]
    judgement = None if reasons else judge(pairs, limits)
    verdict, why = verdict_of(judgement, ())
    if not reasons:
        reasons = _starved(reference, candidate, judgement)
    if reasons:
        verdict, why = "cannot_compare", tuple(reasons)
    record, shared = candidate.record, [pair.key for pair in pairs]
    return CheckRecord(
        verdict=verdict,
        why=why,
        started_utc=now_utc,
        finished_utc=now_utc,
        machine=record.machine,
        reference=side_of(reference),
        candidate=side_of(candidate),
        scenarios=tuple(dict.fromkeys(str(key[0]) for key in shared)),
        rounds=len({key[3] for key in shared}),
        phases=max(1, len({key[2] for key in shared})),
        starved_ms=record.starved_ms,
        line=baselines.line_of(record),
        stand_ins=tuple(dict.fromkeys((*record.stand_ins, *reference.record.stand_ins))),
        budgets=(),
        noise=noise_of(reference.turns, limits),
        **judged(judgement),
    )


def _twins(reference: Run, candidate: Run) -> list[tuple[Turn, Turn]]:
    """Pair the turns that both runs took, in the candidate's order."""
    known = {turn.key: turn for turn in reference.turns}
    return [(known[turn.key], turn) for turn in candidate.turns if turn.key in known]


def _rejudged(reference: Run, candidate: Run) -> list[float]:
    """List the reference's budgets in ms that differ from those of the twin turns."""
    twins = _twins(reference, candidate)
    return [then.budget_ms for then, now in twins if then.budget_ms != now.budget_ms]


def _starved(reference: Run, candidate: Run, judgement: Judgement | None) -> list[str]:
    """List why a late caller forbids a verdict; empty if it does not."""
    if (why := too_starved(candidate.turns, judgement)) is not None:
        return [why]
    why = too_starved(reference.turns, None)
    return [] if why is None else [f"in the reference's run, {why}"]


def why_not_comparable(reference: Run, candidate: Run) -> list[str]:
    """List every reason why two runs' figures may differ although their agents do not."""
    then, now = reference.record, candidate.record
    reasons: list[str] = []
    for name, run in (("reference", reference), ("candidate", candidate)):
        if (why := _why_not_usable(run)) is not None:
            reasons.append(f"the {name}'s run {why}")
    if (then.scored is None) != (now.scored is None):
        scored, played = ("candidate", "reference") if now.scored else ("reference", "candidate")
        reasons.append(
            f"the {scored}'s turns were found in recordings, the {played}'s were played: score the "
            "recordings of both"
        )
    elif now.scored is None and then.machine.fingerprint != now.machine.fingerprint:
        reasons.append(
            f"they were played on two machines: {then.machine.cpu}, {then.machine.cores} cores "
            f"({then.machine.fingerprint}), and {now.machine.cpu}, {now.machine.cores} cores "
            f"({now.machine.fingerprint})"
        )
    if then.metrics_version != now.metrics_version:
        reasons.append(
            f"their figures are of metrics versions {then.metrics_version} and "
            f"{now.metrics_version}"
        )
    if then.starved_ms != now.starved_ms:
        reasons.append(
            f"the reference's caller might be {then.starved_ms:g} ms late, the candidate's "
            f"{now.starved_ms:g}"
        )
    changed = [
        name
        for name, content in now.scenario_hashes.items()
        if then.scenario_hashes.get(name, content) != content
    ]
    if changed:
        reasons.append(
            f"these scenarios or their recordings changed in between: {', '.join(changed)}"
        )
    before, after = map(report_words.over_words, map(baselines.line_of, (then, now)))
    numbers = [run.line and run.line.settings for run in (then, now)]
    if before != after or numbers[0] != numbers[1]:
        other = ", with other numbers" if before == after else ""
        reasons.append(f"the reference was played {before}, the candidate {after}{other}")
    if (line := lines_differ(then.agent, now.agent)) is not None:
        reasons.append(line)
    return reasons


def _why_not_usable(run: Run) -> str | None:
    """Return why a run's figures cannot be used; None if they can."""
    record, turns = run.record, len(run.turns)
    if record.failure is not None:
        return f"ended early: {record.failure}"
    if record.finished_utc is None:
        return "has no end: it was killed, or is being played"
    if status_of(record, turns) != "finished":
        return f"holds {turns} of {record.planned_turns} planned turns"
    if not record.valid:
        return f"is not valid: {'; '.join(record.why_invalid) or 'no reason was stored'}"
    return None


def diff_report(record: CheckRecord, reference: Run, candidate: Run, folder: Path) -> Report:
    """Report the comparison as a check's report, for a terminal or for a page in `folder`."""
    report = check_report(record, candidate, reference, folder)
    # A check says how many more rounds would decide: these two have been played.
    kept = [line for line in report.lead if line.label != "to decide"]
    lead = [*kept, *(Line(name, text) for name, text in _about(reference, candidate))]
    return replace(
        report,
        command="history diff",
        subject=f"{candidate.path.name} against {reference.path.name}",
        lead=lead,
        sections=[
            Section("The runs", [_side_by_side(reference, candidate)]),
            *report.sections,
        ],
    )


def _side_by_side(reference: Run, candidate: Run) -> Table:
    """Compare the two runs' settings and figures, over all of their turns."""
    head = (Column("run"), Column("reference", left=True), Column("candidate", left=True))
    sides = [_side(run) for run in (reference, candidate)]
    rows = [(name, *(side[name] for side in sides)) for name in sides[0]]
    return Table(head, [row for row in rows if any(row[1:])])


def _side(run: Run) -> dict[str, str]:
    record, summary = run.record, run.summary
    return {
        "folder": run.path.name,
        "label": record.label,
        "began": report_words.instant(record.started_utc),
        "commit": report_words.commit(record.measured_commit),
        "turns": str(summary.turns),
        "hit rate": report_words.hit_rate_words(summary.hit_rate)[0],
        "cut-ins": report_words.hit_rate_words(summary.cut_ins)[0],
        **{f"gap {n}": report_words.percentile_words(p)[0] for n, p in summary.gap_ms.items()},
    }


def _about(reference: Run, candidate: Run) -> list[tuple[str, str]]:
    apart = abs(started_at(candidate.record) - started_at(reference.record))
    found = [
        (
            "apart",
            f"the runs began {_apart_words(apart)} apart and were not played side by side, so "
            "whatever the machine did in between counts as a difference of the agents",
        )
    ]
    theirs, ours = ({turn.key for turn in run.turns} for run in (reference, candidate))
    if theirs != ours:
        found.append(
            (
                "paired",
                f"{report_words.turns_words(len(theirs & ours))} that both took; "
                f"{len(theirs - ours)} of the reference and {len(ours - theirs)} of the candidate "
                "have no twin",
            )
        )
    if rejudged := _rejudged(reference, candidate):
        theirs_ms = ", ".join(f"{ms:g}" for ms in sorted(set(rejudged)))
        found.append(
            (
                "budget",
                f"{report_words.turns_words(len(rejudged))} of the reference were played under "
                f"another budget ({theirs_ms} ms) and are judged by the candidate's",
            )
        )
    return found


def _apart_words(apart: timedelta) -> str:
    minutes = apart.total_seconds() / 60
    if minutes < 2:
        return f"{60 * minutes:.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{apart.days} days"


def diff_json(record: CheckRecord, reference: Run, candidate: Run) -> dict[str, Any]:
    """Build the output of `--json`: the keys of a check, and both folders."""
    return {
        **record.model_dump(mode="json"),
        "reference_path": str(reference.path),
        "candidate_path": str(candidate.path),
        "rejudged": len(_rejudged(reference, candidate)),
        "differences": [
            {"name": name, "reference": before, "candidate": after}
            for name, before, after in words.differences(record)
        ],
    }
