"""A simulation on the terminal."""

from rich.text import Text

from turngap.fleet import words
from turngap.fleet.record import LoadRecord, SimulationRecord
from turngap.report import layout

COLUMNS = (
    "calls", "", "hit rate", "95 % interval", "gap p50", "p95", "p99", "LLM p50", "LLM p95",
    "batch", "cached", "part-h", "price",
)  # fmt: skip
# Narrower terminals get fewer columns, so that none is cut.
NARROW = 120
LEFT_OUT_WHEN_NARROW = frozenset({"p99", "LLM p95", "batch", "cached", "part-h"})
VERDICT_STYLES = {"held": "green", "not held": "red", "not sure": "yellow"}


def simulation_block(record: SimulationRecord, width: int) -> Text:
    """The answer, what it rests on, and the loads."""
    lines = [Text(words.SIMULATED, style="bold yellow"), Text()]
    lines += layout.wrapped("answer", words.answer(record), width, "bold")
    for pool in record.pools:
        lines += layout.wrapped("fleet", words.pool(pool), width)
    lines += layout.wrapped("turns", words.turns_are(record), width)
    lines += layout.wrapped("gap", words.gap_is(record), width)
    lines += layout.wrapped("callers", words.callers_are(record), width)
    lines += layout.wrapped("speed", words.speed(record), width)
    price = _price_note(record)
    lines += layout.wrapped("price", price, width) if price else []
    return layout.block([*lines, Text(), *_table(record, width), *_legend(width)])


def simulation_svg(record: SimulationRecord, name: str) -> str:
    """A picture of the terminal after `turngap report NAME`."""
    return layout.svg(name, [simulation_block(record, NARROW)], NARROW)


def _table(record: SimulationRecord, width: int) -> list[Text]:
    rows = [COLUMNS, *(_cells(load) for load in record.loads)]
    shown = [
        index
        for index, name in enumerate(COLUMNS)
        if width >= NARROW or name not in LEFT_OUT_WHEN_NARROW
    ]
    widths = {index: max(len(row[index]) for row in rows) for index in shown}
    lines: list[Text] = []
    for number, row in enumerate(rows):
        line = Text(style="bold" if number == 0 else "")
        for index in shown:
            # The verdict, which has no title, reads from the left.
            is_verdict = not COLUMNS[index]
            cell = (
                row[index].ljust(widths[index]) if is_verdict else row[index].rjust(widths[index])
            )
            line.append(cell, style=VERDICT_STYLES.get(row[index], "") if is_verdict else "")
            line.append("  ")
        lines.append(line)
    return lines


def _cells(load: LoadRecord) -> tuple[str, ...]:
    return (
        words.count(load.calls),
        words.verdict(load),
        words.share(load.hit_rate),
        words.interval(load.hit_rate),
        words.ms(load.gap_ms["p50"]),
        words.ms(load.gap_ms["p95"]),
        words.ms(load.gap_ms["p99"]),
        words.ms(load.llm_ms["p50"]),
        words.ms(load.llm_ms["p95"]),
        "–" if load.batch is None else f"{load.batch:.1f}",
        f"{100 * load.cached:.0f} %",
        words.hours(load),
        words.usd(load),
    )


def _price_note(record: SimulationRecord) -> str | None:
    reasons = {load.why_no_usd for load in record.loads if load.why_no_usd}
    return f"none: {', '.join(sorted(reasons))} (--part-hour-usd)" if reasons else None


def _legend(width: int) -> list[Text]:
    note = "gap and LLM in ms; price of 1000 turns"
    if width >= NARROW:
        note += "; cached: of prompt tokens; part-h: accelerator-hours for 1000 turns"
    return [Text(note, style="dim")]
