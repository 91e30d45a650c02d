"""Ordering: drinks and bites with changes and additions, their total, pizzas to an address."""

from training.grammar.turn import Maker, Turn
from training.grammar.words import (
    BITES,
    DRINKS,
    PIZZAS,
    SIZES,
    STREET_KINDS,
    STREETS,
    article,
    number,
    price_said,
    price_tag,
)

_ASK = (
    "i'd like {} to go",
    "i'd like {}",
    "can i get {}",
    "can i have {} please",
    "i'll have {}",
    "{} please",
    "could i get {} to go",
    "hi i want {}",
)
_CHANGE = (
    "actually make it a {} one",
    "make that {} please",
    "sorry make it {}",
    "no wait a {} one",
    "can you make it {}",
    "could i have a {} one instead",
)
_ADD = (
    "and add {}",
    "and {} please",
    "can i also get {}",
    "i'd also like {}",
    "add {} to that",
    "{} as well",
)
_HOW_MUCH = (
    "how much is that",
    "what does that cost",
    "what's the total",
    "how much is it altogether",
    "what do i owe you",
    "how much do i pay",
)


def coffee(m: Maker) -> list[Turn]:
    """Order a drink, perhaps another size, something to eat, and the price of all of it."""
    content = m.draw("drink", lambda: (m.pick(SIZES), m.pick(DRINKS)))
    _, size, drink = content
    turns = [_drink(m, size, drink, content)]
    if m.random.random() < 0.5:
        was = size
        resized = m.draw_if_any(
            "resize", lambda: (m.pick([s for s in SIZES if s != was]), was, drink)
        )
        if resized:
            size = resized[1]
            turns.append(_resize(m, drink, resized))
    basket = [f"{size} {drink}"]
    for _ in range(m.pick((0, 1, 1, 1, 2))):
        added = m.draw_if_any("add", lambda: (m.pick(BITES), drink))
        if added and added[1] not in basket:
            basket.append(added[1])
            turns.append(_bite(m, added[1], added))
    if m.thorough:
        return _tallied(m, turns, basket)
    if m.random.random() < 0.75:
        turns.append(_total(m, basket))
    return turns


def _drink(m: Maker, size: str, drink: str, content: tuple[str, ...]) -> Turn:
    return Turn(
        m.pick(_ASK).format(f"a {size} {drink}"),
        f"a {size} {drink}, coming up.",
        "order",
        content,
        must=((f"{size} {drink}",),),
    )


def _resize(m: Maker, drink: str, content: tuple[str, ...]) -> Turn:
    size, was = content[1:3]
    return Turn(
        m.pick(_CHANGE).format(size),
        f"sure, a {size} {drink}.",
        "order",
        content,
        must=((size,), (drink,)),
        forbid=(was,),
    )


def _bite(m: Maker, bite: str, content: tuple[str, ...]) -> Turn:
    asked = m.pick((article(bite), article(bite), f"one {bite}"))
    return Turn(
        m.pick(_ADD).format(asked),
        f"one {bite}, anything else?",
        "order",
        content,
        must=((bite,),),
    )


def _total(m: Maker, basket: list[str]) -> Turn:
    content = m.draw("total", lambda: tuple(str(m.random.randint(2, 17)) for _ in basket))
    _price_list(m, basket, [int(p) for p in content[1:]])
    return _priced(m, content)


def _price_list(m: Maker, basket: list[str], prices: list[int]) -> None:
    """Put the basket's prices, and others, into the system prompt."""
    lines = [f"{item} {price_tag(p)}" for item, p in zip(basket, prices, strict=True)]
    for _ in range(m.pick((0, 0, 1, 2))):
        other = m.pick((f"{m.pick(SIZES)} {m.pick(DRINKS)}", m.pick(BITES), _resized(m, basket[0])))
        if other not in basket:
            lines.append(f"{other} {price_tag(m.random.randint(2, 17))}")
    m.random.shuffle(lines)
    m.facts["prices"] = f"prices: {', '.join(lines)}."


def _priced(m: Maker, content: tuple[str, ...]) -> Turn:
    prices = [int(p) for p in content[1:]]
    said = price_said(sum(prices))
    must = said.replace(" and fifty cents", "")
    fifty = must.replace(" dollars", "").replace(" dollar", "") + " fifty"
    if sum(prices) % 2:
        return _price(m, said, content, (said, f"{must} fifty", fifty), ())
    return _price(m, said, content, (said,), ("fifty cents",))


def _tallied(m: Maker, turns: list[Turn], basket: list[str]) -> list[Turn]:
    """Ask for the order's price after every item of the basket."""
    first = len(turns) - len(basket)  # the last turn that is about the first item
    asked, prices = turns[:first], ()
    for turn in turns[first:]:
        content = m.draw("total", lambda known=prices: (*known, str(m.random.randint(2, 17))))
        prices = content[1:]
        asked += [turn, _priced(m, content)]
    _price_list(m, basket, [int(p) for p in prices])
    return asked


def _resized(m: Maker, item: str) -> str:
    return f"{m.pick(SIZES)} {item.split(' ', 1)[1]}"


def _price(
    m: Maker, said: str, content: tuple[str, ...], right: tuple[str, ...], forbid: tuple[str, ...]
) -> Turn:
    return Turn(
        m.pick(_HOW_MUCH), f"that's {said}.", "total", content, must=(right,), forbid=forbid
    )


def pizza(m: Maker) -> list[Turn]:
    """Order some pizzas, their sizes, and where they go."""
    content = m.draw("pizza", lambda: (number(m.random.randint(1, 9)), m.pick(PIZZAS)))
    count, kind = content[1:]
    noun = f"{kind} pizza" if count == "one" else f"{kind} pizzas"
    order = f"{count} {noun}"
    ask = m.pick(("can i get {}", "i'd like {}", "i want to order {}", "{} please", "we need {}"))
    turns = [Turn(ask.format(order), f"{order}, what size?", "order", content, must=((order,),))]
    both = m.draw_if_any("pizza-sizes", lambda: (m.pick(SIZES), m.pick(SIZES), kind))
    each = m.draw_if_any("pizza-size", lambda: (m.pick(SIZES), count, kind))
    if count == "two" and both and m.random.random() < 0.7:
        one, other = both[1:3]
        if one == other:
            said, reply = f"both {one}", f"both {one}, okay."
        else:
            said, reply = f"one {one} and one {other}", f"one {one}, one {other}, okay."
        turns.append(Turn(said, reply, "order", both, must=((one,), (other,))))
    elif each:
        size = each[1]
        said = m.pick(("{}", "{} please", "make it {}", "i'd like {}")).format(size)
        turns.append(Turn(said, f"{size}, okay.", "order", each, must=((size,),)))
    if m.random.random() < 0.8:
        turns.append(_address(m))
    return turns


def _address(m: Maker) -> Turn:
    content = m.draw(
        "address",
        lambda: (number(m.random.randint(1, 99)), m.pick(STREETS), m.pick(STREET_KINDS)),
    )
    address = " ".join(content[1:])
    ask = (
        "please deliver to {}",
        "deliver it to {}",
        "bring it to {} please",
        "my address is {}",
        "send them to {}",
    )
    return Turn(
        m.pick(ask).format(address), f"{address}, got it.", "order", content, must=((address,),)
    )
