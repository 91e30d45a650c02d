"""Questions whose answers stand in the system prompt: time, weather, an order, a museum, a soup."""

from training.grammar.turn import Maker, Turn
from training.grammar.words import (
    CLOCK,
    DIGITS,
    FATS,
    MEASURED,
    NEXT_TO,
    RAINS,
    ROOTS,
    SIGHTS,
    SOUPS,
    STREETS,
    VISITED,
    WEATHERS,
    WEEKDAYS,
    number,
)

_OPENS = ("eight", "nine", "ten", "eleven")
_CLOSES = ("three", "four", "five", "six", "seven")
_WEATHER = {
    "today": (
        "what's the weather like today",
        "how is the weather today",
        "what's the weather today",
        "how's the weather",
        "what is it like outside",
    ),
    "tomorrow": (
        "what's the weather like tomorrow",
        "how will the weather be tomorrow",
        "what's the weather tomorrow",
        "and tomorrow",
        "what about tomorrow",
    ),
}


def clock(m: Maker) -> list[Turn]:
    """Ask what time it is."""
    if "time" in m.facts:
        return []
    content = m.draw("time", lambda: (m.pick(CLOCK),))
    time = content[1]
    m.facts["time"] = f"it is {time}."
    ask = (
        "what time is it",
        "what's the time",
        "can you tell me the time",
        "do you have the time",
        "what time is it now",
    )
    return [Turn(m.pick(ask), f"it's {time} now.", "time", content, must=((time,),))]


def weather(m: Maker) -> list[Turn]:
    """Ask for the weather today and tomorrow: how it is, how warm, whether it rains."""
    if "today" in m.facts:
        return []
    skies = {day: m.pick((m.pick(WEATHERS), m.pick(WEATHERS), m.pick(RAINS))) for day in _WEATHER}
    warm = {}
    for day, sky in skies.items():
        warm[day] = m.draw("weather", lambda s=sky: (s, number(m.random.randint(1, 35))))[2]
        m.facts[day] = f"{day}: {sky}, {warm[day]} degrees."
    if m.thorough:
        asked = [(ask, day) for ask in (_sky, _rain, _warmth) for day in skies]
        m.random.shuffle(asked)
        return [ask(m, day, skies[day], warm[day]) for ask, day in asked]
    days = m.pick((["today"], ["tomorrow"], ["today", "tomorrow"]))
    return [m.pick((_sky, _sky, _rain, _warmth))(m, day, skies[day], warm[day]) for day in days]


def _sky(m: Maker, day: str, sky: str, warm: str) -> Turn:
    asked = m.pick(_WEATHER[day][:3] if day == "tomorrow" else _WEATHER[day])
    lead = "it's" if day == "today" else "tomorrow it's"
    return Turn(
        asked,
        f"{lead} {sky}, about {warm} degrees.",
        "weather",
        ("weather", sky, warm),
        must=((sky,), (warm,)),
    )


def _rain(m: Maker, day: str, sky: str, warm: str) -> Turn:
    asked = m.pick(("will it rain {}", "is it going to rain {}", "do i need an umbrella {}"))
    said = "yes" if sky in RAINS or sky in {"rainy", "stormy"} else "no"
    reply = f"{said}, {sky} {day}."
    return Turn(asked.format(day), reply, "weather", ("weather", sky, warm), must=((said,), (sky,)))


def _warmth(m: Maker, day: str, sky: str, warm: str) -> Turn:
    asked = m.pick(("how warm is it {}", "what's the temperature {}", "how warm will it be {}"))
    return Turn(
        asked.format(day),
        f"about {warm} degrees {day}.",
        "weather",
        ("weather", sky, warm),
        must=((warm,),),
    )


def parcel(m: Maker) -> list[Turn]:
    """Ask where an order is: its number is requested, then looked up."""
    if "order" in m.facts:
        return []
    content = m.draw("parcel", lambda: (_digits(m, 5), _digits(m, 4)))
    mine, code = content[1:]
    due = m.pick(("today", "tomorrow", *(f"on {d}" for d in WEEKDAYS)))
    m.facts["order"] = f"order {mine}: arrives {due}, confirmation number {code}."
    turns = [
        Turn(
            m.pick(("where is my order", "i'm waiting for my order", "where's my parcel")),
            "okay, what's your order number?",
            "numbers",
            None,
            must=(("order number",),),
        )
    ]
    if m.random.random() < 0.2:
        other = m.draw("parcel-unknown", lambda: (_digits(m, 5),))
        turns.append(
            Turn(
                m.pick(("it's {}", "{}", "the number is {}")).format(other[1]),
                f"sorry, i can't find {other[1]}.",
                "numbers",
                other,
                must=((other[1],), ("can't find",)),
            )
        )
        return turns
    turns.append(
        Turn(
            m.pick(("it's {}", "{}", "the number is {}", "order {}")).format(mine),
            f"{mine} arrives {due}.",
            "numbers",
            content,
            must=((mine,), (due,)),
        )
    )
    ask = ("what's the confirmation number", "can you give me the confirmation number")
    turns.append(Turn(m.pick(ask), f"it's {code}.", "numbers", content, must=((code,),)))
    return turns


def phone(m: Maker) -> list[Turn]:
    """Give a phone number, which is read back."""
    ask = (
        "i want to change my phone number",
        "i have a new phone number",
        "can you change my phone number",
        "please update my number",
    )
    reply = "okay, what's the new number?"
    turns = [Turn(m.pick(ask), reply, "numbers", None, must=(("number",),))]
    content = m.draw("phone", lambda: (_digits(m, m.random.randint(5, 9)),))
    digits = content[1]
    said = m.pick(("{}", "it's {}", "{} please", "the new number is {}")).format(digits)
    turns.append(Turn(said, f"{digits}?", "numbers", content, must=((digits,),)))
    if m.random.random() < 0.4:
        said = m.pick(("yes that's right", "yes", "correct", "that's it"))
        turns.append(Turn(said, "okay, i changed your number.", "numbers", None))
    return turns


def _digits(m: Maker, n: int) -> str:
    return " ".join(m.pick(DIGITS) for _ in range(n))


def museum(m: Maker) -> list[Turn]:
    """Ask where a museum is and what it has, and when it is open on a day."""
    if "visit" in m.facts:
        return []
    content = m.draw(
        "visit", lambda: (m.pick(VISITED), m.pick(STREETS), m.pick(NEXT_TO), m.pick(SIGHTS))
    )
    what, street, beside, sight = content[1:]
    other = m.pick([s for s in SIGHTS if s != sight])
    hours = m.draw("open", lambda: (m.pick(WEEKDAYS), m.pick(_OPENS), m.pick(_CLOSES)))
    day, opens, closes = hours[1:]
    m.facts["visit"] = (
        f"{what}: {street} street, next to the {beside}, {sight} and {other}, "
        f"open on {day} from {opens} until {closes}."
    )
    ask = ("tell me about the {}", "what is there at the {}", "i want to know about the {}")
    turns = [
        Turn(
            m.pick(ask).format(what),
            f"the {what} is on {street} street, next to the {beside}, "
            f"and it has {sight} and {other}.",
            "lookup",
            content,
            must=((what,), (f"{street} street",), (beside,), (sight,), (other,)),
        )
    ]
    if m.thorough or m.random.random() < 0.8:
        turns.append(_opening(m, hours))
    return turns


def _opening(m: Maker, content: tuple[str, ...]) -> Turn:
    day, opens, closes = content[1:]
    ask = ("is it open on {}", "can i go there on {}", "when is it open on {}")
    return Turn(
        m.pick(ask).format(day),
        f"yes, from {opens} until {closes}.",
        "lookup",
        content,
        must=((opens,), (closes,)),
    )


def soup(m: Maker) -> list[Turn]:
    """Ask how a soup is made, how much goes in, how long it cooks."""
    if "soup" in m.facts:
        return []
    content = m.draw(
        "soup",
        lambda: (
            m.pick(SOUPS),
            number(m.random.randint(2, 9)),
            m.pick(ROOTS),
            m.pick(MEASURED),
        ),
    )
    dish, count, roots, rest = content[1:]
    timed = m.draw("cooking", lambda: (m.pick(FATS), number(5 * m.random.randint(1, 12))))
    fat, cooked = timed[1:]
    m.facts["soup"] = f"{dish}: {count} {roots}, {fat}, a pound of {rest}, stock, {cooked} minutes."
    ask = ("how do i make {}", "how do you make {}", "can you tell me how to make {}")
    turns = [
        Turn(
            m.pick(ask).format(dish),
            f"fry chopped {roots} in {fat}, add a pound of {rest} and a little stock, "
            "cook it slowly, then blend it until smooth.",
            "lookup",
            content,
            must=((roots,), (rest,), (fat,)),
        )
    ]
    if m.thorough or m.random.random() < 0.7:
        said = m.pick(("wait how many {}", "how many {}", "how many {} do i need")).format(roots)
        reply = f"{count} {roots}, finely chopped."
        turns.append(Turn(said, reply, "lookup", content, must=((f"{count} {roots}",),)))
    if m.thorough or m.random.random() < 0.7:
        said = m.pick(("and how long do i cook it", "how long do i cook it", "how long is that"))
        reply = f"cook it for {cooked} minutes."
        turns.append(Turn(said, reply, "lookup", timed, must=((f"{cooked} minutes",),)))
    return turns
