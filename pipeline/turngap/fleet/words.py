"""A simulation's figures as people read them."""

from decimal import Decimal

from turngap.core.stats import Percentile
from turngap.fleet.record import AgentCpu, Capacity, LoadFigures, PoolRecord, SimulationRecord
from turngap.report.levels import HELD, count, share

# What is printed wherever figures are: nobody shall take them for measured ones.
SIMULATED = "simulated: nothing here was measured on this hardware"


def ms(quantile: Percentile) -> str:
    """Whole milliseconds, or a dash."""
    return "–" if quantile.value is None else f"{quantile.value:,.0f}"


def usd(load: LoadFigures) -> str:
    """`$0.412`, or a dash."""
    price = load.usd_per_1000
    if price is None:
        return "–"
    # Cents where there are any, else two digits.
    return f"${price:,.2f}" if price >= 1 else f"${_two_digits(price)}" if price else "$0"


def hours(load: LoadFigures) -> str:
    """Accelerator-hours of 1000 turns."""
    spent = load.part_hours_per_1000
    return "–" if spent is None else f"{spent:.2f}" if spent >= 1 else _two_digits(spent)


def _two_digits(value: float) -> str:
    """`0.000095`, not `9.5e-05`."""
    return f"{Decimal(f'{value:#.2g}'):f}"


def answer(record: SimulationRecord) -> str:
    """Answer the search in one sentence."""
    wanted = f"{100 * record.target:.4g} % of turns within {record.budget_ms:.0f} ms"
    capacity = record.capacity
    if capacity is None:
        verdicts: dict[str, list[str]] = {}
        for load in record.loads:
            verdicts.setdefault(HELD[load.holds][0], []).append(count(load.calls))
        held = "; ".join(f"{said} at {', '.join(calls)}" for said, calls in verdicts.items())
        return f"{wanted}: {held} calls at once"
    return _searched(capacity, wanted, record)


def agent_cpu(agent: AgentCpu | None) -> str:
    """Say how many calls the agent's machine carries; empty if it is not described."""
    if agent is None:
        return ""
    return (
        f"{agent.cores:g} cores carry at most {agent.most_calls:.3g} calls of "
        f"{agent.cores_per_call:.3g} cores each: a bound, since how calls wait for each other's "
        "work is not simulated"
    )


def _searched(capacity: Capacity, wanted: str, record: SimulationRecord) -> str:
    if capacity.of_llm is not None:
        held = "not one call" if capacity.held is None else f"at most {count(capacity.held)} calls"
        return (
            f"{wanted}: {held} at once, because more take all of the agent's cores; the LLM's "
            f"servers would hold {count(capacity.of_llm)}"
        )
    if capacity.held is None:
        first = record.loads[0]
        what = "not one call" if first.holds is False else "not sure of one call"
        gap, llm = ms(first.gap_ms["p50"]), ms(first.llm_ms["p50"])
        return (
            f"{what}: at {count(first.calls)} at once {share(first.hit_rate)} of turns are "
            f"within {record.budget_ms:.0f} ms, and {100 * record.target:.4g} % are asked for; the "
            f"gap is {gap} ms p50, of which the LLM takes {llm}"
        )
    if capacity.not_held is None:
        return f"{wanted}: {count(capacity.held)} calls at once and more (the search ended there)"
    next_ = next(load for load in record.loads if load.calls == capacity.not_held)
    beyond = "no longer" if next_.holds is False else "that is not sure"
    return f"{wanted}: up to {count(capacity.held)} calls at once; at {count(next_.calls)} {beyond}"


def pool(described: PoolRecord) -> str:
    """Describe one pool in a line."""
    replicas = f"{described.replicas} × " if described.replicas > 1 else ""
    parts = f"{described.parts} × " if described.parts > 1 else ""
    batch = f"{described.policy}, batch {described.max_batch}"
    if described.chunk_tokens:
        batch += f", {described.chunk_tokens} tokens a step"
    if described.max_wait_ms is not None:
        batch += f", leaves after {described.max_wait_ms:g} ms"
    if described.speculation:
        batch += f", drafts accepted at {100 * described.speculation['acceptance']:g} %"
    split = f"({parts}{described.hardware})" if replicas and parts else parts + described.hardware
    return (
        f"{replicas}{split}: {described.model} {described.weights}, KV {described.kv}; {batch}; "
        f"{described.alone_tokens_per_s:,.0f} tokens/s alone"
    )


def turns_are(record: SimulationRecord) -> str:
    """Say where the turns come from."""
    work = record.workload
    if not work.runs:
        return "one turn, as the flags describe it"
    left_out = sum(work.left_out.values())
    why = "; ".join(f"{n} × {reason}" for reason, n in work.left_out.items())
    rest = f" ({left_out} left out: {why})" if left_out else ""
    return f"{work.samples} measured turns of {', '.join(work.runs)}{rest}"
