"""When a caller's voice begins and when it was last audible, to the sample. No I/O, no clock.

Silero judges windows of 32 ms. Two of its states look at windows that lie 16 ms apart, so a verdict
comes every 16 ms. It says whether there is a voice; *when* that voice falls silent is read from the
samples, looked at every 10 ms, as Silero goes on hearing it for another 75 ms (median; p95 129,
over the library's 32 recordings).
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import AUDIBLE_DBFS, FULL_SCALE, LINE_FLOOR_DBFS, Pcm, audible_end, rms_dbfs

# A window's samples, float in -1 to 1, to the probability that they are speech.
Model = Callable[[NDArray[np.float32]], float]

FULL = np.float32(FULL_SCALE)
FRAME_MS = 10
WINDOW_MS = 32
HOP_MS = 16

# Hops of speech in a row that begin it: over the library's recordings 64 ms after its first audible
# sample (p95 102); two hops would be 16 ms sooner and start on clicks.
STARTING_HOPS = 3
# Without a hop of speech for so long, what is loud is not the voice.
STALE_HOPS = 4
# So far below the loudest frame, a voice's last sound is no longer heard.
RANGE_DB = 26.0
# So far above the noise around the voice, a frame is more than that noise.
OVER_NOISE_DB = 8.0
# However soft the voice, the line's own noise between two recordings is not part of it.
LOWEST_DBFS = LINE_FLOOR_DBFS + 5.0
# Closer to its loudest frame, a frame is never too soft to be the voice: of one that hardly rises
# above the noise, Silero's verdict alone says when it ends.
LEAST_RANGE_DB = 15.0
# The noise is what is quietest shortly before the voice began or while it lasted, over 30 ms.
NOISE_FRAMES = 15
SMOOTH_FRAMES = 3
# A sound that falls silent for so long is another one when it comes again.
STIR_GAP_FRAMES = 3


class Voice:
    """Follows one caller's audio.

    Args:
        rate: of the audio, Hz.
        models: two, each with a state of its own, of which each judges every other hop.
        confidence: probability from which on a window is speech.

    Attributes, all positions in samples since the beginning:
        heard: how much audio there was.
        speaking: whether the voice is there now.
        onset: where the present utterance began; None before it does.
        last_audible: the end of the last sample that was heard of the voice; None as `onset`.
        stirring: where a sound began that may yet prove to be the voice; None: there is none.
        voiced_ms: how much of the utterance Silero took for speech.
    """

    def __init__(self, rate: int, models: Sequence[Model], confidence: float) -> None:
        self._rate = rate
        self._models = models
        self._confidence = confidence
        self._frame = rate * FRAME_MS // 1000
        self._hop = rate * HOP_MS // 1000
        self._window = rate * WINDOW_MS // 1000
        self._samples: Pcm = np.empty(0, dtype=np.int16)  # from `_at` on
        self._at = 0
        self._hops = 0
        self._frames = 0
        self._run = 0  # hops of speech in a row
        self._since = STALE_HOPS  # hops since the last one of speech
        self._levels: deque[float] = deque(maxlen=NOISE_FRAMES + SMOOTH_FRAMES)
        self._quiet_frames = 0
        self.heard = 0
        self.stirring: int | None = None
        self.settle()

    def settle(self) -> None:
        """The utterance is over: what comes is another one."""
        self.onset: int | None = None
        self.last_audible: int | None = None
        self.voiced_ms = 0
        self._noise = float("inf")
        self._peak = float("-inf")

    @property
    def speaking(self) -> bool:
        """Whether the voice was there in the last hops."""
        return self.onset is not None and self._since < STALE_HOPS

    def feed(self, pcm: Pcm) -> None:
        """Take the next samples."""
        self._samples = np.concatenate((self._samples, pcm))
        self.heard += len(pcm)
        # In the order in which they end, however the stream is cut.
        while True:
            frame_end = (self._frames + 1) * self._frame
            hop_end = self._hops * self._hop + self._window
            if min(frame_end, hop_end) > self.heard:
                break
            if frame_end <= hop_end:
                self._judge_frame()
            else:
                self._judge_hop()
        # The frame that was judged last is looked at once more, with the next.
        keep = max(min(self._hops * self._hop, (self._frames - 1) * self._frame), self._at)
        self._samples = self._samples[keep - self._at :]
        self._at = keep

    def _judge_hop(self) -> None:
        first = self._hops * self._hop - self._at
        window = self._samples[first : first + self._window].astype(np.float32)
        is_speech = self._models[self._hops % len(self._models)](window / FULL) >= self._confidence
        self._hops += 1
        self._run = self._run + 1 if is_speech else 0
        self._since = 0 if is_speech else self._since + 1
        if self.onset is None and self._run >= STARTING_HOPS:
            self._begin()
        elif self.onset is not None and is_speech:
            self.voiced_ms += HOP_MS

    def _begin(self) -> None:
        """The voice has been there for some hops: its noise is what was quietest around them."""
        begun = (self._hops - STARTING_HOPS) * self._hop
        self.onset = begun if self.stirring is None else self.stirring
        self.last_audible = self._frames * self._frame
        self.voiced_ms = STARTING_HOPS * HOP_MS
        self._peak = max(self._levels)
        for back in range(max(0, len(self._levels) - SMOOTH_FRAMES + 1)):
            self._note_noise(back)

    def _note_noise(self, back: int) -> None:
        """Three frames' mean power, ending `back` frames ago."""
        levels = list(self._levels)[len(self._levels) - back - SMOOTH_FRAMES :][:SMOOTH_FRAMES]
        power = sum(10 ** (level / 10) for level in levels) / SMOOTH_FRAMES
        self._noise = min(self._noise, 10 * float(np.log10(max(power, 1e-12))))

    def _judge_frame(self) -> None:
        first = self._frames * self._frame - self._at
        level = max(rms_dbfs(self._samples[first : first + self._frame]), -120.0)
        self._frames += 1
        self._levels.append(level)
        if self.onset is not None and len(self._levels) >= SMOOTH_FRAMES:
            self._note_noise(0)
        threshold = self._threshold()
        self._note_stir(level >= threshold)
        if self.onset is not None and self._since < STALE_HOPS:
            self._note_audible(first, threshold)
            if level >= threshold:
                self._peak = max(self._peak, level)

    def _note_audible(self, first: int, threshold: float) -> None:
        """Look for the last audible sample of a frame and the one before, as labels are found.

        From the label, the frame's own end lies -6 to 7 ms (p5 and p95; at most 15), this 0 to 0.6:
        42 recordings at four places of the grid; in noise 20 dB below the voice, both are late now
        and then, by up to 181 ms.
        """
        begin = max(first - self._frame, 0)
        end = audible_end(self._samples[begin : first + self._frame], self._rate, threshold)
        if end is not None and self.last_audible is not None:
            self.last_audible = max(self.last_audible, self._at + begin + end + 1)

    def _threshold(self) -> float:
        """What a frame has to reach to be heard, dBFS."""
        if self.onset is None:
            return AUDIBLE_DBFS
        soft = min(AUDIBLE_DBFS, self._peak - RANGE_DB)
        told_apart = max(self._noise + OVER_NOISE_DB, soft, LOWEST_DBFS)
        return min(told_apart, self._peak - LEAST_RANGE_DB)

    def _note_stir(self, is_loud: bool) -> None:
        if is_loud:
            self._quiet_frames = 0
            if self.stirring is None:
                self.stirring = (self._frames - 1) * self._frame
            return
        self._quiet_frames += 1
        if self._quiet_frames >= STIR_GAP_FRAMES:
            self.stirring = None
