"""The mind of `adaptive`, event by event: no audio, no pipeline, no waiting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.clock import ms_to_ns
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.attention import (
    IDLE_MS,
    LEAD_MS,
    MEANT_MS,
    PENDING_MS,
    STIR_MS,
    WEIGH_MS,
    Action,
    Ask,
    Attention,
    Begin,
    Conclude,
    Discard,
    End,
    Give,
    Heard,
    Listen,
    Pause,
    Settle,
    Speculate,
    Weigh,
    Withdraw,
    Withhold,
)
from turngap_services.turn.over import FEATURES, STEADY_MS, Evidence, Over, Pauses
from turngap_services.turn.voice import Melody

PACKET_MS = 20


def made_up(**log_odds: float) -> Over:
    """Make parameters that are not fitted: only these features count."""
    pauses = Pauses(median_ms=400, sigma=0.8, least_ms=100, most_ms=3000)
    return Over(about="", pauses=pauses, log_odds=dict.fromkeys(FEATURES, 0.0) | log_odds)


# Whole sentences end after the least silence, and what others mostly follow does not.
OVER = made_up(bias=4, preposition=-3, link=-3, filler=-3, judged=-4, complete=5, read=1, whole=0.5)


def hold_after(words: str, certainty: float = 0.95, **known: object) -> float:
    evidence = Evidence(tuple(words.split()), **known)  # type: ignore[arg-type]
    return OVER.hold_ms(OVER.probability(evidence), certainty)


class Scene:
    """A person and an agent on a line: time in ms, packets of 20 ms, audio heard as it sounds."""

    def __init__(self, **settings: object) -> None:
        given = {
            "hold_ms": 240,
            "certainty": 0.95,
            "conclude_ms": 0,
            "smart_turn": False,
            **settings,
        }
        self.mind = Attention(AdaptiveSettings.model_validate(given), OVER)
        self.melody: Melody | None = None
        self.now = 0.0
        self.did: list[tuple[float, Action]] = []
        self.pauses: list[tuple[float, float]] = []
        self._onset: float | None = None
        self._audible: float | None = None
        self._stirring: float | None = None
        self._voiced = 0.0
        self.line_ms = 0.0  # how much later a sample is now thought to have sounded

    def _ns(self, ms: float) -> int:
        return ms_to_ns(ms)

    def _take(self) -> None:
        for action in self.mind.actions:
            if isinstance(action, Pause):
                self.pauses.append((self.now, action.silence_ms))
                continue
            self.did.append((self.now, action))
            if isinstance(action, Settle):
                self._onset = self._audible = None
                self._voiced = 0.0
        self.mind.actions.clear()

    def _until(self, ms: float) -> None:
        """Let time pass, waking the mind when it asked to be."""
        while (due := self.mind.deadline_ns) is not None and due <= self._ns(ms):
            self.now = max(self.now, due / 1e6)
            self.mind.tick(due)
            self._take()
        self.now = ms

    def _packet(self, *, speech: bool, stirs: bool = False) -> None:
        end = self.now + PACKET_MS
        self._until(end)
        if speech:
            self._onset = end - PACKET_MS if self._onset is None else self._onset
            self._audible = end
            self._voiced += PACKET_MS
        since = end - PACKET_MS if self._stirring is None else self._stirring
        self._stirring = since if stirs else None
        ns = self._ns
        self.mind.hear(
            ns(end),
            Heard(
                ns(end),
                onset_ns=None if self._onset is None else ns(self._onset),
                audible_ns=None if self._audible is None else ns(self._audible + self.line_ms),
                audible_at=None if self._audible is None else round(self._audible * 16),
                stirring_ns=None if self._stirring is None else ns(self._stirring),
                voiced_ms=self._voiced,
                melody=self.melody,
            ),
        )
        self._take()

    def speaks(self, ms: float, *texts: str) -> "Scene":
        """The person speaks; the recogniser reads the texts one after another meanwhile."""
        packets = round(ms / PACKET_MS)
        for index in range(packets):
            self._packet(speech=True)
            if texts and index == packets - 1:
                for text in texts:
                    self.reads(text)
        return self

    def silent(self, ms: float, *, stirs: bool = False) -> "Scene":
        for _ in range(round(ms / PACKET_MS)):
            self._packet(speech=False, stirs=stirs)
        return self

    def waits(self, ms: float) -> "Scene":
        """Nothing comes over the line."""
        self._until(self.now + ms)
        return self

    def reads(self, text: str) -> "Scene":
        self.mind.read(self._ns(self.now), text)
        self._take()
        return self

    def final(self, text: str, *, finalized: bool = True) -> "Scene":
        self.mind.conclude(self._ns(self.now), text, finalized=finalized)
        self._take()
        return self

    def agent(self, *, speaks: bool) -> "Scene":
        self.mind.agent_speaks(self._ns(self.now), speaks=speaks)
        self._take()
        return self

    def of(self, kind: type) -> list[float]:
        return [at for at, action in self.did if isinstance(action, kind)]

    @property
    def names(self) -> list[str]:
        return [type(action).__name__ for _, action in self.did]

    def the(self, kind: type) -> Action:
        (found,) = [action for _, action in self.did if isinstance(action, kind)]
        return found


def scene(**settings: object) -> Scene:
    return Scene(**settings)


# --- the hold ---------------------------------------------------------------------------------


def test_a_turn_ends_when_the_hold_has_passed_since_the_last_audible_sample() -> None:
    s = scene(speculate=False).speaks(600, "what time is it").silent(400)
    assert s.names == ["Listen", "Begin", "Settle", "Conclude"]
    # 600 ms of speech and 240 of silence: no multiple of the packet or of a VAD's window.
    assert s.of(Conclude) == [840]
    s.final("what time is it")
    end = s.the(End)
    assert end == End("what time is it", False, ms_to_ns(840), 240, "question 0.98")


@pytest.mark.parametrize("hold_ms", [205, 210, 235, 333])
def test_holds_are_as_fine_as_they_are_set(hold_ms: float) -> None:
    s = scene(hold_ms=hold_ms, speculate=False).speaks(600, "what time is it").silent(500)
    assert s.of(Conclude) == [600 + hold_ms]


@pytest.mark.parametrize(
    ("text", "why"),
    [("a table for", "preposition 0.73"), ("a table and", "link 0.73"), ("a um", "filler 0.73")],
)
def test_where_more_is_to_come_the_hold_is_longer(text: str, why: str) -> None:
    s = scene(speculate=False).speaks(600, text)
    expected = hold_after(text)
    assert expected > 400
    s.silent(expected + 100)
    assert s.of(Conclude) == [pytest.approx(600 + expected, abs=0.01)]
    s.final(text)
    assert (s.the(End).hold_ms, s.the(End).why) == (pytest.approx(expected), why)  # type: ignore[union-attr]


@given(st.sampled_from(["a table", "a table for", ""]), st.tuples(*[st.floats(0, 0.999)] * 2))
def test_more_certainty_never_ends_a_turn_sooner(text: str, two: tuple[float, float]) -> None:
    ends: list[float] = []
    for certainty in sorted(two):
        s = scene(speculate=False, certainty=certainty).speaks(600, text).silent(2100)
        ends += s.of(Conclude)[:1]
    assert len(ends) == 2
    assert ends[0] <= ends[1]


def test_however_uncertain_it_is_a_turn_ends_after_the_longest_hold() -> None:
    s = scene(speculate=False, certainty=0.999, longest_ms=900).speaks(600, "a table for")
    assert s.silent(1000).of(Conclude) == [1500]


def test_without_certainty_every_hold_is_the_same() -> None:
    s = scene(certainty=0, speculate=False).speaks(600, "a table for").silent(600)
    assert s.of(Conclude) == [840]


def test_a_word_that_has_just_changed_holds_less() -> None:
    # Read at the end of the silence that would do: there is no time for it to become steady.
    s = scene(speculate=False, hold_ms=100).speaks(600, "a table").silent(80).reads("a table for")
    steady_ms = STEADY_MS / 2
    hold_ms, _ = s.mind._hold(ms_to_ns(s.now + steady_ms))
    assert hold_ms == hold_after("a table for", steady_ms=steady_ms) < hold_after("a table for")


def test_a_person_who_goes_on_within_the_hold_is_heard_out() -> None:
    s = scene(speculate=False).speaks(400, "a table").silent(200).speaks(400, "a table on friday")
    assert s.of(Conclude) == []
    s.silent(300)
    assert s.of(Conclude) == [400 + 200 + 400 + 240]
    assert s.names.count("Listen") == 1  # one utterance to the recogniser, pause and all


def test_words_that_are_read_late_change_the_hold_that_runs() -> None:
    s = scene(speculate=False).speaks(600, "a table").silent(100).reads("a table for").silent(1400)
    assert s.of(Conclude) == [pytest.approx(600 + hold_after("a table for"), abs=0.01)]


def test_a_sound_that_may_be_the_person_is_waited_for() -> None:
    # Loud again 40 ms before the hold ends, not yet judged to be speech; then it proves noise.
    s = scene(speculate=False).speaks(600, "what time is it").silent(200)
    s.silent(160, stirs=True)
    assert s.of(Conclude) == [800 + STIR_MS]


def test_a_sound_that_proves_the_person_keeps_the_turn_open() -> None:
    s = scene(speculate=False).speaks(600, "what time is it").silent(200)
    s.silent(60, stirs=True).speaks(200, "what time is it in rome")
    assert s.of(Conclude) == []


def test_silence_that_was_not_heard_is_none() -> None:
    # The line stands still 100 ms into the silence: nobody knows what the person does.
    s = scene(speculate=False).speaks(600, "what time is it").silent(100).waits(IDLE_MS - 40)
    assert s.of(Conclude) == []
    s.waits(60)
    assert s.of(Conclude) == [700 + IDLE_MS]


# --- the final transcript by the endpoint -----------------------------------------------------


def test_the_final_transcript_is_there_when_the_hold_ends() -> None:
    s = scene(conclude_ms=20).speaks(600, "what time is it").silent(220)
    assert s.of(Conclude) == [820]
    s.waits(2).final("what time is it")
    assert s.of(End) == []  # the person may go on yet
    s.silent(20)
    assert s.of(End) == [840]
    end = s.the(End)
    assert end == End("what time is it", True, ms_to_ns(840), 240, "question 0.98")


def test_a_final_transcript_that_is_late_is_waited_for() -> None:
    s = scene(conclude_ms=20).speaks(600, "what time is it").silent(260)
    assert s.of(End) == []
    s.final("what time is it")
    assert s.of(End) == [860]
    assert s.the(End).decided_ns == ms_to_ns(840)  # type: ignore[union-attr]


def test_who_goes_on_after_the_recogniser_concluded_is_heard_on() -> None:
    s = scene(conclude_ms=60, speculate=False).speaks(600, "what time is it").silent(200)
    s.final("what time is it").speaks(400, "in rome").silent(200).final("in rome").silent(40)
    assert s.names == ["Listen", "Begin", "Conclude", "Listen", "Conclude", "Settle", "End"]
    assert s.the(End).text == "what time is it in rome"  # type: ignore[union-attr]


def test_a_guess_that_the_final_transcript_contradicts_is_made_anew_before_the_hold_ends() -> None:
    s = scene(conclude_ms=20).speaks(600, "what time").silent(220).final("what time is it")
    assert s.names[-3:] == ["Conclude", "Withdraw", "Speculate"]
    s.silent(40)
    assert s.the(End).confirmed  # type: ignore[union-attr]


def test_the_final_of_what_was_concluded_too_soon_ends_nothing() -> None:
    s = scene(conclude_ms=60, speculate=False).speaks(600, "what time is it").silent(200)
    s.speaks(200, "in rome").silent(300)  # concluded twice by now, and the first final is slow
    s.final("what time is it")
    assert s.of(End) == []
    s.final("in rome")
    assert s.the(End).text == "what time is it in rome"  # type: ignore[union-attr]


def test_a_longer_hold_that_the_final_transcript_calls_for_is_held() -> None:
    s = scene(conclude_ms=20, speculate=False).speaks(600, "a table").silent(220)
    s.final("a table for").silent(700)
    assert s.of(End) == []
    s.speaks(300, "two").silent(220).final("two").silent(40)
    assert s.the(End).text == "a table for two"  # type: ignore[union-attr]


def test_a_final_transcript_that_does_not_come_is_not_waited_for_for_ever() -> None:
    s = scene(speculate=False, final_ms=1000).speaks(600, "what time is it").silent(400)
    s.waits(1000)
    assert s.of(End) == [840 + 1000]


def test_words_that_were_read_are_waited_for_longer_than_an_stt_says_that_it_takes() -> None:
    s = scene(speculate=False, final_ms=1000)
    s.mind.transcripts_take(0.34)
    s.speaks(600, "what time is it").silent(400)
    assert s.of(End) == []  # 60 ms after the time that the STT announced
    s.waits(300).final("what time is it")
    assert s.of(End) == [1300]


def test_where_nothing_was_read_the_stt_is_believed() -> None:
    s = scene(speculate=False, final_ms=1000)
    s.mind.transcripts_take(0.34)
    s.speaks(600).silent(400)
    assert s.of(End) == [940]


def test_a_transcript_that_comes_after_the_turns_end_is_answered_then() -> None:
    s = scene(final_ms=1000).speaks(600, "what time is it").silent(400).waits(1000)
    assert [e.text for _, e in s.did if isinstance(e, End)] == [""]
    s.final("what time is it")
    ends = [e for _, e in s.did if isinstance(e, End)]
    assert [e.text for e in ends] == ["", "what time is it"]
    assert not ends[1].confirmed
    assert s.names[-2:] == ["Begin", "End"]
    s.speaks(600, "and tomorrow").silent(300).final("and tomorrow")
    assert s.did[-1][1].text == "and tomorrow"  # type: ignore[union-attr]


def test_a_transcript_that_comes_while_the_person_speaks_again_is_of_what_they_say() -> None:
    s = scene(speculate=False, final_ms=500).speaks(600, "a table").silent(300).waits(500)
    s.speaks(300).final("a table", finalized=False).speaks(300, "on friday").silent(300)
    s.final("on friday")
    assert s.did[-1][1].text == "a table on friday"  # type: ignore[union-attr]


def test_segments_that_the_recogniser_finals_itself_belong_to_the_turn() -> None:
    s = scene(speculate=False).speaks(600, "a table for four")
    s.final("a table for four", finalized=False).speaks(400, "on friday").silent(300)
    s.final("on friday")
    assert s.the(End).text == "a table for four on friday"  # type: ignore[union-attr]


def test_speech_after_the_end_and_before_its_transcript_reopens_the_turn() -> None:
    s = scene(speculate=False).speaks(600, "a table").silent(240).speaks(400, "on friday")
    assert s.of(End) == []
    s.final("a table").silent(300).final("on friday")
    assert s.the(End).text == "a table on friday"  # type: ignore[union-attr]


# --- the beginning ----------------------------------------------------------------------------


def test_a_turn_begins_with_enough_speech_or_with_words() -> None:
    assert scene(start_ms=200).speaks(180).of(Begin) == []
    assert scene(start_ms=200).speaks(200).of(Begin) == [200]
    assert scene(start_ms=200).speaks(100, "no").of(Begin) == [100]


def test_to_a_silent_agent_a_turn_interrupts_nothing() -> None:
    assert scene().speaks(300).the(Begin) == Begin(interrupt=False)


def test_a_click_is_no_turn_and_its_words_are_dropped() -> None:
    s = scene(start_ms=100).speaks(60).silent(300).final("to")
    # Words make it one, however short; nothing recognised makes it none.
    assert s.the(End).text == "to"  # type: ignore[union-attr]
    s = scene(start_ms=100, final_ms=500).speaks(60).silent(300).waits(500)
    assert s.names == ["Listen", "Settle", "Conclude", "Discard"]


# --- speculation ------------------------------------------------------------------------------


def test_an_answer_is_begun_at_the_first_sign_of_silence_and_confirmed_at_the_end() -> None:
    s = scene(pause_ms=60).speaks(600, "what time is it").silent(300).final("What time is it?")
    assert s.of(Speculate) == [660]
    assert s.the(Speculate) == Speculate("what time is it")
    assert s.the(End).confirmed  # type: ignore[union-attr]
    assert s.of(Withdraw) == []


def test_an_answer_to_what_changed_is_withdrawn_at_once_and_the_new_text_answered() -> None:
    s = scene(pause_ms=60, steady_ms=0).speaks(600, "what time").silent(100)
    s.reads("what time is it")
    assert s.of(Withdraw) == [700]
    s.silent(200).final("what time is it")
    assert [a for _, a in s.did if isinstance(a, Speculate)] == [
        Speculate("what time"),
        Speculate("what time is it"),
    ]
    assert s.the(End).confirmed  # type: ignore[union-attr]


def test_words_that_still_change_are_not_answered() -> None:
    s = scene(pause_ms=60, steady_ms=40).speaks(600, "set").silent(40)
    s.reads("set a timer").silent(20).reads("set a timer for twelve").silent(20)
    assert s.of(Speculate) == []
    s.silent(100)
    assert s.of(Speculate) == [660 + 40]


def test_an_answer_is_kept_while_the_person_only_makes_a_sound() -> None:
    # A cough within the hold: the words are the same, so the answer is.
    s = scene().speaks(600, "what time is it").silent(100).speaks(80).silent(300)
    s.final("what time is it")
    assert s.of(Withdraw) == []
    assert len(s.of(Speculate)) == 1
    assert s.the(End).confirmed  # type: ignore[union-attr]


def test_a_final_transcript_that_says_otherwise_is_what_is_answered() -> None:
    s = scene().speaks(600, "nine").silent(300).final("nineteen")
    assert s.names[-2:] == ["Withdraw", "End"]
    assert not s.the(End).confirmed  # type: ignore[union-attr]


def test_where_more_is_to_be_said_the_guess_waits_until_it_must_be_made() -> None:
    hold_ms = hold_after("a table for")
    assert hold_ms > LEAD_MS + 60
    s = scene().speaks(400, "a table for").speaks(200).silent(hold_ms)
    assert s.of(Speculate) == [pytest.approx(600 + hold_ms - LEAD_MS, abs=0.01)]
    s = scene().speaks(400, "a table for").speaks(200).silent(100).speaks(200, "a table for four")
    assert s.of(Speculate) == []


def test_a_guess_that_wanted_a_tool_is_not_made_again() -> None:
    s = scene().speaks(600, "what time is it").silent(100)
    s.mind.speculation_lost(ms_to_ns(700), refused=True)
    s.silent(200).final("what time is it")
    assert len(s.of(Speculate)) == 1
    assert not s.the(End).confirmed  # type: ignore[union-attr]


def test_a_guess_that_somebody_interrupted_is_not_confirmed() -> None:
    s = scene(pause_ms=60).speaks(600, "what time is it").silent(240)
    s.mind.interrupted(ms_to_ns(s.now))
    s.final("what time is it")
    assert not s.the(End).confirmed  # type: ignore[union-attr]


def test_without_speculation_nothing_is_guessed() -> None:
    s = scene(speculate=False).speaks(600, "what time is it").silent(400)
    assert s.of(Speculate) == []


def test_the_recogniser_learns_of_each_pause_once() -> None:
    s = scene(pause_ms=60).speaks(600, "what time").silent(40).speaks(200, "what time is it")
    assert s.pauses == []
    s.silent(200).speaks(200, "what time is it now").silent(600)
    assert s.pauses == [(900, 60), (1300, 60)]


# --- smart turn -------------------------------------------------------------------------------


def asked_of(s: Scene) -> list[Ask]:
    return [action for _, action in s.did if isinstance(action, Ask)]


@pytest.mark.parametrize("complete", [0.02, 0.2, 0.99])
def test_the_classifier_is_asked_in_the_pause_and_its_probability_moves_the_hold(
    complete: float,
) -> None:
    s = scene(smart_turn=True, speculate=False).speaks(600, "a table for").silent(80)
    (asked,) = asked_of(s)
    s.mind.answer(ms_to_ns(s.now), asked.at, complete)
    s.silent(2500)
    expected = max(min(hold_after("a table for", complete=complete), 2000), 240)
    assert s.of(Conclude) == [pytest.approx(600 + expected, abs=0.01)]


def test_its_answer_to_an_earlier_pause_is_void_and_it_is_asked_again() -> None:
    s = scene(smart_turn=True, pause_ms=60, speculate=False)
    s.speaks(600, "what time is it").silent(80)
    (first,) = asked_of(s)
    s.speaks(200, "what time is it now").silent(100)
    s.mind.answer(ms_to_ns(s.now), first.at, 0.01)
    assert len(asked_of(s)) == 2
    s.silent(300)
    assert s.of(Conclude) == [880 + 240]


def test_a_silence_stays_the_same_when_the_line_proves_faster() -> None:
    s = scene(smart_turn=True, pause_ms=60, speculate=False)
    s.line_ms = 0.5
    s.speaks(600, "what time is it").silent(80)
    s.line_ms = 0.0  # a packet has come sooner than any before
    s.silent(20)
    (asked,) = asked_of(s)
    s.mind.answer(ms_to_ns(s.now), asked.at, 0.02)
    s.line_ms = -0.1
    s.silent(2500)
    held_ms = min(hold_after("what time is it", complete=0.02), 2000)
    assert held_ms > 300
    assert s.of(Conclude) == [pytest.approx(600 + held_ms, abs=1)]


def test_an_answer_that_comes_too_late_holds_nothing_up() -> None:
    s = scene(smart_turn=True, speculate=False).speaks(600, "what time is it").silent(300)
    assert s.of(Conclude) == [840]


# --- the LLM ----------------------------------------------------------------------------------


def weighing(text: str) -> tuple[Scene, str]:
    """A pause after these words, in which the LLM is asked about them."""
    s = scene(speculate=False)
    s.mind.weighs = True
    s.speaks(600, text).silent(80)
    (asked,) = [action for _, action in s.did if isinstance(action, Weigh)]
    return s, asked.text


@pytest.mark.parametrize("whole", [0.0001, 0.1, 0.6, None])
def test_the_llm_is_asked_about_the_words_and_its_probability_moves_the_hold(
    whole: float | None,
) -> None:
    s, text = weighing("a table for")
    assert text == "a table for"
    s.mind.weigh(ms_to_ns(s.now), text, whole)
    s.silent(2500)
    expected = max(min(hold_after(text, whole=whole), 2000), 240)
    assert s.of(Conclude) == [pytest.approx(600 + expected, abs=0.01)]


def test_its_answer_about_fewer_words_is_void_and_it_is_asked_again() -> None:
    s, text = weighing("what time")
    s.speaks(200, "what time is it").silent(100)
    s.mind.weigh(ms_to_ns(s.now), text, 0.0001)
    assert [a.text for _, a in s.did if isinstance(a, Weigh)] == ["what time", "what time is it"]
    s.silent(500)
    assert s.of(Conclude) == [pytest.approx(900 + 240, abs=80)]


def test_its_answer_is_waited_for_but_not_long() -> None:
    s, _ = weighing("what time is it")
    s.mind.read(ms_to_ns(s.now), "what time is it now")
    s.silent(120)
    s.mind.read(ms_to_ns(s.now), "what time is it here")  # 200 ms into the silence
    s._take()
    s.silent(600)
    assert s.of(Conclude) == [pytest.approx(800 + WEIGH_MS, abs=1)]


# --- over the agent ---------------------------------------------------------------------------


def test_the_agent_falls_silent_at_once_and_is_interrupted_when_words_are_meant() -> None:
    s = scene().agent(speaks=True).speaks(300)
    assert s.names == ["Withhold", "Listen"]
    assert s.of(Withhold) == [20]
    s.reads("how many").speaks(MEANT_MS + 20)
    assert s.the(Begin) == Begin(interrupt=True)
    assert s.of(Begin) == [300 + MEANT_MS]
    assert s.of(Give) == []


def test_a_backchannel_gives_the_floor_back_while_it_is_still_said() -> None:
    s = scene().agent(speaks=True).speaks(200, "mm").speaks(200, "mm hmm").silent(300)
    assert s.of(Give) == [200]
    s.final("mm hmm")
    assert s.the(Discard) == Discard("mm hmm")
    assert s.of(Begin) == []


def test_half_heard_words_do_not_interrupt() -> None:
    # As pocketsphinx reads "mm-hmm": "and how" for 60 ms.
    s = scene().agent(speaks=True).speaks(200, "mm").speaks(40, "and how").speaks(60, "mm hmm")
    s.silent(300).final("mm hmm")
    assert s.of(Begin) == []
    assert s.names[-1] in ("Discard", "Give")
    assert not s.mind._withheld


def test_a_backchannel_that_becomes_a_question_takes_the_floor() -> None:
    s = scene().agent(speaks=True).speaks(200, "yeah").speaks(300, "yeah but how")
    s.speaks(200, "yeah but how much")
    assert s.the(Begin) == Begin(interrupt=True)


def test_a_cough_without_words_is_over_when_it_is_silent() -> None:
    s = scene(final_ms=300).agent(speaks=True).speaks(300).silent(400).waits(300)
    assert s.names == ["Withhold", "Listen", "Settle", "Conclude", "Discard", "Give"]


def test_a_cough_that_is_read_as_a_word_is_over_when_it_is_silent() -> None:
    s = scene(final_ms=600).agent(speaks=True).speaks(400, "five").speaks(200, "five five")
    s.silent(300).final("five five")
    assert s.of(Begin) == []
    assert s.the(Discard) == Discard("five five")
    assert not s.mind._withheld


def test_words_that_come_too_late_for_a_cough_are_not_the_next_turns() -> None:
    s = scene(final_ms=310).agent(speaks=True).speaks(400).silent(320).final("five five")
    assert [a for _, a in s.did if isinstance(a, Discard)] == [Discard(""), Discard("five five")]
    s.speaks(300, "what time is it").silent(260).final("what time is it")
    assert s.the(End).text == "what time is it"  # type: ignore[union-attr]


def test_one_word_is_enough_where_the_recogniser_can_be_relied_on() -> None:
    s = scene(least_words=1).agent(speaks=True).speaks(300, "friday").speaks(MEANT_MS + 20)
    assert s.the(Begin) == Begin(interrupt=True)


def test_a_single_word_that_asks_is_an_interruption_even_when_it_is_over() -> None:
    s = scene().agent(speaks=True).speaks(120, "stop").silent(20)
    s.silent(240).final("stop")
    assert Begin(interrupt=True) in [a for _, a in s.did]
    assert s.the(End).text == "stop"  # type: ignore[union-attr]


def test_long_speech_that_nobody_can_read_takes_the_floor_too() -> None:
    s = scene(takeover_ms=800).agent(speaks=True).speaks(1000)
    assert s.of(Begin) == [800]


def test_who_speaks_before_the_answer_does_is_speaking_over_it() -> None:
    s = scene().speaks(600, "what time is it").silent(300).final("what time is it")
    s.did.clear()
    s.speaks(100)
    assert s.names == ["Withhold", "Listen"]


def test_an_answer_that_never_came_is_not_spoken_over() -> None:
    s = scene().speaks(600, "what time is it").silent(300).final("what time is it")
    s.silent(PENDING_MS)
    s.did.clear()
    s.speaks(300, "monday").silent(300).final("monday")
    assert s.of(Withhold) == []
    assert s.the(End).text == "monday"  # type: ignore[union-attr]


def test_an_answer_may_begin_under_the_agents_last_sounds() -> None:
    s = scene().agent(speaks=True).speaks(100)
    assert s.names == ["Withhold", "Listen"]
    s.agent(speaks=False).speaks(300, "tuesday").silent(300).final("tuesday")
    assert s.of(Discard) == []
    assert s.the(Begin) == Begin(interrupt=False)
    assert s.the(End).text == "tuesday"  # type: ignore[union-attr]
    assert not s.mind._withheld


def test_a_line_that_stands_still_does_not_end_what_was_begun_over_the_agent() -> None:
    s = scene().agent(speaks=True).speaks(80).waits(400)
    assert s.of(Conclude) == []
    s.speaks(300, "stop it").speaks(MEANT_MS + 20)
    assert s.the(Begin) == Begin(interrupt=True)


def test_the_vads_way_interrupts_on_any_speech() -> None:
    s = scene(barge_in="vad", start_ms=200).agent(speaks=True).speaks(300)
    assert s.names == ["Listen", "Begin"]
    assert s.the(Begin) == Begin(interrupt=True)
    assert s.of(Begin) == [200]


def test_once_the_agent_is_done_an_mm_hmm_is_an_answer() -> None:
    s = scene().agent(speaks=True).agent(speaks=False).speaks(300, "yeah").silent(300).final("yeah")
    assert s.the(End).text == "yeah"  # type: ignore[union-attr]


def test_a_cough_as_the_agent_ends_does_not_silence_the_next_reply() -> None:
    s = scene().agent(speaks=True).speaks(20).silent(300).agent(speaks=False)
    assert (len(s.of(Withhold)), len(s.of(Give))) == (1, 1)
    s.speaks(600, "what time is it").silent(400).final("what time is it")
    assert not s.mind._withheld


# --- whatever happens -------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("speaks"), st.sampled_from([20, 60, 200, 500])),
        st.tuples(st.just("silent"), st.sampled_from([20, 60, 100, 300, 1600])),
        st.tuples(st.just("reads"), st.sampled_from(["", "a", "a table for", "mm", "stop it"])),
        st.tuples(st.just("final"), st.sampled_from(["", "a table", "mm hmm"])),
        st.tuples(st.just("agent"), st.booleans()),
        st.tuples(st.just("waits"), st.sampled_from([20, 1500])),
        st.tuples(st.just("interrupted"), st.none()),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([0, 20, 240]))
def test_turns_guesses_and_the_floor_are_always_balanced(
    steps: list[tuple[str, object]], conclude_ms: float
) -> None:
    s = scene(conclude_ms=conclude_ms)
    for name, value in steps:
        if name == "agent":
            s.agent(speaks=bool(value))
        elif name == "interrupted":
            s.mind.interrupted(ms_to_ns(s.now))
            s._take()
        else:
            getattr(s, name)(value)
    # Whoever coughs, then goes away for good, leaves the agent free to speak and no turn open.
    s.agent(speaks=False).silent(2000).final("").waits(5000)
    check_balance([action for _, action in s.did])


def check_balance(did: list[Action]) -> None:
    """No state is entered twice or left unentered, and in the end none is left over."""
    turn = listening = withheld = guessing = False
    for action in did:
        match action:
            case Listen() | Conclude():
                assert listening == isinstance(action, Conclude)
                listening = not listening
            case Begin(interrupt):
                assert not turn
                turn, withheld = True, withheld and not interrupt
            case Speculate() | Withdraw():
                assert turn
                guessing = isinstance(action, Speculate)
            case End(_, confirmed):
                assert turn
                assert guessing or not confirmed
                turn = guessing = False
            case Withhold() | Give():
                assert withheld == isinstance(action, Give)
                withheld = not withheld
            case _:
                pass
    assert not (turn or listening or withheld)
