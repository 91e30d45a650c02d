"""The agents that are compared: stock pipecat, and everything that is done about its gap."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turngap.agent.stack import Stack, load_stack, override
from turngap.backends import KINDS, Kind
from turngap.play.target import AgentChoice

# The same engines for all of them; the LLM is simulated, so that its times can be set.
ENGINES = ("tts.speed_wpm=200",)

# Reading the prompt takes the model no time there; here a second for 2,000 tokens, so that it shows
# what reading it ahead is worth.
READING_ENGINES = (*ENGINES, "llm.prefill_tokens_per_s=2000")

# The same, with the model's times known to the millisecond: what is left of the gap is overhead.
TTFT_MS = 150.0
# The silence after which `full` begins an answer at the earliest (`turn.pause_ms`).
PAUSE_MS = 60.0
KNOWN_ENGINES = (*ENGINES, f"llm.ttft_ms={TTFT_MS}", "llm.jitter=0.0", "llm.tokens_per_s=1000")


@dataclass(frozen=True)
class Step:
    """One thing that is done: settings on top of stock, and those that switch it off again."""

    name: str
    sets: tuple[str, ...]
    off: tuple[str, ...]
    backends: dict[Kind, str | None] = field(default_factory=dict)


STEPS = (
    Step(
        "output: 10 ms chunks, the TTS's leading silence cut",
        (
            "audio.out_chunk_ms=10",
            "audio.out_ahead_ms=60",
            "audio.cut_lead_in=true",
        ),
        (
            "audio.out_chunk_ms=40",
            "audio.out_ahead_ms=0",
            "audio.cut_lead_in=false",
        ),
    ),
    Step(
        "text: as few words first as last, voice warm",
        ("text.aggregation=adaptive", "warm.voice=true"),
        ("text.aggregation=sentence", "warm.voice=false"),
    ),
    Step(
        "endpoint: a hold of 250 ms from the last audible sample",
        (
            "pipeline.vad_first=true",
            "stt.partial_every_ms=20",
            "stt.pre_roll_ms=300",
            "turn.certainty=0",
            "turn.hold_ms=250",
            "turn.conclude_ms=0",
            "turn.speculate=false",
            'turn.barge_in="vad"',
        ),
        (),
        {"turn": "adaptive"},
    ),
    Step("the final transcript by the endpoint", ("turn.conclude_ms=20",), ("turn.conclude_ms=0",)),
    Step(
        "a hold as long as it takes to be certain",
        ("turn.certainty=0.7", "turn.hold_ms=200"),
        ("turn.certainty=0", "turn.hold_ms=250"),
    ),
    Step("speculation", ("turn.speculate=true",), ("turn.speculate=false",)),
    Step(
        "barge-in: silent at once, backchannels told apart",
        ('turn.barge_in="attentive"', "pipeline.keep_heard=true"),
        ('turn.barge_in="vad"', "pipeline.keep_heard=false"),
    ),
    Step("the prompt read ahead", ("warm.prefix=true",), ("warm.prefix=false",)),
)

# The same stock agent without its largest wait, so that no one has to take that for all of it.
VAD_ALONE = Step("smart turn off", (), (), {"turn": "vad"})

STOCK, STOCK_VAD = "stock", "stock, the VAD alone"
FULL, UNTRACED = "full", "full, tracing off"


@dataclass(frozen=True)
class Contender:
    """An agent in the comparison, known by its name in every piece that is played."""

    name: str
    stack: Stack
    traced: bool = True

    def choice(self, folder: Path) -> AgentChoice:
        """Return the agent, its stack written into a folder, as no command line holds all of it."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.stack.name}.toml"
        file.write_text(as_toml(self.stack), encoding="utf-8")
        return AgentChoice(str(file), traced=self.traced)


def contender(
    name: str,
    steps: Sequence[Step],
    *,
    engines: Sequence[str] = ENGINES,
    traced: bool = True,
    sets: Sequence[str] = (),
) -> Contender:
    """Stock with so much done about it."""
    backends: dict[Kind, str | None] = {"llm": "sim"}
    assigned: list[str] = []
    for step in steps:
        backends.update(step.backends)
        assigned += step.sets
    stack = override(load_stack("stock"), backends, (*engines, *assigned, *sets))
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return Contender(name, stack.model_copy(update={"name": slug}), traced)


def as_toml(stack: Stack) -> str:
    """Write the stack as a stack file."""
    values = stack.model_dump(exclude={"name", "description"})
    lines = [f"name = {json.dumps(stack.name)}"]
    for table, keys in values.items():
        settings = {"backend": keys["backend"], **keys["settings"]} if table in KINDS else keys
        lines += [f"\n[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
    return "\n".join([*lines, ""])


def stock(engines: Sequence[str] = ENGINES) -> Contender:
    """Nothing done."""
    return contender(STOCK, (), engines=engines)


def stock_vad(engines: Sequence[str] = ENGINES) -> Contender:
    """Nothing done, and no one asked whether the turn sounds complete."""
    return contender(STOCK_VAD, [VAD_ALONE], engines=engines)


def full(engines: Sequence[str] = ENGINES) -> Contender:
    """Everything done: `embedded` as it ships, but for its LLM."""
    return contender(FULL, STEPS, engines=engines)


def untraced(engines: Sequence[str] = ENGINES) -> Contender:
    """Everything done, by an agent that reports nothing."""
    return contender(UNTRACED, STEPS, engines=engines, traced=False)


def cumulative(engines: Sequence[str] = ENGINES) -> list[Contender]:
    """Each step on top of those before it; the last one is `full`."""
    added = [
        contender(f"+ {step.name}", STEPS[: number + 1], engines=engines)
        for number, step in enumerate(STEPS[:-1])
    ]
    return [*added, full(engines)]


def each_off(engines: Sequence[str] = ENGINES) -> list[Contender]:
    """Everything but one step; the endpoint's cannot be off alone, what follows builds on it."""
    return [
        contender(f"full without {step.name}", STEPS, engines=engines, sets=step.off)
        for step in STEPS
        if step.off
    ]
