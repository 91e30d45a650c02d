"""Small sums, who said what, and the words around a call."""

from training.grammar.turn import Maker, Turn
from training.grammar.words import BITES, DRINKS, FIRST_NAMES, article, number

_PLUS = (
    "what's {} plus {}",
    "what is {} plus {}",
    "how much is {} and {}",
    "{} plus {}",
    "can you add {} and {}",
)
_MINUS = ("what's {} minus {}", "what is {} minus {}", "how much is {} minus {}", "{} minus {}")


def sums(m: Maker) -> list[Turn]:
    """Ask for sums and differences up to ninety nine."""
    count = 10 if m.thorough else m.random.randint(1, 3)
    return [m.pick((_plus, _plus, _minus))(m) for _ in range(count)]


def _top(m: Maker) -> int:
    return m.pick((9, 12, 20, 49))


def _plus(m: Maker) -> Turn:
    top = _top(m)

    def pair() -> tuple[str, str]:
        a, b = sorted((m.random.randint(1, top), m.random.randint(1, top)))
        return str(a), str(b)

    content = m.draw("plus", pair)
    a, b = m.random.sample([int(n) for n in content[1:]], 2)
    said = number(a + b)
    return Turn(
        m.pick(_PLUS).format(number(a), number(b)),
        f"{number(a)} plus {number(b)} is {said}.",
        "sums",
        content,
        must=((f"is {said}", f"makes {said}", f"equals {said}"),),
    )


def _minus(m: Maker) -> Turn:
    top = _top(m)

    def pair() -> tuple[str, str]:
        a = m.random.randint(1, top)
        return str(a), str(m.random.randint(1, a))

    content = m.draw("minus", pair)
    a, b = (int(n) for n in content[1:])
    said = number(a - b)
    return Turn(
        m.pick(_MINUS).format(number(a), number(b)),
        f"{number(a)} minus {number(b)} is {said}.",
        "sums",
        content,
        must=((f"is {said}", f"makes {said}", f"equals {said}"),),
    )


def who_wants_what(m: Maker) -> list[Turn]:
    """Let two or three people want something, over one turn or more; then ask who wants what."""
    things = [*DRINKS, *BITES]
    count = m.pick((2, 2, 3))
    wants: dict[str, tuple[str, ...]] = {}
    while len(wants) < count:
        content = m.draw("wants", lambda: (m.pick(FIRST_NAMES), m.pick(things)))
        if content[2] not in {c[2] for c in wants.values()}:
            wants[content[1]] = content
    told = [(who, content[2]) for who, content in wants.items()]
    verb = m.pick(("wants", "would like", "takes"))
    if m.random.random() < 0.5:
        said = " and ".join(f"{who} {verb} {article(what)}" for who, what in told)
        turns = [Turn(said, "okay, i noted that.", "memory")]
    else:
        turns = [
            Turn(
                f"{who} {verb} {article(what)}",
                f"{article(what)} for {who}.",
                "memory",
                wants[who],
                must=((what,), (who,)),
            )
            for who, what in told
        ]
    asking = m.random.sample(told * 2, count * 2) if m.thorough else None
    for who, what in asking or m.random.sample(told, m.random.randint(1, count)):
        if m.random.random() < 0.6:
            asked = m.pick(("what does {} want", "what would {} like", "what did {} ask for"))
            said, reply, must = asked.format(who), f"{who} {verb} {article(what)}.", what
        else:
            asked = m.pick(("who wants {}", "who is {} for", "who asked for {}"))
            said, reply, must = asked.format(article(what)), f"{who} {verb} {article(what)}.", who
        turns.append(Turn(said, reply, "memory", wants[who], must=((must,),)))
    return turns


def my_name(m: Maker) -> list[Turn]:
    """Let the person say their name and ask for it later."""
    if m.person:
        ask = ("what's my name", "what name did i give you", "under which name is it")
        name = " ".join(m.person)
        return [Turn(m.pick(ask), f"{name}.", "memory", ("person", *m.person), must=((name,),))]
    content = m.draw("first-name", lambda: (m.pick(FIRST_NAMES), m.pick(("hi", "hello", "hey"))))
    name, hello = content[1:]
    said = m.pick(("{} my name is {}", "{} i'm {}", "{} this is {}")).format(hello, name)
    m.person = (name,)
    return [Turn(said, f"hello {name}, what can i do for you?", "talk", content, must=((name,),))]


_TALK = {
    "hello": "hello, what can i do for you?",
    "hi there": "hello, what can i do for you?",
    "good morning": "good morning, what can i do for you?",
    "thank you": "you're welcome.",
    "thanks a lot": "you're welcome.",
    "that's all": "thank you, goodbye.",
    "that's all thanks": "thank you, goodbye.",
    "goodbye": "goodbye.",
    "bye": "goodbye.",
    "who are you": "i'm a small model that talks.",
    "what can you do": "i take orders and bookings, do small sums and switch the lights.",
    "can you hear me": "yes, i can hear you.",
    "sorry what": "sorry, what can i do for you?",
    "are you a robot": "yes, i'm a small model.",
}


def talk(m: Maker) -> list[Turn]:
    """Say words that ask for nothing."""
    said = m.pick(list(_TALK))
    return [Turn(said, _TALK[said], "talk")]
