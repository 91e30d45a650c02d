"""How words are pronounced, in the phones of pocketsphinx's US English model."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_PHONES = """
AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH
"""
PHONES = frozenset(_PHONES.split())

# Spelling to sound; at each place the first that fits counts. Crude on purpose: it serves the odd
# name that the dictionary of 126,000 words lacks, and the library's sentences help to recognise it.
_SPELLINGS = r"""
tion=SH AH N;sion=ZH AH N;ough=OW;augh=AO;eigh=EY;igh=AY;tch=CH;sch=SH;\bkn=N;\bwr=R;\bps=S;\bx=Z
\by=Y;ch=CH;sh=SH;th=TH;ph=F;wh=W;ck=K;qu=K W;ng=NG;gh=G;ee=IY;ea=IY;oo=UW;ou=AW;ow=OW;oi=OY;oy=OY
oa=OW;ai=EY;ay=EY;au=AO;aw=AO;ie=IY;ei=EY;ey=IY;ew=UW;ue=UW;er=ER;ir=ER;ur=ER;ar=AA R;or=AO R
c(?=[eiy])=S;g(?=[eiy])=JH;y\b=IY;y=IH;(?<=[a-z][a-z])e\b=;o\b=OW;a=AE;b=B;c=K;d=D;e=EH;f=F;g=G
h=HH;i=IH;j=JH;k=K;l=L;m=M;n=N;o=AA;p=P;q=K;r=R;s=S;t=T;u=AH;v=V;w=W;x=K S;z=Z
"""
# The last "=" separates a pattern from its sounds, as look-arounds hold one too.
_RULES = tuple(
    (re.compile(pattern), sounds.split())
    for pattern, _, sounds in (
        rule.rpartition("=") for rule in re.split(r"[;\n]", _SPELLINGS.strip())
    )
)


# People hum with a vowel, too; without it "mm-hmm" is heard as another word of the library.
_HUMMED = {"mm": ("AH M",), "hm": ("HH AH M",), "hmm": ("HH AH M",)}


@cache
def standard_dictionary() -> Mapping[str, tuple[str, ...]]:
    """Return the pronunciations of each word in the dictionary of pocketsphinx's wheel."""
    from pocketsphinx import get_model_path

    found: dict[str, tuple[str, ...]] = dict(_HUMMED)
    text = Path(get_model_path("en-us/cmudict-en-us.dict")).read_text(encoding="utf-8")
    for line in text.splitlines():
        entry, _, phones = line.partition(" ")
        word = entry.partition("(")[0]
        found[word] = (*found.get(word, ()), phones.strip())
    return found


def by_spelling(word: str) -> str:
    """Guess the pronunciation of `word` (letters a to z and apostrophes)."""
    letters = re.sub(r"([^aeiou])\1", r"\1", word.replace("'", ""))
    phones: list[str] = []
    at = 0
    while at < len(letters):
        # Every single letter has a rule, so one of them always fits.
        match, sounds = next((m, s) for rule, s in _RULES if (m := rule.match(letters, at)))
        phones += sounds
        at = match.end()
    return " ".join(phones)


def pronunciations(word: str, given: Mapping[str, str]) -> tuple[tuple[str, ...], bool]:
    """Return the pronunciations of `word`, and whether they are guessed from its spelling.

    Args:
        word: lower case, letters and apostrophes.
        given: pronunciations that take precedence over the dictionary's.
    """
    if word in given:
        return (given[word],), False
    dictionary = standard_dictionary()
    if word in dictionary:
        return dictionary[word], False
    stem, apostrophe, _ = word.rpartition("'s")
    if apostrophe and stem in dictionary:
        return tuple(f"{phones} Z" for phones in dictionary[stem]), False
    return (by_spelling(word),), True
