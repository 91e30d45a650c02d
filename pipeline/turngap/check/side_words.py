"""What reports of a check say of its two agents: how each did, and what is set differently."""

from turngap.check.lines import lines_differ
from turngap.check.record import CheckRecord, SideRecord
from turngap.core.untrusted import printable
from turngap.report import measured_words, turn_words, words


def own_name(record: CheckRecord) -> str:
    """Name the checked agent: without a reference it is not a candidate."""
    return "agent" if record.reference is None else "candidate"


def sides(record: CheckRecord) -> list[tuple[str, SideRecord]]:
    """List the agents by name, the checked one first."""
    others = [] if record.reference is None else [("reference", record.reference)]
    return [(own_name(record), record.candidate), *others]


def gap_words(record: CheckRecord) -> str:
    """Say how long each side took: typical turn, slow ones, slowest; empty if unknown.

    The slowest reply is given only for the agent that was checked.
    """
    told: list[str] = []
    for name, side in sides(record):
        if side.gap is None:
            continue
        text = ", ".join(
            f"{of} {figure} ({remark})"
            for of, (figure, remark) in (
                ("p50", words.percentile_words(side.gap.p50)),
                ("p95", words.percentile_words(side.gap.p95)),
            )
        )
        if side is record.candidate and side.gap.slowest is not None:
            scenario, number, _, repeat = side.gap.slowest
            turn = turn_words.take_name(scenario, number, repeat)
            text += f", slowest reply {words.ms(side.gap.slowest_ms or 0.0)} ms ({turn})"
        told.append(text if record.reference is None else f"{name} {text}")
    return "; ".join(told)


def cut_ins_words(record: CheckRecord) -> str:
    """Say how many turns each side cut into, without which a gap means little; else empty."""
    told = [
        (f"the {name}", words.cut_in_sentence(side.cut_ins))
        for name, side in sides(record)
        if side.cut_ins is not None and side.cut_ins.n
    ]
    if len(told) > 1 and told[0][1] == told[1][1]:
        return f"both the reference and the candidate {told[0][1]}"
    return "; ".join(map(" ".join, told))


def accepted_words(record: CheckRecord) -> str:
    """Say how late the caller may be, and how far it may put either side's gaps off."""
    errors = [side.caller_error_ms for _, side in sides(record) if side.caller_error_ms is not None]
    return measured_words.accepted_words(record.starved_ms, max(errors, default=None))


def no_reference_words(record: CheckRecord) -> str:
    """Say what takes the place of a reference."""
    return "none: budgets only" if record.budgets else "none"


def side_name(side: SideRecord) -> str:
    """Name the agent as `--agent` and `--against` take it: `DIR#STACK` for a checkout's."""
    named = side.agent.get("stack") or side.agent.get("url") or "agent"
    if checkout := side.agent.get("checkout"):
        named = f"{checkout}#{named}"
    return printable(str(named))


def side_words(side: SideRecord) -> str:
    """Describe an agent: its name, its turns, and whether its run may be used."""
    parts = [side_name(side), words.turns_words(side.turns)]
    if side.run is None:
        parts.append("stored baseline")
    else:
        parts.append(f"run {printable(side.run)}")
    if side.valid is not None:
        # Percentiles of the run alone do not hold then; a verdict bounds what the caller added.
        alone = " by itself" if side.starved else ""
        parts.append("valid" if side.valid else f"INVALID{alone}")
    return " · ".join(parts)


def lines_words(record: CheckRecord) -> str:
    """Say that the two have different lines; empty if they do not."""
    differ = record.reference and lines_differ(record.reference.agent, record.candidate.agent)
    if not differ or record.verdict == "cannot_compare":
        return ""
    return (
        f"{differ}: the gaps are comparable at the caller's ear, but each agent heard the person "
        "in another form."
    )


def differences(record: CheckRecord) -> list[tuple[str, str, str]]:
    """List the agents' different settings: name, reference's value, candidate's value.

    For an agent of another checkout only its commit and overrides are known, not its settings.
    """
    if record.reference is None:
        return []
    both = record.reference, record.candidate
    a, b = (
        {printable(k): printable(v) for k, v in words.flat(side.agent) if v not in ("{}", "[]")}
        for side in both
    )
    names = dict.fromkeys([*a, *b])
    if any("checkout" in side.agent for side in both):
        names = [
            n for n in names if n in ("checkout", "commit", "sets", "seed") or (n in a and n in b)
        ]
    return [(n, a.get(n, "–"), b.get(n, "–")) for n in names if a.get(n) != b.get(n)]
