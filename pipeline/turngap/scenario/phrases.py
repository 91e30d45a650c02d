"""Search a text for a phrase, ignoring case and punctuation; numbers may be words or digits."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from text_to_num import alpha2digit  # type: ignore[import-untyped]

# Arguments: text, language, and the number up to which a lone number word stays a word.
_in_digits: Callable[[str, str, float], str] = alpha2digit  # type: ignore[assignment]

# Put behind a word that is no number, or denies nothing: "one moment", "no problem".
_IDLE = "ǂ"
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff'’ʼ]")
# Vowel signs that readers of Arabic and Hebrew do without, and the stroke that widens a word.
_POINTS = re.compile("[\u0591-\u05bd\u05bf-\u05c7\u0640\u064b-\u0652\u0670]")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9}
_CURRENCIES = {"$": "dollars", "€": "euros", "£": "pounds"}
_UNITS = frozenset((*_CURRENCIES.values(), "percent", "degrees"))

_NO_NUMBER = (
    r"\b((?:no|any|every|some|this|that|which|the|each|another|an? \w+) one(?! hundred)"
    rf"|one(?= (?:more )?(?:moment|second{_IDLE}|sec|thing|another)\b)"
    r"|at first|first(?= of all\b))\b"
)
_HARMLESS = (
    r"\b(no(?= (?:problems?|worries|doubt|trouble|need|rush|matter)\b)|(?<=no )doubt"
    r"|not(?= (?:only|just|merely|bad|to worry|to mention|an? (?:problem|issue))\b)"
    r"|(?<=why )not|(?<=or )not|(?<=if )not|dont(?= (?:worry|forget|hesitate)\b)"
    r"|wont(?= be an? (?:problem|issue)\b)|cant(?= wait\b)|never(?= mind\b)|nothing(?= but\b)"
    r"|(?<=anything )but|without(?= (?:an? |any )?(?:problems?|trouble|delay)\b))"
)
_NUMBER = r"-?\d+(?:\.\d+)?"
_HOUR = r"(1[0-2]|[1-9])\b(?![:.]?\d)"


def _scaled(number: str, zeros: int) -> str:
    whole, _, part = number.partition(".")
    return (whole + part.ljust(zeros, "0")).lstrip("0") if len(part) <= zeros else number


def _money(m: re.Match[str]) -> str:
    return f"{m[1]}.{(m[3] or m[4]).zfill(2)} {m[2]}"


def _past(m: re.Match[str]) -> str:
    return f"{m[2]}:{ {'half': '30', 'quarter': '15'}.get(m[1]) or m[1].zfill(2) }"


def _to(m: re.Match[str]) -> str:
    return f"{(int(m[2]) - 2) % 12 + 1}:{60 - (15 if m[1] == 'quarter' else int(m[1]))}"


_Subs = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]

# Before text2num, which takes "second" for 2nd and "2 million" for two numbers.
_EARLY: _Subs = (
    (r"\b(?:[a-z]\.){2,}", lambda m: m[0].replace(".", "") + " "),  # p.m.
    (r"(?<=\w )no\. ?(?=\d)", "number "),
    (r"(?<=[a-z])-(?=[a-z])", " "),  # four-fifty
    (r"(?<=\d),(?=\d{3}(?:,\d{3})*(?!,?\d))", ""),  # 1,200
    (r"\b(\d{1,3}(?:\.\d{3})+),(\d\d?)\b", lambda m: f"{m[1].replace('.', '')}.{m[2]}"),
    (r"(?<![\d,.])(\d+),(\d\d?)(?![,.]?\d)", r"\1.\2"),  # 1,5
    (r"(?<!\d)\d+(?:\.\d+){2,}", lambda m: m[0].replace(".", "-")),  # 555.014.27
    (r"(?<![\w.])\.(?=\d)", "0."),
    (r"\b(?:zero|0)(?: ?%| percent)?(?= (?:chance|risk)\b)", "no"),
    (r"\b((?:an?|one|per|few|split|each|every|any) second)\b", rf"\1{_IDLE}"),
    (_NO_NUMBER, rf"\1{_IDLE}"),
    (r"\ban? (?=hundred\b|thousand\b|million\b|billion\b)", "one "),
    (rf"(?<![\d.])({_NUMBER}) ?({'|'.join(_SCALES)})\b", lambda m: _scaled(m[1], _SCALES[m[2]])),
)
_LATE: _Subs = (
    (r"\b(\d+) and a half\b", r"\1.5"),
    (r"\bhalf (?:an? )?10(0+)\b", r"5\1"),
    (r"\b(\d+\.\d+) 1(0{2,9})\b", lambda m: _scaled(m[1], len(m[2]))),
    (r"(?<![^\s(:])(?:[-−–]|minus |negative )(?=[$€£]?\d)", "-"),
    (r"(-?)([$€£])(-?) ?(\d+(?:\.\d+)?)", r"\1\3\4 \2 "),
    (r"%|\bper cent\b", " percent"),
    (r"°|\bdegree\b", " degrees "),
    (r" *(?:degrees *)?\b([cf])(?:elsius|entigrade|ahrenheit)\b", r" degrees \1"),
    (r"\b(dollar|euro|pound)\b", r"\1s"),
    (r"  +", " "),
    (
        rf"(?<![\w.:-])({_NUMBER})(?: degrees(?: [cf])?)? below"
        r"(?: (?:0|freezing)\b|(?= *[.,;!?]|$))",
        r"-\1 degrees",
    ),
    (  # seven dollars fifty
        r"\b(\d+) (dollars|euros|pounds|[$€£]) ?(?:,? ?(?:and )?(\d\d?) (?:cents?|pence)|(\d\d))\b"
        r"(?![.:]?\d)",
        _money,
    ),
    (rf"\b(?:a )?(half|quarter|[1-5]?\d)(?: minutes?)? (?:past|after) {_HOUR}", _past),
    (rf"\b(?:a )?(quarter|[1-5]?\d(?= minutes))(?: minutes)? (?:to|before) {_HOUR}", _to),
    # Anywhere else "ten to nine" may be a range.
    (rf"(?:^|(?<=ts |is |at |by ))(5|10|20|25) to {_HOUR}(?= *(?:[.,;!?]|$|now\b))", _to),
    (r"(?<![:.\d-])(?<!\d )\b(1[0-2]|[1-9]) ?(?:oclock\b|(?=[ap]m\b))", r"\1:00 "),
    (_HARMLESS, rf"\1{_IDLE}"),
)

# Scripts that put no space between words are read by characters; a vowel that is written before or
# behind its consonant belongs to it.
_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff"
_KATAKANA = "\u30a0-\u30ff"
_UNSPACED = f"{_HAN}{_KATAKANA}\u3040-\u309f\u0e01-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3"
_LEADS, _TRAILS = "\u0e40-\u0e44\u0ec0-\u0ec4", "\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3"
_HIRAGANA = re.compile("[\u3041-\u309f]")
_COMPOUND = re.compile(f"[{_HAN}]{{2}}|[{_KATAKANA}]{{2}}")
_KOREAN = re.compile("[\uac00-\ud7a3]+")
_SEMITIC = re.compile("[\u05d0-\u05ea\u0620-\u06ff]{3,}")
# Accents of Vietnamese alone, where another accent makes another word.
_TONES = re.compile("[\u0309\u0323\u031b]")

_NEGATION = re.compile(
    r"(?<!\S)(?:not?|nope|nah|never|none|nobody|nothing|nowhere|neither|nor|without|cannot|"
    r"doubt(?:ful)?|hardly|barely|scarcely|rarely|seldom|(?<!or )less|"
    r"(?<!a )(?<!the )(?<!your )(?:little|few)|un(?:able|likely|available|sure|certain)|"
    rf"impossible|improbable|fail(?:s|ed)?|refused?|instead of|rather than|anything but{_IDLE}|"
    r"free (?:of(?! charge)|from)|far from (?:certain|sure)|rule[sd]? out|holds? off|sold out|"
    r"out of(?! (?:the(?! question)|\d|town))|fully booked|should have been|be surprised|too early|"
    r"(?:is|are|was|were|wo|ca|could|should|would|do|does|did|has|have|had|ai|must)nt)(?!\S)"
)
# In a clause that names a chance.
_SLIM = re.compile(
    r"(?<!\S)(?:low(?:er)?|small|slim|slight|tiny|minimal|remote|poor|negligible|0|1 in \d+|"
    r"[0-4]?\d(?:\.\d+)? percent)(?!\S)"
)
_CHANCE = re.compile(r"(?<!\S)(?:chances?|odds|probability|likelihood|possibility|risk)(?!\S)")
_ANSWERS = frozenset(("no", "nope", "nah"))
_BUT = frozenset(("but", "although", "though", "whereas", "instead", "rather"))
_ENDS = re.compile("[.!?…\n。！？।؟]")
_PARTS = re.compile("[^\\s'\"“”/-]|\\s-\\s")


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, or a number in the form in which it is compared.

    Attributes:
        word: in lower case, decomposed; a number as -20, 4.50 or 7:30.
        mark: the text between it and the token before; "" if there is none, not even a space.
        clause: number of its clause; `sentence`: of its sentence.
        joins: whether it continues the number before: the 30 of "seven thirty".
    """

    word: str
    mark: str
    clause: int
    sentence: int
    is_number: bool
    joins: bool

    @property
    def bare(self) -> str:
        """Return the word composed, and without accents if it is Latin or Greek."""
        if self.word < "\u0400":
            return "".join(c for c in self.word if not unicodedata.combining(c))
        return unicodedata.normalize("NFC", self.word).replace("ё", "е")


def tokens(text: str) -> list[str]:
    """Return the words of `text` as they are compared: "Table four, 7:30" gives table, 4, 7:30.

    text2num turns English number words into digits, each number by itself: "forty two" is 42, "four
    two" is 4 2, "the twelfth" is the 12.
    """
    return [_unit(token.bare).rstrip(_IDLE) for token in _read(text)]


def says(text: str, phrase: str) -> bool:
    """Return whether the words of `phrase` are in `text`, one after the other.

    Numbers that follow one another are one number: "four seven one" says "471", "seven thirty" says
    "7:30", and neither says "7". A phrase without a word is in no text.
    """
    return any(not why for _, why in _places(text, phrase))


def mentions(text: str, phrases: Iterable[str], *, no: bool = True) -> Mapping[str, str | None]:
    """Return for each phrase "" if `text` says it, None if it does not, and the reason if unsure.

    It is unsure if the same clause has "not", "little chance" or the like, outside of the phrases.
    With `no`, it is also unsure after a "No, …".
    """
    found = {phrase: list(_places(text, phrase)) for phrase in phrases}
    negative = [p for p in found if _negations(_read(p))]
    asked = {i for phrase in negative for span, _ in found[phrase] for i in span}
    denied = _denied(_read(text), asked, no=no)

    def why_not(span: range) -> str:
        return next((f"“{denied[i]}” may deny it" for i in span if i in denied), "")

    return {
        phrase: min((why or why_not(span) for span, why in places), key=len, default=None)
        for phrase, places in found.items()
    }


# --- reading --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _read(text: str) -> Sequence[_Token]:
    """Read a text as words and numbers."""
    text = text.replace("½", ".5").replace("¼", ".25").replace("¾", ".75")
    text = re.sub(r"[^\S\n]+", " ", text)
    text = unicodedata.normalize("NFKC", _POINTS.sub("", _INVISIBLE.sub("", text)).casefold())
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    for pattern, by in _EARLY:
        text = re.sub(pattern, by, text)
    # 0: numbers below four become digits, too, whatever is next to them.
    text = _in_digits(text, "en", 0)
    for pattern, by in _LATE:
        text = re.sub(pattern, by, text)
    # "oh" between digits is a 0: in "eight three oh six", but not in "oh, I see".
    text = re.sub(r"(?<=\d )oh?(?= (?:oh? )*\d)", "0", text)
    return list(_tokens(unicodedata.normalize("NFD", text)))


def _tokens(text: str) -> Iterator[_Token]:
    marks = "".join({c for c in text if unicodedata.category(c)[0] == "M"})
    mark = f"[{re.escape(marks)}]" if marks else r"(?!)"
    token = re.compile(
        rf"(?P<number>0?(\d\d?:\d\d)(?![\d:])|(?:(?<![\w.])-)?\d+(?:\.\d+(?!\.?\d))?)"
        rf"(?P<ordinal>(?:st|nd|rd|th)\b)?"
        rf"|[$€£]|[{_LEADS}]?[{_UNSPACED}]{mark}*[{_TRAILS}]*|(?:(?![{_UNSPACED}])[^\W\d_]{mark}*)+"
    )
    end, clause, sentence, before, ordinal = 0, 0, 0, "", True
    for found in token.finditer(text):
        between, end = text[end : found.start()], found.end()
        word = found["number"] or found[0]
        sentence += bool(_ENDS.search(between))
        clause += bool(_PARTS.search(between)) + (word in _BUT)
        # 20 and 2025 are two numbers, as are 12th and 10.
        year = len(before) <= 2 and re.fullmatch(r"(?:19|20)\d\d", word)
        apart = between.strip() or ordinal or found["ordinal"] or year
        joins = not apart and (before + word).isdigit()
        yield _Token(word, between, clause, sentence, bool(found["number"]), joins)
        before, ordinal = word, bool(found["ordinal"]) or not found["number"]


# --- mentions -------------------------------------------------------------------------------------


def _places(text: str, phrase: str) -> Iterator[tuple[range, str]]:
    """Yield the places at which `text` says `phrase`, and why each is unsure."""
    said, wanted = _read(text), list(_parts(_read(phrase)))
    strict = bool(_TONES.search(unicodedata.normalize("NFD", text + phrase)))
    for at in range(len(said) if wanted else 0):
        if (found := _match(said, at, wanted, strict=strict)) is not None:
            end, why = found
            yield range(at, end), why or _why_part(said, at, end)


def _parts(wanted: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """Yield the words of a phrase and its numbers, of one or more tokens each."""
    at = 0
    while at < len(wanted):
        end = at + 1
        while end < len(wanted) and wanted[at].is_number and wanted[end].is_number:
            end += 1
        if not _is_long(wanted[at:end]):
            end = next((k for k in range(at + 1, end) if not wanted[k].joins), end)
        yield wanted[at:end]
        at = end


def _match(
    said: Sequence[_Token], at: int, wanted: Sequence[Sequence[_Token]], *, strict: bool
) -> tuple[int, str] | None:
    """Return where the phrase ends if it begins at `at`, and why that is unsure."""
    whys = [""]
    for i, part in enumerate(wanted):
        token, there = part[0], _unit(said[at].word) if at < len(said) else ""
        if token.is_number:
            if (found := _number_end(said, at, part)) is None:
                return None
            at, why = found
            whys.append(why)
            unit = said[at].word if at < len(said) else ""
            if unit == "percent" and not (i + 1 < len(wanted) and wanted[i + 1][0].word == unit):
                whys.append("it is a percentage")
        elif token.word in _CURRENCIES and there != _unit(token.word):
            if there in _UNITS:
                return None  # but "seven fifty" is $7.50
        elif at == len(said) or (why := _same(token, said[at], strict=strict)) is None:
            return None
        else:
            whys.append(why)
            at += 1
    return at, max(whys, key=len)


def _unit(word: str) -> str:
    return _CURRENCIES.get(word, word)


def _same(wanted: _Token, said: _Token, *, strict: bool) -> str | None:
    """Compare two words: None if they differ, "" if they are the same, the reason if unsure."""
    one, other = wanted.bare, said.bare
    if _unit(wanted.word) == _unit(said.word):
        return ""
    if one == other and not strict and (wanted.word == one or said.word == other):
        return ""
    if _KOREAN.fullmatch(one) and other.startswith(one):
        return ""  # particles follow a noun without a space
    if _SEMITIC.fullmatch(one) and one in other:
        return f"it is part of “{other}”"
    return None


def _why_part(said: Sequence[_Token], at: int, end: int) -> str:
    """Return why the phrase may be a part of a longer word, in Japanese."""
    edges = [i for i in (at, end) if 0 < i < len(said) and not said[i].mark]
    pairs = [said[i - 1].bare[-1] + said[i].bare[0] for i in edges]
    if any(map(_COMPOUND.fullmatch, pairs)) and any(_HIRAGANA.match(t.word) for t in said):
        return "it may be part of a longer word: use regex"
    return ""


def _number_end(
    said: Sequence[_Token], at: int, wanted: Sequence[_Token]
) -> tuple[int, str] | None:
    """Return where the wanted number ends if it is said from `at` on, and why that is unsure."""
    read, digits = _readings(wanted, said=False), sum(len(t.word) for t in wanted)
    for end in range(at + 1, len(said) + 1):
        number = said[at:end]
        if not number[-1].is_number or (
            len(number) > 1 and sum(len(t.word) for t in number) > digits
        ):
            return None
        if not read & _readings(number, said=True):
            continue
        goes_on = end < len(said) and said[end].joins
        if not all(t.joins for t in number[1:]) and (goes_on or not _is_long(number)):
            continue
        around = [*said[at - said[at].joins : at], *said[end : end + goes_on]]
        if not around:
            return end, ""
        # Digits one by one are one number.
        if any(len(t.word) > 1 for t in (*number, *around)):
            return end, "it may be part of another number"
    return None


def _is_long(numbers: Sequence[_Token]) -> bool:
    """Return whether numbers between marks may be one: "555-014-27", not "table 4, 7 people"."""
    joined = "".join(t.word for t in numbers)
    return joined.isdigit() and (len(numbers) > 2 or len(joined) > 4)


def _readings(numbers: Sequence[_Token], *, said: bool) -> set[str]:
    """Return what numbers that follow one another may mean: digits, a time or a decimal."""
    joined, first = "".join(t.word for t in numbers), numbers[0].word
    if ":" in joined:
        return {joined, joined.removesuffix(":00")} if said else {joined}
    whole, _, part = joined.partition(".")
    if len(numbers) > 1:
        whole, part = first, joined[len(first) :]
    found = {joined.rstrip("0").rstrip(".") if "." in joined else joined}
    if len(part) == 2 and len(whole) <= 2 and (len(numbers) == 1 or part != "00"):
        found.add(f"{whole}.{part}".rstrip("0").rstrip("."))
        if whole.isdigit() and int(whole) < 24 and int(part) < 60:
            found.add(f"{whole}:{part}")
    return found


# --- negation -------------------------------------------------------------------------------------


def _negations(words: Sequence[_Token]) -> list[range]:
    """Return the words of a clause that deny or weaken it."""
    text = " ".join(token.word for token in words)
    found = [*_NEGATION.finditer(text), *(_SLIM.finditer(text) if _CHANCE.search(text) else ())]
    return [range(text.count(" ", 0, m.start()), text.count(" ", 0, m.end()) + 1) for m in found]


def _denied(said: Sequence[_Token], asked: set[int], *, no: bool) -> Mapping[int, str]:
    """Return, by token, the negation that may deny it; those in `asked` deny nothing."""
    denied: dict[int, str] = {}
    clauses = [list(indexes) for _, indexes in groupby(range(len(said)), lambda i: said[i].clause)]
    covered = -1
    for n, clause in enumerate(clauses):
        first, last = clause[0], clause[-1]
        spans = _negations([said[i] for i in clause])
        nots = [n for n in (clause[s.start : s.stop] for s in spans) if asked.isdisjoint(n)]
        ends = any(last in span for span in nots)
        if not nots or said[first].sentence == covered:
            continue
        if "?" in said[first].mark and n:
            first = clauses[n - 1][0]  # "Rain tomorrow? No."
        if said[last].word in _ANSWERS and ends:
            if no:  # "No, …" denies all that follows
                return denied | dict.fromkeys(range(first, len(said)), said[last].word)
            continue
        for later in clauses[n + 1 :]:
            if said[later[0]].sentence != said[clause[0]].sentence or said[later[0]].word in _BUT:
                break
            # "It will not, however, rain"; and "no rain, snow or hail".
            if ends or any(said[i].word in ("or", "nor") for i in later):
                last = later[-1]
        covered = said[clause[0]].sentence if ends else covered
        why = " ".join(said[i].word for i in nots[0])
        denied |= dict.fromkeys(range(first, last + 1), why)
    return denied
