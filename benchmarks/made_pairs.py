"""Made-up pairs of turns with the noise of a real machine, to try the regression gate on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turngap.core.budget import DEFAULT_BUDGET_MS, outcome_of
from turngap.core.paired import Pair, Reading

# Typical values (ms) and how far a turn's own level lies from them (sigma of a lognormal factor).
STAGES: Mapping[str, tuple[float, float]] = {
    "endpoint": (230.0, 0.08),
    "transcript": (12.0, 0.4),
    "llm_request": (1.0, 0.2),
    "llm_first_token": (150.0, 0.35),
    "tts_request": (45.0, 0.5),
    "tts_first_audio": (6.0, 0.3),
    "tts_first_audible": (10.0, 0.1),
    "sent": (0.6, 0.2),
    "received": (1.0, 0.2),
    "agent_onset": (5.0, 0.5),
}
# Turns in each conversation of the library, over and over.
CONVERSATIONS = (4, 2, 2, 2, 3, 2, 3, 3, 3, 3, 3, 1)


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of a machine on the same turn played again, ms.

    Attributes:
        play: standard deviation from play to play.
        tail_share, tail: so many plays take longer, exponentially with this mean.
        drift: standard deviation of a slow wave over the run (e-folding in `drift_plays`
            conversations), on top of a trend of up to twice as much from end to end.
        stall_share, stall: so many conversations are slow from end to end, each turn by up to this
            much; every second such spell lasts into the conversation after, whoever's that is.
        starved_share, starved: in so many turns the machine stands still for the caller too, for
            between half of this and all of it; the gap reads long by any part of that, and may have
            read long by twice as much for all that the caller knows.
    """

    play: float = 15.0
    tail_share: float = 0.03
    tail: float = 120.0
    drift: float = 0.0
    drift_plays: float = 10.0
    stall_share: float = 0.0
    stall: float = 300.0
    starved_share: float = 0.0
    starved: float = 22.0


QUIET = Noise()
ROUGH = Noise(play=20.0, drift=15.0, stall_share=0.02)
# As was seen on a quiet shared machine with two cores: stalls of 10 to 22 ms in 5 of 72 turns.
SHARED = Noise(starved_share=0.07)


@dataclass(frozen=True, slots=True)
class Injected:
    """A regression of the candidate: one stage of a share of its turns is slower by so much.

    `starves`: in this share of its turns it takes the processor from the caller, over what the
    machine does.
    """

    stage: str = "llm_first_token"
    ms: float = 0.0
    share: float = 1.0
    starves: float = 0.0


def simulated_pairs(
    n: int, noise: Noise, injected: Injected, rng: np.random.Generator
) -> list[Pair]:
    """`n` pairs of a check that plays each conversation A B B A, round after round."""
    pairs: list[Pair] = []
    wave = _Wave(noise, plays=4 * math.ceil(n / 2), rng=rng)
    levels: dict[tuple[int, int], dict[str, float]] = {}
    for visit in range(n):
        scenario, turns = visit % len(CONVERSATIONS), CONVERSATIONS[visit % len(CONVERSATIONS)]
        repeat = 2 * (visit // len(CONVERSATIONS)) + 1
        a, b, b2, a2 = (wave.conversation(turns) for _ in range(4))
        for again, reference, candidate in ((0, a, b), (1, a2, b2)):
            for turn in range(turns):
                level = levels.setdefault((scenario, turn), _level(rng))
                slower = injected.ms if rng.random() < injected.share else 0.0
                key = (f"scenario-{scenario}", turn + 1, 0.0, repeat + again)
                pairs.append(
                    Pair(
                        key,
                        _reading(level, noise, reference[turn], rng),
                        _reading(
                            level,
                            replace(noise, starved_share=noise.starved_share + injected.starves),
                            candidate[turn],
                            rng,
                            {injected.stage: slower},
                        ),
                    )
                )
        if len(pairs) >= n:
            break
    return pairs[:n]


class _Wave:
    """Time that the machine adds to whatever is played next."""

    def __init__(self, noise: Noise, plays: int, rng: np.random.Generator) -> None:
        self._noise, self._rng = noise, rng
        self._at = rng.normal(0, noise.drift) if noise.drift else 0.0
        self._slope = rng.uniform(-2, 2) * noise.drift / plays
        self._played = 0
        self._stalled_again = False

    def conversation(self, turns: int) -> Sequence[float]:
        noise, rng = self._noise, self._rng
        kept = math.exp(-1 / noise.drift_plays)
        self._at = kept * self._at + rng.normal(0, 1) * noise.drift * math.sqrt(1 - kept**2)
        self._played += 1
        stalled = self._stalled_again or rng.random() < noise.stall_share
        self._stalled_again = stalled and not self._stalled_again and rng.random() < 0.5
        stall = rng.uniform(0, noise.stall, turns) if stalled else np.zeros(turns)
        return [self._at + self._slope * self._played + float(s) for s in stall]


def _level(rng: np.random.Generator) -> dict[str, float]:
    return {name: ms * rng.lognormal(0, sigma) for name, (ms, sigma) in STAGES.items()}


def _reading(
    level: Mapping[str, float],
    noise: Noise,
    machine_ms: float,
    rng: np.random.Generator,
    slower: Mapping[str, float] | None = None,
) -> Reading:
    stages = dict(level)
    # The VAD's windows and the model's first token are what varies from play to play.
    each = noise.play / math.sqrt(2)
    stages["endpoint"] += rng.normal(0, each)
    stages["llm_first_token"] += rng.normal(0, each) + machine_ms
    if rng.random() < noise.tail_share:
        stages[str(rng.choice(list(stages)))] += rng.exponential(noise.tail)
    for name, ms in (slower or {}).items():
        stages[name] += ms
    stages = {name: max(0.0, ms) for name, ms in stages.items()}
    caller_error_ms = 0.0
    if noise.starved_share and rng.random() < noise.starved_share:
        late_ms = noise.starved * rng.uniform(0.5, 1.0)
        stages["endpoint"] += rng.uniform(0.0, late_ms)
        # The same stall is seen in the packets and in the event loop: the bound is their sum.
        caller_error_ms = 2 * late_ms
    gap_ms = sum(stages.values())
    outcome = outcome_of(gap_ms, DEFAULT_BUDGET_MS, "reply_done")
    starved = caller_error_ms > 0
    return Reading(outcome, gap_ms, stages, DEFAULT_BUDGET_MS, caller_error_ms, starved)
