"""Booking: a table, a doctor's appointment, a taxi; with corrections and little talk around it."""

from training.grammar.turn import Maker, Turn
from training.grammar.words import (
    DOCTORS,
    FIRST_NAMES,
    LAST_NAMES,
    MONTHS,
    ORDINALS,
    PLACES,
    TIMES,
    WEEKDAYS,
    number,
)

_TABLE = (
    "i'd like to book a table for {} people on {}",
    "can i book a table for {} people on {}",
    "a table for {} people on {} please",
    "do you have a table for {} people on {}",
    "i need a table for {} people on {}",
)
_AT_NAME = (
    "{} under the name {}",
    "at {} under the name {}",
    "{} please the name is {}",
    "at {} for {}",
    "let's say {} my name is {}",
)
_WISHES = {
    "could we sit by the window": ("of course, a window table.", "window"),
    "can we have a table outside": ("of course, a table outside.", "outside"),
    "we need a high chair": ("of course, a high chair.", "high chair"),
    "could we have a quiet table": ("of course, a quiet table.", "quiet"),
    "can we sit near the door": ("of course, a table near the door.", "near the door"),
}


def table(m: Maker) -> list[Turn]:
    """Book people and day, then time and name, perhaps a wish."""
    asked = m.draw("table", lambda: (number(m.random.randint(1, 20)), m.pick(WEEKDAYS)))
    people, day = asked[1:]
    said = m.pick(_TABLE).format(people, day)
    if people == "one":
        said = said.replace("one people", "one person")
    who = "one person" if people == "one" else f"{people} people"
    turns = [Turn(said, f"{who} on {day}, what time?", "booking", asked, must=((people,), (day,)))]
    if m.random.random() < 0.6:
        content = m.draw(
            "table-name", lambda: (m.pick(TIMES), m.pick(FIRST_NAMES), m.pick(LAST_NAMES))
        )
        time, name = content[1], " ".join(content[2:])
        said, reply = m.pick(_AT_NAME).format(time, name), f"{time}, {name}."
        m.person = content[2:]
        turns.append(Turn(said, reply, "booking", content, must=((time,), (name,))))
    else:
        turns += [_time(m, "table-time", "{}, what name?"), _name(m)]
    if m.random.random() < 0.4:
        said = m.pick(list(_WISHES))
        reply, key = _WISHES[said]
        turns.append(Turn(said, reply, "booking", None, must=((key,),)))
    if m.random.random() < 0.3:
        turns.append(_recall(m, asked))
    return turns


def _time(m: Maker, kind: str, reply: str) -> Turn:
    content = m.draw(kind, lambda: (m.pick(TIMES),))
    time = content[1]
    said = m.pick(("{}", "at {}", "{} please", "let's say {}", "{} would be good")).format(time)
    return Turn(said, reply.format(time), "booking", content, must=((time,),))


def _name(m: Maker) -> Turn:
    content = m.draw("name", lambda: (m.pick(FIRST_NAMES), m.pick(LAST_NAMES)))
    m.person, name = content[1:], " ".join(content[1:])
    ask = ("{}", "my name is {}", "the name is {}", "{} please", "under the name {}")
    return Turn(m.pick(ask).format(name), f"thank you, {name}.", "booking", content, ((name,),))


def _recall(m: Maker, content: tuple[str, ...]) -> Turn:
    people, day = content[1:]
    if m.random.random() < 0.5:
        ask = ("which day was that", "what day did i say", "for which day is it")
        return Turn(m.pick(ask), f"on {day}.", "memory", content, must=((day,),))
    ask = ("for how many people is it", "how many people did i say", "how many are we")
    return Turn(m.pick(ask), f"for {people}.", "memory", content, must=((people,),))


def doctor(m: Maker) -> list[Turn]:
    """Book a doctor: a date, perhaps corrected in the same sentence, then a time."""
    content = m.draw("doctor", lambda: (m.pick(DOCTORS), m.pick(("move", "move", "see"))))
    _, name, wish = content
    if wish == "move":
        ask = ("i need to move my appointment with doctor {}", "can i move my visit to doctor {}")
        reply, must = "sure, which day suits you?", ("which day",)
    else:
        ask = ("i need an appointment with doctor {}", "can i see doctor {} this week")
        reply, must = f"doctor {name}, which day suits you?", (f"doctor {name}",)
    turns = [Turn(m.pick(ask).format(name), reply, "booking", content, must=(must,)), _date(m)]
    if m.random.random() < 0.8:
        turns.append(_appointment_time(m))
    return turns


def _date(m: Maker) -> Turn:
    content = m.draw("date", lambda: (m.pick(WEEKDAYS), m.pick(ORDINALS)))
    day, date = content[1:]
    month = m.pick(MONTHS)
    wrong = m.pick([d for d in WEEKDAYS if d != day])
    said = m.pick(
        (
            f"{wrong} no sorry {day} the {date} of {month}",
            f"{wrong} no {day} the {date}",
            f"{wrong} i mean {day} the {date} of {month}",
            f"{day} the {date} of {month}",
            f"on {day} the {date}",
            f"{day} the {date} please",
        )
    )
    forbid = (wrong,) if wrong in said else ()
    reply = f"{day} the {date}, what time?"
    return Turn(said, reply, "booking", content, must=((day,), (date,)), forbid=forbid)


def _appointment_time(m: Maker) -> Turn:
    part = m.pick(("in the morning", "in the afternoon", "in the evening", ""))
    content = m.draw("doctor-time", lambda: (m.pick(TIMES), part))
    time = content[1]
    ask = ("{} {} would be good", "{} {} please", "at {} {}", "how about {} {}", "{} {}")
    said = " ".join(m.pick(ask).format(time, part).split())
    simple = len(time.split()) == 1
    booked = f"{time} o'clock" if simple else time
    return Turn(said, f"okay, booked for {booked}.", "booking", content, must=((time,),))


def taxi(m: Maker) -> list[Turn]:
    """Order a taxi: where to, then when."""
    asked = m.draw("taxi", lambda: (m.pick(PLACES), m.pick(("taxi", "cab", "car"))))
    place, car = asked[1:]
    ask = ("i need a {} to the {}", "can you send a {} to the {}", "a {} to the {} please")
    turns = [
        Turn(
            m.pick(ask).format(car, place),
            "sure, when should it come?",
            "booking",
            asked,
            must=(("when",),),
        )
    ]
    content = m.draw("taxi-time", lambda: (m.pick(TIMES), car))
    time = content[1]
    part = m.pick((" in the evening", " in the morning", " tomorrow", ""))
    said = m.pick(("at {}{}", "{}{}", "{}{} please", "make it {}{}")).format(time, part)
    turns.append(Turn(said, f"a {car} at {time}, okay.", "booking", content, must=((time,),)))
    if m.random.random() < 0.3:
        ask = ("where does it go", "where is it going to", "where did i say i want to go")
        turns.append(Turn(m.pick(ask), f"to the {place}.", "memory", asked, must=((place,),)))
    return turns
