"""Serve Hugging Face's speech-to-speech with its models replaced, to be talked to in its protocol.

    uv venv S2S
    uv pip install --python S2S/bin/python --no-deps speech-to-speech
    uv pip install --python S2S/bin/python openai==2.28.0 fastapi uvicorn websockets httpx numpy
    uv pip install --python S2S/bin/python scipy soxr onnxruntime jsonschema pillow rich
    S2S/bin/python benchmarks/speech_to_speech_server.py 8765
    turngap replay coffee-order --agent ws://127.0.0.1:8765/v1/realtime --dialect openai-realtime

Its server, its sessions, its events and its cancelling are its own. Its models are not: a detector
of energy ends the turn after 0.2 s, and after `DELAY_S` it says a tone, twice as fast as it is
played. It needs no turngap, and listens on loopback only.
"""

# pyright: reportMissingImports=false
# It runs in the environment of speech-to-speech.

import logging
import sys
import threading
import time
from queue import Queue
from threading import Event
from typing import Any

import numpy as np
from speech_to_speech.api.openai_realtime.pipeline_unit import PipelineUnit
from speech_to_speech.api.openai_realtime.server import RealtimeServer
from speech_to_speech.api.openai_realtime.service import RealtimeService
from speech_to_speech.pipeline.cancel_scope import CancelScope
from speech_to_speech.pipeline.control import SESSION_END, is_control_message
from speech_to_speech.pipeline.events import (
    AssistantOutputEvent,
    AssistantResponseDoneEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptionCompletedEvent,
)
from speech_to_speech.pipeline.messages import (
    AUDIO_RESPONSE_DONE,
    AudioOutput,
    GenerateResponseRequest,
)

RATE = 16_000  # of its pipeline
HOLD_S, DELAY_S, SPEECH_S = 0.2, 0.3, 3.0
CHUNK_S = 0.1
LOUD_RMS = 300.0


def listen(unit: PipelineUnit) -> None:
    """Be its VAD and its recogniser."""
    at = began = quiet = 0
    speaking = False
    while True:
        item: Any = unit.input_queue.get()
        if is_control_message(item, SESSION_END.kind):
            at, speaking = 0, False
            unit.text_prompt_queue.put(item)
            continue
        samples = np.frombuffer(item[0], dtype="<i2").astype(float)
        at += len(samples)
        loud = np.sqrt((samples**2).mean()) > LOUD_RMS
        quiet = 0 if loud else quiet + len(samples)
        if loud and not speaking:
            speaking, began = True, at
            unit.text_output_queue.put(SpeechStartedEvent(audio_start_ms=at * 1000 // RATE))
        elif speaking and quiet >= HOLD_S * RATE:
            speaking = False
            lasted, end_ms = (at - began) / RATE, at * 1000 // RATE
            said = "what a detector of energy heard"
            unit.text_output_queue.put(SpeechStoppedEvent(duration_s=lasted, audio_end_ms=end_ms))
            unit.text_output_queue.put(TranscriptionCompletedEvent(transcript=said))


def speak(unit: PipelineUnit) -> None:
    """Be its LLM and its voice."""
    tone = np.cos(2 * np.pi * 220 * np.arange(int(SPEECH_S * RATE)) / RATE)
    chunks = np.split(np.rint(tone * 8000).astype(np.int16), round(SPEECH_S / CHUNK_S))
    while True:
        item: Any = unit.text_prompt_queue.get()
        if is_control_message(item, SESSION_END.kind):
            unit.output_queue.put(item)
        if not isinstance(item, GenerateResponseRequest):
            continue
        whose = {
            "response_key": item.response_key,
            "cancel_generation": unit.cancel_scope.generation,
        }
        time.sleep(DELAY_S)
        unit.output_queue.put(AssistantOutputEvent(text="a tone", **whose))
        for chunk in chunks:
            if unit.cancel_scope.is_stale(whose["cancel_generation"]):
                break
            unit.output_queue.put(AudioOutput(audio=chunk, **whose))
            time.sleep(CHUNK_S / 2)
        unit.output_queue.put(AssistantResponseDoneEvent(**whose))
        unit.output_queue.put(AudioOutput(audio=AUDIO_RESPONSE_DONE, **whose))


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    prompts: Queue[Any] = Queue()
    listening = Event()
    unit = PipelineUnit(
        index=0,
        service=RealtimeService(text_prompt_queue=prompts, should_listen=listening),
        cancel_scope=CancelScope(),
        should_listen=listening,
        response_playing=Event(),
        input_queue=Queue(),
        output_queue=Queue(),
        text_output_queue=Queue(),
        text_prompt_queue=prompts,
        handlers=[],
    )
    for part in (listen, speak):
        threading.Thread(target=part, args=(unit,), daemon=True).start()
    RealtimeServer(Event(), [unit], host="127.0.0.1", port=int(sys.argv[1])).run()


if __name__ == "__main__":
    main()
