"""Measure how exact `turngap score` is, and how fast.

    python benchmarks/score_calls.py --voices DIR [--tuning] [--wrong]
    python benchmarks/score_calls.py --runs RUN...
    python benchmarks/score_calls.py --speed

With --voices: calls whose every turn is known (`known_calls.py`), with the people of DIR, labelled
by hand, and the shipped synthetic voices, each in turn as person and agent, in several formats, in
noise and with echo. The rules of `turngap score` were looked at with every other voice only
(--tuning, from the first by name); the figures in the documentation are of the others.

With --runs: stored runs of `turngap replay`. The audio of each conversation is put together again
as one recording and scored, and each gap is held against the one that was measured live.

With --speed: CPU time for one call of five minutes, and for twenty on two workers.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from known_calls import (
    Format,
    MadeCall,
    TrueTurn,
    Voice,
    made_call,
    people,
    synthetic,
    with_echo,
    with_noise,
    write_call,
)

from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import ns_to_ms
from turngap.core.results import Turn
from turngap.scenario.speech import DOUBTFUL_MS
from turngap.score.hearing import hear_call
from turngap.score.recording import read_recording

# The next turn of a call is further off.
NEAR_MS = 900.0
NO_REPLY_MS = 10_000.0
TURNS_A_CALL = 4
ROUNDS = 2

Change = Callable[[MadeCall], MadeCall]


EXTRA = TrueTurn("extra", 0.0, 0.0, None, "none")


@dataclass(frozen=True)
class Compared:
    """A true turn and what was heard of it: None if it was missed; `EXTRA` heard one too many."""

    call: str
    truth: TrueTurn
    heard: Turn | None

    @property
    def off_ms(self) -> float | None:
        if self.heard is None or self.heard.gap_ms is None or self.truth.gap_ms is None:
            return None
        return self.heard.gap_ms - self.truth.gap_ms

    @property
    def stated_ms(self) -> float:
        assert self.heard is not None
        label = self.heard.audio.label_error_ms if self.heard.audio else None
        return (label or 0.0) + (self.heard.onset_spread_ms or 0.0)

    @property
    def within(self) -> bool:
        """Return whether the error is not larger than stated."""
        return self.off_ms is not None and abs(self.off_ms) <= self.stated_ms

    @property
    def flagged(self) -> bool:
        """Return whether the turn says that it may be so far off: by its error, or in a note."""
        if self.heard is None:
            return False
        noted = bool(self.heard.notes) or self.heard.left_out is not None
        return noted or self.stated_ms > DOUBTFUL_MS

    @property
    def same_outcome(self) -> bool:
        return self.heard is not None and self.heard.outcome == self.truth.outcome

    @property
    def wrong(self) -> bool:
        return not self.same_outcome or (self.off_ms is not None and abs(self.off_ms) > DOUBTFUL_MS)

    def __str__(self) -> str:
        true = f"{self.truth.start_ms:.0f}–{self.truth.end_ms:.0f} gap {self.truth.gap_ms}"
        if self.heard is None:
            return f"{self.call}: {self.truth.kind} {true} {self.truth.outcome}: missed"
        gap = "none" if self.heard.gap_ms is None else f"{self.heard.gap_ms:.0f}"
        return (
            f"{self.call}: {self.truth.kind} {true} {self.truth.outcome}: turn {self.heard.turn} "
            f"ends {end_ms(self.heard):.0f} gap {gap} ±{self.stated_ms:.0f} {self.heard.outcome}"
            f" {self.heard.left_out or ''} {dict(self.heard.notes) or ''}"
        )


def end_ms(turn: Turn) -> float:
    """Return the person's end on the recording's clock."""
    return next(ns_to_ms(mark.at_ns) for mark in turn.marks if mark.name == "user_end")


def compare(call: str, truths: Iterable[TrueTurn], turns: Sequence[Turn]) -> list[Compared]:
    """Give each true turn the heard one whose end is nearest; the others are extra."""
    left = list(turns)
    compared = []
    for truth in truths:
        near = [turn for turn in left if abs(end_ms(turn) - truth.end_ms) <= NEAR_MS]
        heard = min(near, key=lambda turn: abs(end_ms(turn) - truth.end_ms), default=None)
        if heard is not None:
            left.remove(heard)
        compared.append(Compared(call, truth, heard))
    return compared + [Compared(call, EXTRA, turn) for turn in left]


def score(file: Path) -> Sequence[Turn]:
    recording = read_recording(file, person="left")
    return hear_call(
        recording, file.stem, budget_ms=DEFAULT_BUDGET_MS, no_reply_ms=NO_REPLY_MS
    ).turns


HEAD = (
    f"{'condition':22}{'turns':>6}{'extra':>6}{'missed':>7}{'n':>5}{'median':>8}{'p95':>7}"
    f"{'outcomes':>10}{'within':>8}{'> 100':>7}  flagged"
)


def line(name: str, every: Sequence[Compared]) -> str:
    compared = [each for each in every if each.truth is not EXTRA]
    off = [abs(each.off_ms) for each in compared if each.off_ms is not None]
    far = [each for each in compared if each.off_ms is not None and abs(each.off_ms) > DOUBTFUL_MS]
    median, high = (np.percentile(off, q) if off else float("nan") for q in (50, 95))
    missed = sum(each.heard is None for each in compared)
    same = sum(each.same_outcome for each in compared)
    return (
        f"{name:22}{len(compared):6}{len(every) - len(compared):6}{missed:7}{len(off):5}"
        f"{median:8.0f}{high:7.0f}{same / max(1, len(compared)):10.1%}"
        f"{sum(each.within for each in compared) / max(1, len(off)):8.0%}{len(far):7}"
        f"  {sum(each.flagged for each in far)} of {len(far)}"
    )


def show(name: str, every: Sequence[Compared], *, wrong: bool) -> None:
    print(line(name, every), flush=True)
    if not wrong:
        return
    for kind in sorted({each.truth.kind for each in every} - {"extra"}):
        print(line(f"    {kind}", [each for each in every if each.truth.kind == kind]))
    for each in every:
        if each.wrong:
            print(f"        {each}")


# --- made calls -----------------------------------------------------------------------------------


def same(call: MadeCall) -> MadeCall:
    return call


CONDITIONS: dict[str, tuple[Format, Change]] = {
    "24 kHz": (Format(24_000), same),
    "8 kHz": (Format(8_000), same),
    "µ-law": (Format(8_000, subtype="ULAW"), same),
    "Opus": (Format(48_000, ".ogg", "OPUS"), same),
    "noise of 10 dB": (Format(16_000), lambda call: with_noise(call, 10)),
    "echo of −20 dB": (Format(16_000), lambda call: with_echo(call, -20)),
}


def made_calls(folder: Path, *, tuning: bool) -> Iterator[MadeCall]:
    """Yield calls with every other voice: half with people, half with synthetic persons."""
    first = 0 if tuning else 1
    recorded, (made, hums) = people(folder)[first::2], synthetic()
    made = sorted(made, key=lambda voice: voice.name)[first::2]
    for name, persons, agents in (("people", recorded, made), ("made", made, recorded)):
        for seed in range(ROUNDS):
            order: list[Voice] = list(persons)
            np.random.default_rng(seed).shuffle(order)  # type: ignore[arg-type]
            parts = [order[n : n + TURNS_A_CALL] for n in range(0, len(order), TURNS_A_CALL)]
            for number, part in enumerate(parts):
                ending = "no_answer" if number % 3 == 0 else "answer"
                one = 100 * seed + number
                yield made_call(f"{name}-{one}", part, agents, hums, one, ending=ending)


def on_made_calls(folder: Path, *, tuning: bool, wrong: bool, only: str) -> None:
    print(HEAD)
    calls = list(made_calls(folder, tuning=tuning))
    for name, (format, change) in CONDITIONS.items():
        if only and only not in name:
            continue
        every: list[Compared] = []
        with tempfile.TemporaryDirectory() as temporary:
            for call in calls:
                file = write_call(change(call), Path(temporary), format)
                every += compare(call.name, call.turns, score(file))
        show(name, every, wrong=wrong)


# --- stored runs ----------------------------------------------------------------------------------


def whole_calls(run: Path, folder: Path) -> Iterator[tuple[Path, list[TrueTurn]]]:
    """Put each conversation of a run together: its turns' files lie where they were recorded."""
    lines = (run / "turns.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(text) for text in lines]
    for (scenario, repeat), group in groupby(
        rows, key=lambda row: (row["scenario"], row["repeat"])
    ):
        turns = [row for row in group if row["audio"]]
        if not turns:
            continue
        begins = [_begins_ms(turn) for turn in turns]
        zero = min(begins)
        pieces = [soundfile.read(run / turn["audio"]["file"], dtype="int16") for turn in turns]
        rate = pieces[0][1]
        firsts = [round((at - zero) * rate / 1000) for at in begins]
        size = max(first + len(pcm) for first, (pcm, _) in zip(firsts, pieces, strict=True))
        whole = np.zeros((size, 2), np.int16)
        truths = []
        for turn, at, first, (pcm, _) in zip(turns, begins, firsts, pieces, strict=True):
            whole[first : first + len(pcm)] = pcm
            start, end = (turn["audio"][f"user_{side}_ms"] + at - zero for side in ("start", "end"))
            truths.append(TrueTurn("live", start, end, turn["gap_ms"], turn["outcome"]))
        file = folder / f"{scenario}-{repeat}.wav"
        soundfile.write(file, whole, rate)
        yield file, truths


def _begins_ms(turn: dict[str, Any]) -> float:
    speech = next(
        event
        for event in turn["events"]
        if event["event"] == "UserSpeech" and event["turn"] == turn["turn"]
    )
    return ns_to_ms(speech["start_ns"]) - turn["audio"]["user_start_ms"]


def on_runs(runs: Sequence[Path], *, wrong: bool) -> None:
    print(HEAD)
    for run in runs:
        every: list[Compared] = []
        with tempfile.TemporaryDirectory() as temporary:
            for file, truths in whole_calls(run, Path(temporary)):
                every += compare(file.stem, truths, score(file))
        show(run.name[-22:], every, wrong=wrong)


# --- speed ----------------------------------------------------------------------------------------


def long_call(minutes: float) -> MadeCall:
    """Make a call of synthetic voices of some minutes."""
    voices, hums = synthetic()
    order = [voices[n % len(voices)] for n in range(int(minutes * 14))]
    call = made_call("long", order, voices, hums, 1)
    return replace(call, pcm=call.pcm[: int(minutes * 60 * 24_000)])


def on_speed() -> None:
    call = long_call(5)
    seconds = len(call.pcm) / 24_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "calls")
        folder.mkdir()
        file = write_call(call, folder, Format(8_000, subtype="ULAW"))
        score(file)
        began = time.process_time()
        turns = score(file)
        used = time.process_time() - began
        print(
            f"one call of {seconds:.0f} s, {len(turns)} turns: {used:.2f} s of CPU, "
            f"{1000 * used / seconds:.1f} ms a second of call"
        )
        for number in range(1, 20):
            write_call(replace(call, name=f"call-{number}"), folder, Format(8_000, subtype="ULAW"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        command = [sys.executable, "-m", "turngap", "score", str(folder), "--person", "left"]
        subprocess.run(
            [*command, "--workers", "2", "--out", str(Path(temporary, "runs")), "--quiet"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        took = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"20 such calls on 2 workers: {took:.0f} s, {used:.0f} s of CPU, at most "
            f"{after.ru_maxrss / 1024:.0f} MB a process; extrapolated to 1,000 calls: "
            f"{50 * took / 60:.0f} min"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--voices", type=Path, metavar="DIR", help="recordings of people")
    parser.add_argument("--tuning", action="store_true", help="take the half for tuning")
    parser.add_argument("--only", default="", metavar="TEXT", help="only conditions with it")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN", default=[])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--wrong", action="store_true", help="show the wrong turns")
    args = parser.parse_args()
    if args.voices:
        on_made_calls(args.voices, tuning=args.tuning, wrong=args.wrong, only=args.only)
    if args.runs:
        on_runs(args.runs, wrong=args.wrong)
    if args.speed:
        on_speed()


if __name__ == "__main__":
    main()
