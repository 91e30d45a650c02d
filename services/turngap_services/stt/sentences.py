"""The closed-domain model: a 3-gram of the library's sentences, and their pronunciation."""

import math
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rapidfuzz.distance import Levenshtein

from turngap.core.errors import InputError
from turngap_services.loading import Fitted
from turngap_services.sound import RATE
from turngap_services.stt import Side
from turngap_services.text import clauses, scenarios, spoken_words, unspoken

if TYPE_CHECKING:
    from pocketsphinx import Decoder


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


# How much of the 3-gram is kept for words in an order that no sentence has, and how much less
# likely than the best a path may be before it is dropped. With pocketsphinx's own beams, and half
# of the 3-gram kept, 28.2 % of the words are wrong in 60 generated turns (`training.turns`, set
# `fit`: rooms, noise, telephones); with these 9.4 %, for a third more CPU. Of people in noise at
# 20 dB it was 11.3 % and is 5.7 % (25 recordings).
DISCOUNT = 0.05
BEAMS = {"beam": 1e-80, "pbeam": 1e-80, "wbeam": 1e-60, "lpbeam": 1e-60, "lponlybeam": 1e-50}


@dataclass(frozen=True, slots=True)
class Saying:
    """A text that the recogniser must know, and its scenario."""

    scenario: str
    text: str


@dataclass(frozen=True, slots=True)
class Model:
    """The parts of a decoder, as the text of the files that it reads.

    Attributes:
        arpa: the 3-gram in ARPA format.
        dictionary: one pronunciation a line.
        guessed: words whose pronunciation was guessed from their spelling, with their scenario.
        sentences: the words of each text.
    """

    arpa: str
    dictionary: str
    guessed: Mapping[str, str]
    sentences: tuple[tuple[str, ...], ...]

    def phones(self) -> dict[str, int]:
        """Return how many phones each pronunciation has, by its name in the dictionary."""
        entries = (line.split() for line in self.dictionary.splitlines())
        return {name: len(phones) for name, *phones in entries}


def library_sayings(library: Path | None) -> list[Saying]:
    """Return the sentences of people in the library, backchannels included, each text once.

    A text that is recorded twice, for example at another pace, is not more likely; a cough has no
    text.
    """
    said_in: dict[str, str] = {}
    for scenario in scenarios(library):
        for turn in scenario.turns:
            for said in (turn, *(b for b in turn.backchannels if not b.is_sound)):
                said_in.setdefault(said.say, scenario.name)
    return [Saying(scenario, text) for text, scenario in said_in.items()]


def library_replies(library: Path | None) -> list[Saying]:
    """Return the possible words of agents in the library: replies, and words required or forbidden.

    A reply with a tool's result gives the words around it, because the library does not know the
    result.
    """
    said_in: dict[str, str] = {}
    for scenario in scenarios(library):
        for turn in scenario.turns:
            reply, expected = turn.reply or "", turn.expect.reply
            texts = re.split(r"\{\w+\}", reply) if turn.calls else [reply]
            if expected is not None:
                texts += [*expected.any_of, *expected.all_of, *expected.forbid]
            for text in texts:
                if spoken_words(text) and not unspoken(text):
                    said_in.setdefault(text, scenario.name)
    return [Saying(scenario, text) for text, scenario in said_in.items()]


def build_model(sayings: Iterable[Saying], given: Mapping[str, str]) -> Model:
    """Make the model that hears `sayings`.

    Args:
        sayings: the texts to know.
        given: pronunciations of words, in ARPAbet without stress.

    Raises:
        InputError: a text cannot be read aloud, or a pronunciation has an unknown phone.
    """
    for word, phones in given.items():
        if not phones.split() or not PHONES.issuperset(phones.split()):
            raise InputError(
                "stt.pronunciation",
                f"the pronunciation {phones!r} of {word!r} is not made of known phones",
                hint=f"allowed: {', '.join(sorted(PHONES))}",
            )
    sentences: list[list[str]] = []
    whole: list[tuple[str, ...]] = []
    where: dict[str, str] = {}
    for saying in sayings:
        words = spoken_words(saying.text)
        if (strange := unspoken(saying.text)) or not words:
            raise InputError(
                "stt.unspeakable",
                f"scenario {saying.scenario!r}: say {saying.text!r} cannot be read aloud"
                + (f" because of {' '.join(sorted(strange))}" if strange else ""),
                hint="write it as it is spoken, in letters a to z: `five dollars`, not `$5`",
            )
        # People pause at commas, and the VAD then cuts the sentence there.
        parts = clauses(saying.text)
        whole.append(tuple(words))
        sentences += [words] if len(parts) == 1 else [words, *parts]
        for word in words:
            where.setdefault(word, saying.scenario)
    if not sentences:
        raise InputError("stt.no_sentences", "no person says anything in the scenario library")
    lines: list[str] = []
    guessed: dict[str, str] = {}
    for word in sorted(where):
        ways, is_guess = pronunciations(word, given)
        if is_guess:
            guessed[word] = where[word]
        lines += [f"{word}({n}) {p}" if n > 1 else f"{word} {p}" for n, p in enumerate(ways, 1)]
    from pocketsphinx.lm import ArpaBoLM

    text = "\n".join(" ".join(words) for words in sentences)
    lm = ArpaBoLM(text=text, add_start=True, discount_mass=DISCOUNT)
    lm.compute()
    out = StringIO()
    lm.write(out)
    return Model(out.getvalue(), "\n".join(lines) + "\n", guessed, tuple(whole))


@cache
def library_model(
    library: Path | None, given: tuple[tuple[str, str], ...], side: Side = "person"
) -> Model:
    """Return the model of one side of the library's conversations, made once a process."""
    sayings = library_sayings if side == "person" else library_replies
    return build_model(sayings(library), dict(given))


def make_decoder(model: Model, *, language_weight: float, cmninit: str) -> "Decoder":
    """Make a decoder with fresh cepstral means: about 10 ms with a dictionary this small."""
    from pocketsphinx import Decoder, get_model_path

    with tempfile.TemporaryDirectory(prefix="turngap-stt-") as folder:
        arpa, dictionary = Path(folder, "domain.arpa"), Path(folder, "domain.dict")
        arpa.write_text(model.arpa, encoding="utf-8")
        dictionary.write_text(model.dictionary, encoding="utf-8")
        return Decoder(
            hmm=get_model_path("en-us/en-us"),
            lm=str(arpa),
            dict=str(dictionary),
            samprate=RATE,
            lw=language_weight,
            cmninit=cmninit,
            # The two later passes change 0.2 % WER and take the final text from 1.6 to 45 ms.
            fwdflat=False,
            bestpath=False,
            loglevel="FATAL",
            **BEAMS,
        )


# Each is about -4 to 0, or 0 to 4; see `Heard.features`.
FEATURES = ("bias", "order", "oddest", "misfit", "sound", "worst", "drawn", "few", "unread")
# A sound that is audible for less is a cough or a hum more often than a sentence.
LEAST_MS = 400.0
# The spans of a decoder's frames.
FRAME_MS = 10.0


@dataclass(frozen=True, slots=True)
class Word:
    """A word as decoded.

    Attributes:
        text: as in the sentences.
        frames: its length in frames.
        phones: the number of phones in its pronunciation.
        sound: how well it fits the sound, natural logarithm over its frames.
        order: how likely it is after the two words before, natural logarithm.
    """

    text: str
    frames: int
    phones: int
    sound: float
    order: float


@dataclass(frozen=True, slots=True)
class Heard:
    """An utterance as the decoder reads it.

    Attributes:
        words: in order, at least one.
        sounding_ms: how long it is about as loud as a voice.
        sentences: those that the recogniser knows.
    """

    words: tuple[Word, ...]
    sounding_ms: float
    sentences: Sequence[Sequence[str]]

    def features(self) -> dict[str, float]:
        """Return the values of `FEATURES`."""
        words = self.words
        frames = sum(word.frames for word in words)
        order = [word.order for word in words]
        sound = [word.sound / word.frames for word in words]
        texts = [word.text for word in words]
        # Words of a sentence may be missing: people stop in the middle of it.
        misfits = min(Levenshtein.distance(texts, s, weights=(0, 1, 1)) for s in self.sentences)
        return {
            "bias": 1.0,
            "order": sum(order) / len(order) * 100,
            "oddest": min(order) * 20,
            "misfit": misfits / len(words),
            "sound": sum(word.sound for word in words) / frames * 300,
            "worst": min(sound) * 250,
            "drawn": math.log(max(word.frames / word.phones for word in words)),
            "few": 1 / len(words),
            "unread": min(max(self.sounding_ms - frames * FRAME_MS, 0.0) / 500, 4.0),
        }


class Known(Fitted):
    """Parameters that were fitted (`services/training/unknown`)."""

    features = FEATURES
    kind = "stt.fitted_file"
    command = "python -m training.unknown.fit"

    least_log_odds: float
    """Below these log odds it is another sentence."""

    def knows(self, heard: Heard) -> bool:
        """Return whether the utterance is one of the sentences."""
        return self.odds(heard.features()) >= self.least_log_odds


@cache
def shipped() -> Known:
    """Return the fitted parameters that ship with turngap, read once a process."""
    return Known.shipped("turngap_services.stt", "known.json")
