from pathlib import Path

import pytest
from loguru import logger

from turngap.core.errors import InputError
from turngap_services.stt import CMNINIT, PocketsphinxSettings
from turngap_services.stt.pocketsphinx import prepare
from turngap_services.stt.sentences import (
    PHONES,
    Saying,
    build_model,
    by_spelling,
    library_sayings,
    make_decoder,
    pronunciations,
)


def entries(dictionary: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in dictionary.splitlines())


def test_a_word_has_all_its_pronunciations_in_the_dictionary() -> None:
    model = build_model([Saying("s", "a latte")], {})
    assert entries(model.dictionary) == {"a": "AH", "a(2)": "EY", "latte": "L AA T EY"}
    assert model.guessed == {}


def test_words_the_dictionary_lacks_are_spelled_out_and_named_with_their_scenario() -> None:
    model = build_model([Saying("first", "call Zyntrobex"), Saying("second", "Zyntrobex")], {})
    assert model.guessed == {"zyntrobex": "first"}
    phones = entries(model.dictionary)["zyntrobex"].split()
    assert phones[0] == "Z"
    assert set(phones) <= PHONES


def test_given_pronunciations_go_before_the_dictionarys() -> None:
    model = build_model([Saying("s", "call siobhan")], {"siobhan": "SH IH V AO N"})
    assert entries(model.dictionary)["siobhan"] == "SH IH V AO N"
    assert model.guessed == {}


def test_humming_has_a_way_with_a_vowel() -> None:
    assert set(pronunciations("hmm", {})[0]) == {"HH M", "HH AH M"}


def test_possessive_of_a_known_word_is_no_guess() -> None:
    assert pronunciations("latte's", {}) == (("L AA T EY Z",), False)


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("knight", "N AY T"),
        ("phone", "F AA N"),
        ("cellar", "S EH L AA R"),
        ("zanty", "Z AE N T IY"),
        ("yobo", "Y AA B OW"),
        ("e", "EH"),
    ],
)
def test_spelling_rules(word: str, phones: str) -> None:
    assert by_spelling(word) == phones


def test_every_string_of_letters_has_a_sound() -> None:
    for a in "abcdefghijklmnopqrstuvwxyz":
        for b in "abcdefghijklmnopqrstuvwxyz":
            assert set(by_spelling(a + b).split()) <= PHONES
            assert by_spelling(a + b)


@pytest.mark.parametrize("text", ["that's $5", "да", "…"])
def test_text_that_cannot_be_read_aloud_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="scenario 'odd'") as e:
        build_model([Saying("fine", "hello"), Saying("odd", text)], {})
    assert e.value.kind == "stt.unspeakable"
    assert "five dollars" in e.value.hint


@pytest.mark.parametrize("phones", ["", "QQ", "s ih"])
def test_pronunciation_with_unknown_phones_is_refused(phones: str) -> None:
    with pytest.raises(InputError, match="'siobhan'") as e:
        build_model([Saying("s", "hello")], {"siobhan": phones})
    assert "AA" in e.value.hint


def test_an_empty_library_is_refused() -> None:
    with pytest.raises(InputError, match="no person says anything"):
        build_model([], {})


def test_clauses_of_a_sentence_are_sentences_of_the_model() -> None:
    model = build_model([Saying("s", "well, hello there")], {})
    assert "<s> hello there" in model.arpa
    assert "<s> well hello" in model.arpa


def test_the_shipped_library_makes_a_model_that_a_decoder_loads() -> None:
    sayings = library_sayings(None)
    model = build_model(sayings, {})
    assert len(sayings) >= 30
    decoder = make_decoder(model, language_weight=11, cmninit=CMNINIT)
    for word in entries(model.dictionary):
        assert decoder.lookup_word(word) is not None


def test_guessed_words_are_named_when_the_agent_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nturns: [{say: call Zyntrobex, audio: a.wav}]\n")
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    try:
        prepare(PocketsphinxSettings(library=tmp_path))
        given = {"zyntrobex": "Z IH N T R AH B EH K S"}
        prepare(PocketsphinxSettings(library=tmp_path, pronunciations=given))
    finally:
        logger.remove(sink)
    (warning,) = said
    assert "'zyntrobex' (scenario 'x')" in warning


def test_backchannels_are_sayings_too(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "name: x\nturns:\n- say: hello\n  audio: a.wav\n  backchannels:\n"
        "  - {say: mm-hm, audio: b.wav, reply_ms: 500}\n"
    )
    assert library_sayings(tmp_path) == [Saying("x", "hello"), Saying("x", "mm-hm")]


def test_a_cough_is_no_saying(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "name: x\nturns:\n- say: hello\n  audio: a.wav\n  backchannels:\n"
        "  - {say: '[cough]', audio: b.wav, reply_ms: 500}\n"
    )
    assert library_sayings(tmp_path) == [Saying("x", "hello")]
