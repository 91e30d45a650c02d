"""The home by voice: lights and other switches, heating, timers."""

from training.grammar.turn import Maker, Turn
from training.grammar.words import ROOMS, SWITCHED, number

_SWITCH = (
    "turn {state} the {room} {what}",
    "switch {state} the {room} {what}",
    "turn the {room} {what} {state}",
    "please turn {state} the {room} {what}",
    "can you turn {state} the {room} {what}",
    "{room} {what} {state}",
)


def home(m: Maker) -> list[Turn]:
    """Give one to three commands, and perhaps take one back."""
    return [turn for _ in range(m.random.randint(1, 3)) for turn in m.pick(_COMMANDS)(m)]


def _switch(m: Maker) -> list[Turn]:
    content = m.draw("switch", lambda: (m.pick(ROOMS), m.pick(SWITCHED), m.pick(("on", "off"))))
    room, what, state = content[1:]
    turns = [_switched(m.pick(_SWITCH), room, what, state, content)]
    back = "off" if state == "on" else "on"
    undone = m.draw_if_any("switch-back", lambda: (room, what, back))
    if undone and m.random.random() < 0.25:
        said = m.pick(("turn it {} again", "now {} again", "switch it {} again"))
        if what in {"lights", "speakers", "blinds"}:
            said = said.replace("it", "them")
        turns.append(_switched(said, room, what, back, undone))
    return turns


def _switched(said: str, room: str, what: str, state: str, content: tuple[str, ...]) -> Turn:
    verb = "are" if what in {"lights", "speakers", "blinds"} else "is"
    other = "off" if state == "on" else "on"
    text = said.replace("{}", state).replace("{state}", state)
    return Turn(
        text.replace("{room}", room).replace("{what}", what),
        f"the {room} {what} {verb} {state}.",
        "home",
        content,
        must=((f"{room} {what}",), (state,)),
        forbid=(other,),
    )


def _timer(m: Maker) -> list[Turn]:
    content = m.draw(
        "timer", lambda: (number(m.random.randint(1, 60)), m.pick(("minutes", "seconds")))
    )
    length = " ".join(content[1:])
    if length.startswith("one "):
        length = length.removesuffix("s")
    ask = (
        "set a timer for {}",
        "timer for {} please",
        "start a timer of {}",
        "can you set a timer for {}",
        "remind me in {}",
    )
    turns = [
        Turn(
            m.pick(ask).format(length),
            f"{length}, starting right now.",
            "home",
            content,
            must=((length,),),
        )
    ]
    if m.random.random() < 0.2:
        ask = ("how long is the timer", "how long was that timer", "what did i set the timer to")
        turns.append(Turn(m.pick(ask), f"{length}.", "memory", content, must=((length,),)))
    return turns


def _heat(m: Maker) -> list[Turn]:
    content = m.draw("heat", lambda: (m.pick(ROOMS), number(m.random.randint(12, 28))))
    room, degrees = content[1:]
    ask = (
        "set the {} to {} degrees",
        "heat the {} to {} degrees",
        "make the {} {} degrees",
        "can you set the {} to {}",
        "i want {1} degrees in the {0}",
    )
    said = m.pick(ask).format(room, degrees)
    reply = f"the {room} is set to {degrees}."
    return [Turn(said, reply, "home", content, must=((room,), (degrees,)))]


_COMMANDS = (_switch, _switch, _timer, _heat)
