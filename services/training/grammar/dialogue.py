"""Whole dialogues: some scenes one after another, and a system prompt with the facts they need."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from training.grammar import booking, facts, home, shop, talk
from training.grammar.turn import Maker, Turn

# The prompt that turngap's agent has where a stack sets none.
BASE_PROMPT = "You are on a phone call. Answer in one or two short spoken sentences."

# Of the dialogues that accuracy is told of. Not the training's, so that the two share no dialogue.
HELD_OUT_SEED = 1_000_003

Scene = Callable[[Maker], list[Turn]]

# How often each scene comes, and how often when training for what is hard. What has to be worked
# out or looked up (sums, totals, weather) comes more often than what only has to be repeated, and
# after 1,500 steps nothing else was wrong any more.
_SCENES: tuple[tuple[Scene, int, int], ...] = (
    (shop.coffee, 18, 14),
    (shop.pizza, 6, 2),
    (booking.table, 7, 3),
    (booking.doctor, 6, 2),
    (booking.taxi, 4, 1),
    (facts.clock, 7, 9),
    (facts.weather, 12, 22),
    (facts.parcel, 5, 9),
    (facts.phone, 4, 5),
    (facts.museum, 5, 6),
    (facts.soup, 5, 6),
    (home.home, 8, 3),
    (talk.sums, 16, 22),
    (talk.who_wants_what, 9, 9),
    (talk.my_name, 3, 2),
    (talk.talk, 3, 1),
)
# Scenes that leave a fact in the prompt: in some dialogues all of them do, asked about or not.
_FACT_SCENES: tuple[Scene, ...] = (
    facts.clock,
    facts.weather,
    facts.parcel,
    facts.museum,
    facts.soup,
)
# How often each scene comes where it asks all that it can.
_THOROUGH: dict[Scene, int] = {
    shop.coffee: 10,
    facts.weather: 10,
    facts.parcel: 6,
    facts.phone: 8,
    facts.museum: 4,
    facts.soup: 4,
    facts.clock: 5,
    talk.sums: 12,
    talk.who_wants_what: 8,
}
SKILLS = (
    "order",
    "total",
    "booking",
    "time",
    "weather",
    "lookup",
    "numbers",
    "sums",
    "home",
    "memory",
    "talk",
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A system prompt and the turns after it."""

    system: str
    turns: tuple[Turn, ...]

    def messages(self) -> list[dict[str, str]]:
        """Convert the dialogue to chat messages, system first if there is one."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            said.append({"role": "user", "content": turn.user})
            said.append({"role": "assistant", "content": turn.reply})
        return said


def make_dialogue(
    seed: str, *, holding: bool, hard: bool = False, thorough: float = 0.0
) -> Dialogue:
    """Make the dialogue of a seed.

    Args:
        seed: any text; the same one makes the same dialogue on every machine.
        holding: use only held-out contents, instead of only trained ones.
        hard: more scenes in which something has to be looked up or worked out.
        thorough: the share of dialogues, 0 to 1, with fewer scenes that each ask all they can.
    """
    m = Maker(random.Random(f"{seed}|{holding}"), holding)
    m.thorough = random.Random(f"{seed}|thorough").random() < thorough
    turns: list[Turn] = []
    if m.thorough:
        scenes, weights, counts = [*_THOROUGH], [*_THOROUGH.values()], (1, 1, 2)
    else:
        scenes = [scene for scene, _, _ in _SCENES]
        weights = [hardened if hard else usual for _, usual, hardened in _SCENES]
        counts = (1, 2, 3, 3, 4)
    chosen = dict.fromkeys(m.random.choices(scenes, weights, k=m.pick(counts)))
    for scene in chosen:
        turns += scene(m)
    if m.person and talk.my_name not in chosen and m.random.random() < 0.3:
        turns += talk.my_name(m)
    turns = [_hesitant(m, turn) for turn in turns]
    for scene in _FACT_SCENES if m.random.random() < 0.25 else ():
        if m.random.random() < 0.7:
            scene(m)  # for the fact it leaves
    lines = list(m.facts.values())
    m.random.shuffle(lines)
    opening = m.pick((BASE_PROMPT, BASE_PROMPT, BASE_PROMPT, ""))
    return Dialogue(" ".join([*([opening] if opening else []), *lines]), tuple(turns))


def _hesitant(m: Maker, turn: Turn) -> Turn:
    """Return the turn as it is, or with a filler word before it."""
    if m.random.random() > 0.06:
        return turn
    return replace(turn, user=f"{m.pick(('um', 'uh', 'so', 'okay', 'well'))} {turn.user}")


def make_dialogues(
    seed: int, *, holding: bool, start: int = 0, hard: bool = False, thorough: float = 0.0
) -> Iterator[Dialogue]:
    """Yield dialogues without end, from number `start` on."""
    number = start
    while True:
        dialogue = make_dialogue(f"{seed}|{number}", holding=holding, hard=hard, thorough=thorough)
        if dialogue.turns:
            yield dialogue
        number += 1
