"""A simulation's figures as people read them."""

from decimal import Decimal

from turngap.core.stats import Percentile, Proportion
from turngap.fleet.record import (
    Capacity,
    LoadFigures,
    PoolRecord,
    SimulationRecord,
)

# What is printed wherever figures are: nobody shall take them for measured ones.
SIMULATED = "simulated: nothing here was measured on this hardware"


def count(calls: float) -> str:
    """Calls: `412`, `0.5`."""
    return f"{calls:,.0f}" if calls >= 10 else f"{calls:g}"


def ms(quantile: Percentile) -> str:
    """Whole milliseconds, or a dash."""
    return "–" if quantile.value is None else f"{quantile.value:,.0f}"


def share(rate: Proportion) -> str:
    """`97.3 %`; never rounded up to what it is not."""
    return "–" if rate.value is None else _percent(rate.value)


def interval(rate: Proportion) -> str:
    """`96.9 to 97.6 %`."""
    if rate.low is None or rate.high is None:
        return "–"
    return f"{_percent(rate.low, unit=False)} to {_percent(rate.high)}"


def _percent(value: float, *, unit: bool = True) -> str:
    text = f"{100 * value:.1f}"
    if value < 1 and text == "100.0":
        text = ">99.9"
    elif value > 0 and text == "0.0":
        text = "<0.1"
    return f"{text} %" if unit else text


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


def verdict(load: LoadFigures) -> str:
    """Whether the load is held, in one word."""
    return {True: "held", False: "not held", None: "not sure"}[load.holds]


def answer(record: SimulationRecord) -> str:
    """The one sentence that a search is for."""
    wanted = f"{100 * record.target:.4g} % of turns within {record.budget_ms:.0f} ms"
    capacity = record.capacity
    if capacity is None:
        return f"{wanted}: {_held(record)} calls at once"
    return _searched(capacity, wanted, record)


def _held(record: SimulationRecord) -> str:
    """Which of the loads that were asked for: `held at 100, 200; not held at 400`."""
    verdicts = dict.fromkeys(verdict(load) for load in record.loads)
    calls = {
        said: ", ".join(count(load.calls) for load in record.loads if verdict(load) == said)
        for said in verdicts
    }
    return "; ".join(f"{said} at {loads}" for said, loads in calls.items())


def _searched(capacity: Capacity, wanted: str, record: SimulationRecord) -> str:
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
    """One pool in a line."""
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
    """Where the turns come from."""
    work = record.workload
    if not work.runs:
        return "one turn, as the flags describe it"
    left_out = sum(work.left_out.values())
    why = "; ".join(f"{n} × {reason}" for reason, n in work.left_out.items())
    rest = f" ({left_out} left out: {why})" if left_out else ""
    return f"{work.samples} measured turns of {', '.join(work.runs)}{rest}"


def callers_are(record: SimulationRecord) -> str:
    """What a call is like."""
    work, mean = record.workload, record.workload.mean
    return (
        f"{work.turns_per_call:.1f} turns a call; in the mean {mean['speech_ms'] / 1000:.1f} s of "
        f"speech, {mean['reply_ms'] / 1000:.1f} s of reply, {work.think_ms:.0f} ms (median) to "
        f"think; prompts from {work.system_tokens} tokens, replies of {mean['reply_tokens']:.0f}, "
        f"spoken from token {mean['opening_tokens']:.0f} on"
    )


def gap_is(record: SimulationRecord) -> str:
    """What of the gap is not the LLM's."""
    mean = record.workload.mean
    return (
        f"{mean['before_ms']:.0f} ms before the LLM and {mean['after_ms']:.0f} ms after it, in the "
        "mean; the rest is simulated"
    )


def speed(record: SimulationRecord) -> str:
    """How fast the simulation was."""
    ratio = record.virtual_s / record.wall_s if record.wall_s else 0.0
    return f"{record.virtual_s:,.0f} s of calls in {record.wall_s:.1f} s ({ratio:,.0f} × real time)"
