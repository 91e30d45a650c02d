"""How fast the backend `small` is, and how much of the scenario library it gets right.

Holds every shipped scenario's conversation in text, with the `embedded` agent's prompt and the
model's own replies to the turns before:

    python benchmarks/small_model.py [--model teacher|student|DIR] [--rounds 5]
"""

import argparse
import threading
import time
from dataclasses import dataclass

import numpy as np

from turngap.agent.stack import load_stack
from turngap.scenario.model import ReplyExpectation
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel
from turngap_services.script import scenarios
from turngap_services.text import spoken_words


@dataclass(frozen=True)
class Said:
    """One reply."""

    scenario: str
    user: str
    text: str
    prompt_tokens: int
    tokens: int
    first_ms: float
    whole_ms: float
    right: bool | None  # None: the scenario does not say what would be right


def converse(model: SmallModel, system: str) -> list[Said]:
    said: list[Said] = []
    held: set[tuple[str, ...]] = set()
    for scenario in scenarios(None):
        words = tuple(turn.say for turn in scenario.turns)
        if words in held:
            continue  # the same conversation, spoken by somebody else
        held.add(words)
        messages = [{"role": "system", "content": system}]
        for turn in scenario.turns:
            messages.append({"role": "user", "content": turn.say})
            pieces: list[str] = []
            at: list[float] = []

            def hear(piece: str, pieces: list[str] = pieces, at: list[float] = at) -> None:
                pieces.append(piece)
                at.append(time.perf_counter())

            asked = time.perf_counter()
            reply = model.say(model.prompt(messages), hear, threading.Event())
            whole_ms = (time.perf_counter() - asked) * 1000
            text = "".join(pieces)
            messages.append({"role": "assistant", "content": text})
            expected = turn.expect.reply
            said.append(
                Said(
                    scenario.name,
                    turn.say,
                    text,
                    reply.prompt_tokens,
                    reply.tokens,
                    (at[0] - asked) * 1000 if at else float("nan"),
                    whole_ms,
                    None if expected is None else is_right(expected, text),
                )
            )
    return said


def is_right(expected: ReplyExpectation, reply: str) -> bool:
    words = f" {' '.join(spoken_words(reply))} "

    def has(phrase: str) -> bool:
        return f" {' '.join(spoken_words(phrase))} " in words

    return (
        all(has(p) for p in expected.all_of)
        and (not expected.any_of or any(has(p) for p in expected.any_of))
        and not any(has(p) for p in expected.forbid)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="teacher", help="teacher, student or a directory")
    parser.add_argument("--rounds", type=int, default=5, help="times through the library")
    parser.add_argument("--agent", default="embedded", help="whose system prompt")
    arguments = parser.parse_args()
    began = time.perf_counter()
    model = SmallModel(SmallSettings(model=arguments.model))
    loaded_ms = (time.perf_counter() - began) * 1000
    model.warm_up()
    system = load_stack(arguments.agent).pipeline.system_prompt
    rounds = [converse(model, system) for _ in range(arguments.rounds)]
    for one in rounds[0]:
        mark = {True: "right", False: "WRONG", None: "-"}[one.right]
        print(f"{mark:5}  {one.scenario}: {one.user!r} -> {one.text!r}")
    every = [one for said in rounds for one in said]
    judged = [one for one in rounds[0] if one.right is not None]
    first = np.array([one.first_ms for one in every])
    rate = np.array([one.tokens / one.whole_ms * 1000 for one in every])
    after = np.array(
        [(one.tokens - 1) / (one.whole_ms - one.first_ms) * 1000 for one in every if one.tokens > 1]
    )
    prompts = [one.prompt_tokens for one in every]
    print(
        f"\nn = {len(every)} replies; prompts of {min(prompts)} to {max(prompts)} tokens\n"
        f"loaded in {loaded_ms:.0f} ms\n"
        f"TTFT {np.percentile(first, 50):.2f} ms p50, {np.percentile(first, 95):.2f} ms p95\n"
        f"tokens/s {np.percentile(after, 50):.0f} p50, {np.percentile(after, 5):.0f} p5 after the "
        f"first; {np.percentile(rate, 50):.0f} p50 with the prompt\n"
        f"right: {sum(one.right is True for one in judged)} of {len(judged)} turns"
    )


if __name__ == "__main__":
    main()
