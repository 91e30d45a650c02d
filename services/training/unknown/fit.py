"""Fit what tells a sentence that the recogniser knows from any other.

    python -m training.unknown.fit [--kept FILE] [--out FILE]

Two recognisers hear sentences of their own and the set `fit` of those that neither knows, in the
voices of `training.turns`' set `fit`, over each kind of line. A known sentence that was misread is
left out: it is neither.
"""

import argparse
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein

from training.turns.sentences import sentences as turns
from training.turns.speakers import SPEAKERS
from training.unknown.takes import LINES, read, said, sentences
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import FEATURES, Saying, build_model, library_sayings
from turngap_services.text import spoken_words

OUT = Path("services/turngap_services/stt/known.json")
COMMAND = "python -m training.unknown.fit"
TURNS = 60  # sentences of the second recogniser
# Words that may be wrong in a sentence that was read.
MISREAD = 0.25
# Of the sentences that were read, at most this share may be taken for others.
REFUSED = 0.005
RIDGE = 1.0
STEPS = 60

Row = tuple[bool, list[float]]


def gathered() -> list[Row]:
    """Have both recognisers hear everything; return whether they know it, and its features."""
    voices = [speaker for speaker, _ in SPEAKERS["fit"].voices]
    library = [saying.text for saying in library_sayings(None)]
    others = [" ".join(sentence.parts) for sentence in turns("fit")[:TURNS]]
    rows: list[Row] = []
    for number, known in enumerate((library, others)):
        model = build_model([Saying("fit", text) for text in known], {})
        settings = PocketsphinxSettings(pre_roll_ms=300)
        for n, text in enumerate([*known, *sentences("fit")]):
            for k, line in enumerate(LINES):
                take = said(voices[(n + k * 3 + number) % len(voices)], text, line, n)
                reading = read(Recogniser(model, settings), take)
                if reading.heard is None:
                    continue
                is_known, words = n < len(known), spoken_words(text)
                wrong = Levenshtein.distance(words, reading.text.split()) / len(words)
                if not is_known or wrong <= MISREAD:
                    features = reading.heard.features()
                    rows.append((is_known, [features[name] for name in FEATURES]))
        print(f"{len(rows)} takes heard", flush=True)
    return rows


def fitted(rows: Sequence[Row]) -> tuple[np.ndarray, float]:
    """Return the weights, and the log odds that `REFUSED` of the known sentences stay below.

    Both kinds weigh the same, however many there are. Newton's method with a ridge.
    """
    known = np.array([is_known for is_known, _ in rows])
    x = np.array([features for _, features in rows])
    each = np.where(known, 0.5 / known.mean(), 0.5 / (~known).mean())
    ridge = np.eye(len(FEATURES)) * RIDGE
    ridge[0, 0] = 0.0
    weights = np.zeros(len(FEATURES))
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (each * (p - known)) + ridge @ weights
        curve = (x * (each * p * (1 - p))[:, None]).T @ x + ridge
        weights -= np.linalg.solve(curve, slope)
    return weights, float(np.quantile((x @ weights)[known], REFUSED))


def main() -> None:
    """Run the command line."""
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--out", type=Path, default=OUT)
    ask.add_argument("--kept", type=Path, help="keeps what was heard, for another fit")
    arguments = ask.parse_args()
    kept: Path | None = arguments.kept
    if kept is not None and kept.exists():
        rows: list[Row] = pickle.loads(kept.read_bytes())
    else:
        rows = gathered()
        if kept is not None:
            kept.write_bytes(pickle.dumps(rows))
    weights, least = fitted(rows)
    odds = np.array([features for _, features in rows]) @ weights
    known = np.array([is_known for is_known, _ in rows])
    about = (
        f"Fitted by `{COMMAND}` on {known.sum()} takes of known sentences and {(~known).sum()} of "
        f"others: {np.mean(odds[known] < least):.1%} of the known are refused, "
        f"{np.mean(odds[~known] >= least):.1%} of the others are not."
    )
    written = {
        "about": about,
        "least_log_odds": round(least, 3),
        "log_odds": {name: round(float(w), 3) for name, w in zip(FEATURES, weights, strict=True)},
    }
    arguments.out.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    print(about)


if __name__ == "__main__":
    main()
