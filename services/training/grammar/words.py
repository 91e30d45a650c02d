"""The words that the dialogues are made of."""


def _each(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_ONES = _each(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = _each("twenty thirty forty fifty sixty seventy eighty ninety")
DIGITS = _ONES[:10]

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = _each(
    "january february march april may june july august september october november december"
)
ORDINALS = _each(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)
_PAST = ("five past", "ten past", "quarter past", "twenty past", "half past")
_TO = ("twenty to", "quarter to", "ten to", "five to")
_HOURS = _ONES[1:13]
CLOCK = tuple(
    [f"{m} {h}" for h in _HOURS for m in (*_PAST, *_TO)] + [f"{h} o'clock" for h in _HOURS]
)
TIMES = (*CLOCK, *_HOURS)

FIRST_NAMES = _each(
    "olivia anna ben carla david emma frank grace henry irene jack kate liam maria nora oscar paul "
    "rosa sam tina victor wendy peter laura simon julia"
)
LAST_NAMES = _each(
    "carter baker miller cooper fisher parker turner hunter mason porter walker weber stone brooks "
    "patel khan garcia lopez nguyen novak"
)
DOCTORS = (*LAST_NAMES, "reed", "singh", "cohen", "rossi")

SIZES = ("small", "medium", "large")
DRINKS = (
    "oat latte",
    "latte",
    "cappuccino",
    "flat white",
    "espresso",
    "americano",
    "black coffee",
    "hot chocolate",
    "green tea",
    "mint tea",
    "lemonade",
    "orange juice",
)
BITES = (
    "chocolate croissant",
    "croissant",
    "blueberry muffin",
    "cheese sandwich",
    "carrot cake",
    "cinnamon roll",
    "cookie",
    "bagel",
    "brownie",
    "banana bread",
)
PIZZAS = _each("pepperoni margherita mushroom hawaiian veggie salami tuna spinach ham seafood")
STREETS = _each(
    "baker river station park market church mill bridge garden hill lake forest king queen spring "
    "castle"
)
STREET_KINDS = ("street", "road", "lane", "avenue")

ROOMS = (
    "kitchen",
    "bedroom",
    "bathroom",
    "living room",
    "hallway",
    "office",
    "garage",
    "dining room",
    "nursery",
    "basement",
)
SWITCHED = ("lights", "lamp", "fan", "heater", "radio", "speakers", "tv", "blinds")
PLACES = (
    "airport",
    "station",
    "hotel",
    "hospital",
    "city centre",
    "harbour",
    "stadium",
    "theatre",
    "university",
    "museum",
)
WEATHERS = _each("sunny cloudy windy foggy stormy snowy rainy clear icy overcast misty humid")
RAINS = ("light rain", "heavy rain", "rain showers")
VISITED = (
    "science museum",
    "art museum",
    "history museum",
    "toy museum",
    "railway museum",
    "city zoo",
    "botanical garden",
    "old castle",
    "sea aquarium",
    "maritime museum",
)
SIGHTS = (
    "a planetarium",
    "a robot hall",
    "a rose garden",
    "a gift shop",
    "a cinema",
    "a tower",
    "a playground",
    "a tea room",
    "a whale hall",
    "an old train",
    "a stone bridge",
    "a picture hall",
)
NEXT_TO = ("station", "harbour", "park", "library", "town hall", "market", "river", "cathedral")
SOUPS = (
    "tomato soup",
    "onion soup",
    "carrot soup",
    "potato soup",
    "pumpkin soup",
    "mushroom soup",
    "lentil soup",
    "bean soup",
    "leek soup",
    "pea soup",
)
ROOTS = ("onions", "carrots", "leeks", "potatoes", "peppers", "shallots")
MEASURED = (
    "tomatoes",
    "mushrooms",
    "lentils",
    "beans",
    "peas",
    "pumpkin",
    "spinach",
    "celery",
)
FATS = ("butter", "oil", "ghee")


def number(n: int) -> str:
    """Write a number from 0 to 99 in words."""
    if n < 20:
        return _ONES[n]
    tens, ones = divmod(n, 10)
    return _TENS[tens - 2] + (f" {_ONES[ones]}" if ones else "")


def article(noun: str) -> str:
    """Put the article before the noun: `an espresso`, `a latte`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def price_tag(half_dollars: int) -> str:
    """Format a price as a menu does: `four fifty`, `three dollars`."""
    dollars, half = divmod(half_dollars, 2)
    if half:
        return f"{number(dollars)} fifty"
    return f"{number(dollars)} {'dollar' if dollars == 1 else 'dollars'}"


def price_said(half_dollars: int) -> str:
    """Format a price as a reply says it: `seven dollars and fifty cents`."""
    dollars, half = divmod(half_dollars, 2)
    said = f"{number(dollars)} {'dollar' if dollars == 1 else 'dollars'}"
    return f"{said} and fifty cents" if half else said
