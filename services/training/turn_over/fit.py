"""Fit the probability that a turn is over on generated turns, and write it next to its code.

    python -m training.turns.make --set fit --out FIT
    python -m training.turn_over.fit FIT

Prints how well the fit judges voices that were left out of it.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from training.turn_over.hearing import Hearing, recogniser_of
from training.turn_over.silences import Look, looks_into
from training.turn_over.takes import takes_in
from training.turns.plan import PAUSE_LEAST_MS, PAUSE_MEDIAN_MS, PAUSE_MOST_MS, PAUSE_SIGMA
from turngap_services.turn import over as model
from turngap_services.turn.over import FEATURES, Over, Pauses

Matrix = NDArray[np.float64]

SHIPPED = Path(model.__file__).with_name("over.json")
PAUSES = Pauses(
    median_ms=PAUSE_MEDIAN_MS,
    sigma=PAUSE_SIGMA,
    least_ms=PAUSE_LEAST_MS,
    most_ms=PAUSE_MOST_MS,
)
# Pulls what hardly occurs to nothing: as if each feature's coefficient were known to lie within
# about one of 0. The bias is free.
RIDGE = 1.0
# No one's last word says more than this, in log odds, as one in ten is misheard.
SUREST_WORDS = 2.2
# What fewer turns hold is left at nothing: "yes" alone is in three turns of the set, goes on in two
# of them, and would be held for over a second.
FEWEST = 10
# Smart turn was trained on people, and what it says of synthetic voices is next to nothing. So its
# weight is not fitted on them. It calls 57 of 62 turns of people complete (benchmarks on recordings
# that are not ours to publish), and on eot-bench it cuts in on 35.2 % of the turns at 300 ms where
# silence alone does on 55.6 %: of the pauses it calls 63 % complete. So "complete" is worth
# log(.92/.63), and "incomplete" log(.08/.37).
SMART_TURN = {"judged": -1.53, "complete": 1.91}
# The recogniser here knows the turns' sentences, and an LLM is not asked about its transcripts. As
# Whisper tiny.en reads 190 of the turns, the log odds that SmolLM2-135M gives to the message's end
# have a slope of 0.41, and the bias is 1.2 more. On 25 recordings of people (131 pauses, most of
# them spliced in) the AUC rises from 0.81 to 0.90, and on the set `judge` from 0.74 to 0.80.
# Of that bias, 0.54 is left out, as if the certainty 0.7 were 0.8: the better evidence pays for
# fewer cut-ins, and the hold stays about as long.
LLM = {"read": 0.66, "whole": 0.4}
FIXED = SMART_TURN | LLM


def _bounds(name: str) -> tuple[float | None, float | None]:
    if name in FIXED:
        return (0.0, 0.0)
    return (-SUREST_WORDS, SUREST_WORDS) if name in model.ENDINGS else (None, None)


_BOUNDS = [_bounds(name) for name in FEATURES]
_FREE = np.array([name == "bias" for name in FEATURES])
# Just before its longest, a pause has all but no odds left to continue.
_LEAST_SHARE = 1e-3


def rows(looks: Sequence[Look]) -> tuple[Matrix, Matrix, Matrix]:
    """Return features (n, features), what silence adds to the log odds (n,), and truth (n,)."""
    x = np.zeros((len(looks), len(FEATURES)))
    for row, look in zip(x, looks, strict=True):
        for name, value in look.evidence.features().items():
            row[FEATURES.index(name)] = value
    for ending in seldom(looks).intersection(FEATURES):
        x[:, FEATURES.index(ending)] = 0.0
    silence = [-np.log(max(PAUSES.longer(look.ms), _LEAST_SHARE)) for look in looks]
    return x, np.array(silence), np.array([float(look.is_over) for look in looks])


def fitted(x: Matrix, silence: Matrix, truth: Matrix) -> Matrix:
    """Return the maximum-likelihood weights for the looks."""

    def cost(weights: Matrix) -> tuple[float, Matrix]:
        odds = x @ weights + silence
        loss = np.logaddexp(0, odds) - truth * odds
        slope = x.T @ (expit(odds) - truth) + RIDGE * weights * ~_FREE
        return float(loss.sum() + RIDGE / 2 * np.sum(weights[~_FREE] ** 2)), slope

    start = np.zeros(x.shape[1])
    return minimize(cost, start, jac=True, method="L-BFGS-B", bounds=_BOUNDS).x


def seldom(looks: Sequence[Look]) -> set[str]:
    """Return the word endings that occur in too few turns for any conclusion."""
    seen = {(look.evidence.ending, look.take) for look in looks}
    return {e for e in model.ENDINGS if sum(ending == e for ending, _ in seen) < FEWEST}


def left_out(looks: Sequence[Look]) -> Matrix:
    """Return each look's log odds by a fit to the other voices."""
    x, silence, truth = rows(looks)
    of = np.array([look.of for look in looks])
    odds = np.empty(len(looks))
    for voice in np.unique(of):
        theirs = of == voice
        weights = fitted(x[~theirs], silence[~theirs], truth[~theirs])
        odds[theirs] = x[theirs] @ weights + silence[theirs]
    return odds


def over_of(weights: Matrix, about: str) -> Over:
    named = {name: round(float(w), 3) for name, w in zip(FEATURES, weights, strict=True)}
    named |= FIXED
    return Over(about=about, pauses=PAUSES, log_odds=named)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", type=Path, help="the generated turns to fit on")
    parser.add_argument("--kept", type=Path, help="keep here what was heard of them")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    given = parser.parse_args()
    takes = list(takes_in(given.library))
    kept = given.kept or given.library / "heard"
    hearing = Hearing(recogniser_of([take.say for take in takes]), kept)
    looks = [look for take in takes for look in looks_into(take, hearing)]
    x, silence, truth = rows(looks)
    odds = left_out(looks)
    loss = float(np.mean(np.logaddexp(0, odds) - truth * odds))
    print(f"{len(takes)} turns, {len(looks)} looks; log loss on voices left out {loss:.3f}")
    over = over_of(
        fitted(x, silence, truth),
        f"{len(takes)} generated turns of the set `fit`: python -m training.turn_over.fit",
    )
    given.out.write_text(json.dumps(over.model_dump(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
