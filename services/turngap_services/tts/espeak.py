"""espeak-ng in the process: one engine, one thread, chunks handed over as they are made."""

import asyncio
import ctypes
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService

from turngap.core.audio import Pcm
from turngap.core.clock import Clock, samples_to_ns
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap_services.tts import EspeakSettings

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2
_DO_NOT_EXIT = 0x8000
_CHARS_UTF8 = 1
_RATE, _PITCH = 1, 3
_POSITION_CHARACTER = 1
_OK = 0
_CONTINUE, _ABORT = 0, 1

# The engine's lower bound: shorter buffers are ignored, chunks are 60 ms and up.
_BUFFER_MS = 60

_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class _VoiceStruct(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("xx1", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class EspeakVoice:
    """A voice and how it speaks; espeak-ng keeps these as globals, so each request sets them."""

    name: str
    speed_wpm: int
    pitch: int


class Espeak:
    """The process's espeak-ng. Its state is global, so it is used only in its one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="espeak")
        self._sink: Callable[[bytes], bool] = lambda _: False
        self._failure: BaseException | None = None
        self._voice: EspeakVoice | None = None
        self._on_samples = _Callback(self._samples)  # the library holds a bare pointer
        self._variants: list[str] = []
        self._lib, self.rate = self._thread.submit(self._load).result()

    async def speak(self, text: str, voice: EspeakVoice) -> AsyncGenerator[bytes, None]:
        """Yield mono int16 PCM at `rate` while it is synthesised.

        Closing the generator, or cancelling its consumer, stops the synthesis at the next chunk.

        Raises:
            InputError: there is no such voice.
            AgentError: the engine failed.
        """
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        wanted = True

        def sink(pcm: bytes) -> bool:
            if wanted:
                loop.call_soon_threadsafe(chunks.put_nowait, pcm)
            return wanted

        done = loop.run_in_executor(self._thread, self._synthesise, text, voice, sink)
        done.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (pcm := await chunks.get()) is not None:
                yield pcm
            await done
        finally:
            wanted = False
            done.cancel()

    def spoken(self, text: str, voice: EspeakVoice) -> Pcm:
        """Return all of the speech, at `rate`, once it is complete.

        Raises:
            InputError: there is no such voice.
            AgentError: the engine failed.
        """
        pieces: list[bytes] = []

        def sink(pcm: bytes) -> bool:
            pieces.append(pcm)
            return True

        self._thread.submit(self._synthesise, text, voice, sink).result()
        return np.frombuffer(b"".join(pieces), dtype=np.int16)

    def check(self, voice: EspeakVoice) -> None:
        """Load `voice` before the first reply needs it.

        Raises:
            InputError: there is no such voice.
        """
        self._thread.submit(self._use, voice).result()

    def _load(self) -> tuple[ctypes.CDLL, int]:
        import espeakng_loader

        lib = ctypes.CDLL(espeakng_loader.get_library_path())
        lib.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_VoiceStruct))
        data = Path(espeakng_loader.get_data_path())
        self._variants = sorted(p.name for p in (data / "voices" / "!v").iterdir())
        rate = lib.espeak_Initialize(
            _SYNCHRONOUS, _BUFFER_MS, str(data.parent).encode(), _DO_NOT_EXIT
        )
        if rate <= 0:
            raise AgentError("tts.espeak", f"espeak-ng did not start with its data in {data}")
        lib.espeak_SetSynthCallback(self._on_samples)
        return lib, int(rate)

    def _use(self, voice: EspeakVoice) -> None:
        if voice == self._voice:
            return
        self._voice = None
        _, plus, variant = voice.name.partition("+")
        if plus and variant not in self._variants:  # the engine would ignore it silently
            raise InputError(
                "tts.voice",
                f"espeak-ng has no variant {variant!r} of a voice, as in {voice.name!r}",
                hint=f"allowed after '+': {', '.join(self._variants)}",
            )
        if self._lib.espeak_SetVoiceByName(voice.name.encode()) != _OK:
            raise InputError(
                "tts.voice",
                f"espeak-ng has no voice {voice.name!r}",
                hint=f"English ones: {', '.join(self._voices())}, each with a variant after '+'",
            )
        self._lib.espeak_SetParameter(_RATE, voice.speed_wpm, 0)
        self._lib.espeak_SetParameter(_PITCH, voice.pitch, 0)
        self._voice = voice

    def _voices(self) -> list[str]:
        listed = self._lib.espeak_ListVoices(None)
        found: list[str] = []
        at = 0
        while listed[at]:
            # Each language is a priority byte followed by its NUL-terminated tag.
            tag = (listed[at].contents.languages or b"\0")[1:].decode()
            if tag == "en" or tag.startswith("en-"):
                found.append(tag)
            at += 1
        return sorted(set(found))

    def _synthesise(self, text: str, voice: EspeakVoice, sink: Callable[[bytes], bool]) -> None:
        self._use(voice)
        self._sink, self._failure = sink, None
        encoded = text.encode()
        status = self._lib.espeak_Synth(
            encoded, len(encoded) + 1, 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        if self._failure is not None:
            raise self._failure
        if status != _OK:
            raise AgentError("tts.espeak", f"espeak-ng failed to speak {text!r} (status {status})")

    def _samples(self, wav: "ctypes._Pointer[ctypes.c_short]", count: int, _events: int) -> int:
        if not wav or count <= 0:
            return _CONTINUE
        try:
            wanted = self._sink(ctypes.string_at(wav, count * 2))
        except BaseException as e:  # raised after the call, as an exception cannot cross C
            self._failure = e
            return _ABORT
        return _CONTINUE if wanted else _ABORT


@cache
def engine() -> Espeak:
    """Return the one engine of this process."""
    return Espeak()


# -60 dBFS: the engine's own lead-in is digital silence, the softest attack of a voice lies above.
_SILENT_BELOW = 33


class EspeakTTSService(TTSService):
    """A voice that speaks each piece of text, chunk by chunk as the engine makes it."""

    def __init__(self, *, settings: EspeakSettings, clock: Clock, engine: Espeak) -> None:
        super().__init__(
            sample_rate=engine.rate,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="espeak-ng", voice=settings.voice, language=None),
        )
        self._engine = engine
        self._clock = clock
        self._speech = EspeakVoice(settings.voice, settings.speed_wpm, settings.pitch)
        self._lead_in = bytes(2 * round(settings.lead_in_ms * engine.rate / 1000))
        self._realtime_factor = settings.realtime_factor
        self._begun: str | None = None  # context of the reply whose audio has begun

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await self.start_tts_usage_metrics(text)
        start_ns = self._clock.now_ns()
        made = 0
        speech = self._engine.speak(text, self._speech)
        try:
            async for pcm in speech:
                made += len(pcm) // 2
                if self._realtime_factor is not None:
                    spent_ns = samples_to_ns(made, self._engine.rate) * self._realtime_factor
                    await self._clock.sleep_until_ns(start_ns + round(spent_ns))
                if audio := self._from_onset(pcm, context_id):
                    yield TTSAudioRawFrame(audio, self._engine.rate, 1, context_id=context_id)
        except TurngapError as e:
            yield ErrorFrame(error=e.message)
        finally:
            await speech.aclose()

    def _from_onset(self, pcm: bytes, context_id: str) -> bytes:
        """Return `pcm`; at the start of a reply the lead-in and `pcm` from its first sound on."""
        if context_id == self._begun:
            return pcm
        sound = np.flatnonzero(
            np.abs(np.frombuffer(pcm, np.int16).astype(np.int32)) > _SILENT_BELOW
        )
        if len(sound) == 0:
            return b""
        self._begun = context_id
        return self._lead_in + pcm[2 * int(sound[0]) :]


def _voice(settings: EspeakSettings) -> EspeakVoice:
    return EspeakVoice(settings.voice, settings.speed_wpm, settings.pitch)


def prepare(settings: EspeakSettings) -> None:
    """Start the engine and load the voice."""
    engine().check(_voice(settings))


def create(settings: EspeakSettings, clock: Clock) -> EspeakTTSService:
    """Make the service of one session."""
    return EspeakTTSService(settings=settings, clock=clock, engine=engine())


def speak(settings: EspeakSettings, text: str) -> tuple[Pcm, int]:
    """Speak a text at once."""
    return engine().spoken(text, _voice(settings)), engine().rate
