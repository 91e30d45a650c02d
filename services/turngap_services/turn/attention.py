"""The decisions of `adaptive`: when to listen, and when to begin, guess and end a turn.

Sans I/O: events come in by method with their instant (ns), decisions go out as `Action`s in
`actions`, and `deadline_ns` is when to call `tick`. All silence counts from the last audible
sample, regardless of the packets' borders.
"""

from dataclasses import dataclass

from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.over import Evidence, Over, asks, is_backchannel, same_words, words_of
from turngap_services.turn.voice import Melody


@dataclass(frozen=True, slots=True)
class Heard:
    """The state of the caller's audio after a packet; instants on the clock, ns.

    Attributes:
        until_ns: when the last sample so far sounded.
        onset_ns: when the utterance began, if there is one.
        audible_ns: when the person was last audible in it.
        audible_at: the sample at that instant, which identifies a silence. The instant itself may
            change: each packet updates it by the line's shortest delay.
        stirring_ns: since when there is a sound that may be the person, if there is one.
        voiced_ms: how much of the utterance was certainly speech.
        melody: the sound before a silence that has begun, if known.
    """

    until_ns: int
    onset_ns: int | None = None
    audible_ns: int | None = None
    audible_at: int | None = None
    stirring_ns: int | None = None
    voiced_ms: float = 0.0
    melody: Melody | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Make the recogniser hear an utterance that has begun."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Make the recogniser conclude; a `Listen` may follow."""

    silence_ms: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Tell the recogniser that the person has been silent for `silence_ms`."""

    silence_ms: float


@dataclass(frozen=True, slots=True)
class Settle:
    """End the utterance: further speech is another one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the person's turn; `interrupt` stops the agent's speech or its coming reply."""

    interrupt: bool


@dataclass(frozen=True, slots=True)
class Speculate:
    """Ask for an answer to `text` as if the turn were over, unheard for now."""

    text: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Cancel the answer, because the person says something else."""


@dataclass(frozen=True, slots=True)
class End:
    """End the turn, with the reason and the instant; if `confirmed`, the speculation answers it."""

    text: str
    confirmed: bool
    decided_ns: int
    hold_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop an utterance that was not a turn: a cough, or an "mm-hm", which is in `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Withhold:
    """Keep the agent silent until it is clear what the person wants."""


@dataclass(frozen=True, slots=True)
class Give:
    """Let the agent continue to speak."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the classifier whether the turn sounds complete, with the silence that began at `at`."""

    at: int


@dataclass(frozen=True, slots=True)
class Weigh:
    """Ask the LLM how likely `text` is a whole message."""

    text: str


Action = (
    Listen | Pause | Conclude | Settle | Begin | Speculate | Withdraw | End | Discard
    | Withhold | Give | Ask | Weigh
)  # fmt: skip


# Audio arrives in packets: this much of a silence may not have arrived when the silence is over.
AIR_MS = 40.0
# A caller that sends nothing for this long is silent (a muted microphone), as in pipecat.
IDLE_MS = 1000.0
# A sound that Silero has not judged yet may be the person continuing; how long to wait for that.
STIR_MS = 100.0
# Half-heard words come and go: "mm-hmm" reads "and how" for 60 ms. Words that stay this long count.
MEANT_MS = 150.0
# Silence that ends a sound that began no turn, such as a cough.
SOUND_MS = 250.0
# A reply takes about this long: while more is surely to come, it is asked for only this long before
# the end of the hold.
LEAD_MS = 400.0
# An answer that has not begun after this long is not coming: the LLM failed or had nothing to say.
PENDING_MS = 6000.0
# The LLM's opinion of the words is waited for this long: its answer takes longer.
WEIGH_MS = 150.0
# A final transcript is waited for at least this long if nothing was recognised.
LEAST_FINAL_MS = 50.0


@dataclass(slots=True)
class _Ending:
    """The end of a turn or utterance that waits for its final transcript."""

    decided_ns: int
    by_ns: int
    read_by_ns: int
    hold_ms: float
    why: str


class Attention:
    """The state of one session.

    Attributes:
        deadline_ns: when something is due if no event comes before.
        weighs: the LLM can say how likely a text is a whole message.
    """

    def __init__(self, settings: AdaptiveSettings, over: Over) -> None:
        self._settings = settings
        self._over = over
        self.actions: list[Action] = []
        self.deadline_ns: int | None = None
        self.weighs = False
        self._heard = Heard(0)
        self._heard_at_ns = 0
        self._final_ns = ms_to_ns(settings.final_ms)
        self._listening = self._turn = self._discarded = False
        self._ending: _Ending | None = None
        self._empty: _Ending | None = None  # of a turn that ended without a word
        self._finals: list[str] = []
        # The silence in which the recogniser was asked to conclude, and the final transcripts it
        # owes.
        self._concluded_at: int | None = None
        self._owed = 0
        self._interim = ""
        self._read_ns = 0
        self._words_ns = 0  # when the latest words came, final ones included
        self._guess: str | None = None
        self._refused: str | None = None
        self._asked_at: int | None = None
        # The latest silence, and the one that the recogniser knows of.
        self._audible_at: int | None = None
        self._paused_at: int | None = None
        self._complete: tuple[int, float] | None = None
        # The words that the LLM was last asked about, when, and its answer.
        self._weighed: str | None = None
        self._weighed_ns = 0
        self._whole: float | None = None
        # Whether the agent speaks or is about to, and whether it did when the utterance began.
        self._speaking = False
        self._pending_until_ns = 0
        self._over_agent = self._withheld = False
        self._meant_since_ns: int | None = None

    @property
    def text(self) -> str:
        return " ".join(part for part in (*self._finals, self._interim) if part)

    # --- events ---------------------------------------------------------------------------------

    def hear(self, now_ns: int, heard: Heard) -> None:
        self._heard, self._heard_at_ns = heard, now_ns
        if heard.onset_ns is not None and not self._listening:
            self._listen(now_ns)
        self.tick(now_ns)
        # Where only Silero hears a soft voice, its end moves with every packet.
        stays, self._audible_at = heard.audible_at == self._audible_at, heard.audible_at
        if self._listening and stays and heard.audible_at not in (None, self._paused_at):
            silence_ms = ns_to_ms(heard.until_ns - (heard.audible_ns or 0))
            if silence_ms >= self._settings.pause_ms:
                self._paused_at = heard.audible_at
                self.actions.append(Pause(silence_ms))

    def read(self, now_ns: int, text: str) -> None:
        """Take an interim transcript of speech that is not concluded yet."""
        if self._listening and text.strip() != self._interim:
            self._interim = text.strip()
            self._read_ns = self._words_ns = now_ns
        self.tick(now_ns)

    def conclude(self, now_ns: int, text: str, *, finalized: bool) -> None:
        """Take a final transcript; if `finalized`, it is the utterance's last."""
        if text.strip():
            self._finals.append(text.strip())
            self._words_ns = now_ns
        self._interim = ""
        # A transcript that was asked for before the person continued is not the end.
        self._owed = max(self._owed - finalized, 0)
        if self._ending is not None and not self._listening and finalized and not self._owed:
            self._finish(now_ns)
        elif self._empty is not None and self._finals:
            # The turn was over, but there was nothing to answer until now.
            self._ending, self._turn, self._empty = self._empty, True, None
            self.actions.append(Begin(interrupt=False))
            self._finish(now_ns)
        elif self._discarded and self._finals:
            self._discard()  # it came after its utterance was discarded
        self.tick(now_ns)

    def answer(self, now_ns: int, at: int, complete: float) -> None:
        """Take the classifier's probability that the turn is complete."""
        if at == self._asked_at:
            self._complete = at, complete
        self.tick(now_ns)

    def weigh(self, now_ns: int, text: str, whole: float | None) -> None:
        """Take the LLM's probability that the words are a whole message; None for no answer."""
        if text == self._weighed:
            self._whole, self._weighed_ns = whole, 0
        self.tick(now_ns)

    def agent_speaks(self, now_ns: int, *, speaks: bool) -> None:
        self._speaking, self._pending_until_ns = speaks, 0
        if not speaks:
            if self._listening and not self._turn:
                # The reply ended as the person began, so they answer it instead of interrupting.
                self._over_agent = False
            self._give()  # the agent's next words are another reply
        self.tick(now_ns)

    def speculation_lost(self, now_ns: int, *, refused: bool) -> None:
        """Note that the speculation was cancelled elsewhere; if `refused`, do not repeat it."""
        self._refused = self._guess if refused else None
        self._guess = None
        self.tick(now_ns)

    def interrupted(self, now_ns: int) -> None:
        """Note that the agent's work was cancelled from outside."""
        self._pending_until_ns = 0
        self.speculation_lost(now_ns, refused=False)

    def turn_ended(self) -> None:
        self._turn = False
        self._forget()

    def transcripts_take(self, seconds: float) -> None:
        """Set the STT's longest time from the end of speech to its final transcript."""
        self._final_ns = round(seconds * 1e9)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Decide what is due now, and when the next decision is due."""
        self.deadline_ns = None
        if self._listening and self._concluded_at not in (None, self._heard.audible_at):
            self._concluded_at = None
            self.actions.append(Listen())
        if self._listening and not self._turn:
            self._consider(now_ns)
        if self._listening and self._turn:
            self._follow(now_ns)
        ending = self._ending
        if self._listening or ending is None:
            return
        # If words were read there will be a final transcript, even if late.
        if self._due(now_ns, ending.read_by_ns if self._interim else ending.by_ns):
            self._finish(now_ns)

    def _due(self, now_ns: int, at_ns: int) -> bool:
        """Return whether `at_ns` has come; if not, it is a deadline."""
        if now_ns >= at_ns:
            return True
        self.deadline_ns = at_ns if self.deadline_ns is None else min(self.deadline_ns, at_ns)
        return False

    def _listen(self, now_ns: int) -> None:
        self._listening, self._discarded = True, False
        self._ending = self._empty = None
        self._concluded_at, self._owed = None, 0
        self._meant_since_ns = None
        if not self._turn:
            self._finals.clear()
            self._over_agent = self._speaking or now_ns < self._pending_until_ns
            if self._over_agent and self._settings.barge_in == "attentive":
                self._withhold()
        self.actions.append(Listen())

    # --- before it is a turn --------------------------------------------------------------------

    def _consider(self, now_ns: int) -> None:
        """Decide whether the utterance is a turn or a cough."""
        if self._over_agent and self._settings.barge_in == "attentive":
            self._consider_barge_in(now_ns)
        elif self.text or self._heard.voiced_ms >= self._settings.start_ms:
            self._begin(interrupt=self._over_agent)
        if not self._turn and self._silent(now_ns, SOUND_MS) and self._sure(now_ns, SOUND_MS):
            self._close(now_ns, SOUND_MS, "nothing")

    def _consider_barge_in(self, now_ns: int) -> None:
        if is_backchannel(self.text):
            self._meant_since_ns = None
            self._give()
            return
        self._withhold()
        if not asks(self.text, self._settings.least_words):
            self._meant_since_ns = None
        elif self._meant_since_ns is None:
            self._meant_since_ns = now_ns
        meant_ns, meant = self._meant_since_ns, False
        if meant_ns is not None:
            meant = self._due(now_ns, meant_ns + ms_to_ns(MEANT_MS))
        if meant or self._heard.voiced_ms >= self._settings.takeover_ms:
            self._begin(interrupt=True)

    def _is_turn(self, text: str) -> bool:
        """Return whether a finished utterance should have begun a turn."""
        if self._over_agent and self._settings.barge_in == "attentive":
            return asks(text, self._settings.least_words)
        return bool(text)

    def _begin(self, *, interrupt: bool) -> None:
        self._turn = True
        # An interruption drops what is withheld, so there is nothing left to give back.
        self._withheld = self._withheld and not interrupt
        self._pending_until_ns = 0
        self.actions.append(Begin(interrupt))

    def _withhold(self) -> None:
        if not self._withheld:
            self._withheld = True
            self.actions.append(Withhold())

    def _give(self) -> None:
        if self._withheld:
            self._withheld = False
            self.actions.append(Give())

    # --- a turn ---------------------------------------------------------------------------------

    def _follow(self, now_ns: int) -> None:
        """Guess the end of the person's turn, and decide when it ends."""
        if self.weighs and self._silent(now_ns, self._settings.pause_ms):
            self._ask_llm(now_ns)
        hold_ms, why = self._hold(now_ns)
        if self._settings.speculate:
            self._speculate(now_ns, hold_ms)
        if self._settings.smart_turn and self._silent(now_ns, self._settings.pause_ms):
            at = self._heard.audible_at
            if at is not None and at != self._asked_at:
                self._asked_at = at
                self.actions.append(Ask(at))
        if self._settings.conclude_ms:
            self._conclude_ahead(now_ns, max(hold_ms - self._settings.conclude_ms, 0))
        if self._silent(now_ns, hold_ms) and self._sure(now_ns, hold_ms):
            weighed = self._weighed_ns == 0 or self._due(
                now_ns, self._weighed_ns + ms_to_ns(WEIGH_MS)
            )
            if weighed:
                self._close(now_ns, hold_ms, why)

    def _ask_llm(self, now_ns: int) -> None:
        text = self.text
        # What was read before this silence may lack its last words.
        known = self._words_ns >= (self._heard.audible_ns or 0)
        if text and known and not (self._weighed and same_words(text, self._weighed)):
            self._weighed, self._weighed_ns, self._whole = text, now_ns, None
            self.actions.append(Weigh(text))

    def _hold(self, now_ns: int) -> tuple[float, str]:
        """Return the silence after which the turn is over with enough certainty, and the reason."""
        heard, judged = self._heard, self._complete
        evidence = Evidence(
            tuple(words_of(self.text)),
            (now_ns - self._read_ns) / 1e6,
            heard.melody,
            judged[1] if judged is not None and judged[0] == heard.audible_at else None,
            self._weight(),
        )
        p = self._over.probability(evidence)
        settings = self._settings
        hold_ms = self._over.hold_ms(p, settings.certainty)
        why = f"{evidence.ending} {p:.2f}"
        if evidence.whole is not None:
            why += f", whole {evidence.whole:.2f}"
        return max(min(hold_ms, settings.longest_ms), settings.hold_ms), why

    def _weight(self) -> float | None:
        """Return the LLM's opinion of the words as they are in this silence."""
        if self._weighed is None or self._words_ns < (self._heard.audible_ns or 0):
            return None
        return self._whole if same_words(self._weighed, self.text) else None

    def _silent(self, now_ns: int, ms: float) -> bool:
        """Return whether the person has been silent for `ms`; if not, that is a deadline."""
        audible_ns = self._heard.audible_ns
        return audible_ns is None or self._due(now_ns, audible_ns + ms_to_ns(ms))

    def _sure(self, now_ns: int, hold_ms: float) -> bool:
        """Return whether the silence was really heard up to its end."""
        heard = self._heard
        audible_ns, stirring_ns = heard.audible_ns or 0, heard.stirring_ns
        if stirring_ns is not None and stirring_ns > audible_ns:
            judged_ns = stirring_ns + ms_to_ns(STIR_MS)
            if not self._due(now_ns, judged_ns):
                return False
        was_heard = heard.until_ns >= audible_ns + ms_to_ns(max(hold_ms - AIR_MS, 0))
        return was_heard or self._due(now_ns, self._heard_at_ns + ms_to_ns(IDLE_MS))

    def _speculate(self, now_ns: int, hold_ms: float) -> None:
        text = self.text
        if self._guess is not None and not same_words(self._guess, text):
            self._guess = None
            self.actions.append(Withdraw())
        if self._guess is not None or not text or text == self._refused:
            return
        # The sooner the better, but during a long hold there is time.
        after_ms = max(self._settings.pause_ms, hold_ms - LEAD_MS)
        silent = self._silent(now_ns, min(after_ms, hold_ms))
        if silent and self._due(now_ns, self._read_ns + ms_to_ns(self._settings.steady_ms)):
            self._guess = text
            self.actions.append(Speculate(text))

    # --- its end --------------------------------------------------------------------------------

    def _conclude_ahead(self, now_ns: int, silence_ms: float) -> None:
        """Ask for the final transcript before the endpoint, though the person may yet continue."""
        if self._concluded_at is not None or self._heard.audible_at is None:
            return
        if self._silent(now_ns, silence_ms) and self._sure(now_ns, silence_ms):
            self._concluded_at = self._heard.audible_at
            self._conclude(silence_ms)

    def _conclude(self, silence_ms: float) -> None:
        heard = self._heard
        if heard.audible_ns is not None:  # what was waited for may have taken longer
            silence_ms = max(silence_ms, ns_to_ms(heard.until_ns - heard.audible_ns))
        self._owed += 1
        self.actions.append(Conclude(silence_ms))

    def _close(self, now_ns: int, hold_ms: float, why: str) -> None:
        self._listening = False
        audible_ns = self._heard.audible_ns or now_ns
        by_ns = max(audible_ns + self._final_ns, now_ns + ms_to_ns(LEAST_FINAL_MS))
        read_by_ns = max(now_ns + ms_to_ns(self._settings.final_ms), by_ns)
        silent_ms = max(hold_ms, ns_to_ms(now_ns - audible_ns))
        self._ending = _Ending(now_ns, by_ns, read_by_ns, silent_ms, why)
        self.actions.append(Settle())
        if self._concluded_at is None:
            self._conclude(hold_ms)
        self._heard = Heard(self._heard.until_ns)
        if self._concluded_at is not None and not self._owed and self._finals:
            self._finish(now_ns)

    def _finish(self, now_ns: int) -> None:
        """End the turn or drop the utterance, with its final transcript or without one."""
        ending = self._ending
        assert ending is not None
        text = " ".join(self._finals)
        if not self._turn and self._is_turn(text):
            self._begin(interrupt=self._over_agent)
        if self._turn:
            confirmed = self._guess is not None and same_words(self._guess, text)
            if self._guess is not None and not confirmed:
                self.actions.append(Withdraw())
            end = End(text, confirmed, ending.decided_ns, ending.hold_ms, ending.why)
            self.actions.append(end)
            self._pending_until_ns = now_ns + ms_to_ns(PENDING_MS) if text else 0
            self._empty = None if text else ending
        else:
            self._discard()
            self._give()
        self._turn = False
        self._forget()

    def _discard(self) -> None:
        self._discarded = True
        self.actions.append(Discard(" ".join(self._finals)))
        self._finals.clear()

    def _forget(self) -> None:
        self._finals.clear()
        self._interim = ""
        self._guess = self._refused = None
        self._asked_at = self._complete = None
        self._weighed, self._weighed_ns, self._whole = None, 0, None
        self._ending = None
