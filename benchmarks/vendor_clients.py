"""Let the vendors' own Python SDKs talk to our agents' halves, and read what our callers send.

    uv venv SDKS; uv pip install --python SDKS/bin/python deepgram-sdk elevenlabs google-genai
    python benchmarks/vendor_clients.py SDKS/bin/python

For each of `deepgram-agent`, `elevenlabs` and `gemini-live` a scripted agent serves on loopback.
The SDK's client talks to it and speaks over its reply; what it understood is printed. Then what our
session sends is read by the SDK's typed models, where it has some. The SDKs are clients, so they
say nothing of how the real servers behave.
"""

import asyncio
import base64
import json
import math
import struct
import subprocess
import sys
import threading
from collections import Counter
from importlib import import_module
from typing import Any

PACKET_MS = 20


def speech(rate: int) -> list[bytes]:
    """Packets of a person: speaks, is answered, and speaks over the answer."""
    packets: list[bytes] = []
    for at_ms in range(0, 2600, PACKET_MS):
        speaks = 200 <= at_ms < 600 or 1300 <= at_ms < 1700
        level = 8000 if speaks else 0
        samples = range(rate * PACKET_MS // 1000)
        tone = [round(level * math.cos(2 * math.pi * 250 * n / rate)) for n in samples]
        packets.append(struct.pack(f"<{len(tone)}h", *tone))
    return packets


async def talk(rate: int, send: Any) -> None:
    """Send the person in real time."""
    for packet in speech(rate):
        await send(packet)
        await asyncio.sleep(PACKET_MS / 1000)  # noqa: TID251 - this half runs without turngap


# --- in the environment of the SDKs -----------------------------------------------------------


async def deepgram(url: str, sent: list[Any]) -> Counter[str]:
    environment = import_module("deepgram.environment").DeepgramClientEnvironment
    types = import_module("deepgram.agent.v1.types")
    here = environment(base=url, production=url, agent=url, agent_rest=url)
    client = import_module("deepgram").AsyncDeepgramClient(api_key="x", environment=here)
    read: Counter[str] = Counter()
    # What our session sends, by the types that the SDK itself sends.
    for message in sent:
        parsed = types.AgentV1Settings.model_validate(message)
        assert not _extra(parsed), _extra(parsed)
        read[f"ours read as {type(parsed).__name__}"] += 1
    async with client.agent.v1.connect() as socket:
        read[type(await socket.recv()).__name__] += 1
        await socket.send_settings(types.AgentV1Settings.model_validate(sent[0]))
        talking = asyncio.create_task(talk(16_000, socket.send_media))
        while not talking.done():
            try:
                message = await asyncio.wait_for(socket.recv(), 0.5)
            except TimeoutError:
                continue
            assert isinstance(message, bytes) or not _extra(message), message
            read[type(message).__name__] += 1
        await talking
    return read


def _extra(model: Any) -> dict[str, Any]:
    """What of a message the SDK's model does not know."""
    return dict(getattr(model, "__pydantic_extra__", None) or {})


async def elevenlabs(url: str, sent: list[Any]) -> Counter[str]:
    module = import_module("elevenlabs.conversational_ai.conversation")
    client = import_module("elevenlabs").ElevenLabs(
        api_key="x", base_url=url.replace("ws:", "http:")
    )
    read: Counter[str] = Counter()

    class Audio(module.AudioInterface):
        """Speaks as the person does, and counts what it is to play."""

        def start(self, input_callback: Any) -> None:
            self._spoken = threading.Thread(target=self._speak, args=(input_callback,))
            self._spoken.start()

        def _speak(self, callback: Any) -> None:
            async def send(packet: bytes) -> None:
                callback(packet)

            asyncio.run(talk(16_000, send))
            conversation.end_session()

        def stop(self) -> None:
            """Leave: the person ends by itself."""

        def output(self, audio: bytes) -> None:
            read["audio"] += len(audio) // 2

        def interrupt(self) -> None:
            read["interrupt"] += 1

    def count(name: str) -> Any:
        def called(*_: Any) -> None:
            read[name] += 1

        return called

    conversation = module.Conversation(
        client,
        "agent",
        requires_auth=False,
        audio_interface=Audio(),
        callback_agent_response=count("agent_response"),
        callback_user_transcript=count("user_transcript"),
    )
    # It has no types for this direction; its own opening and audio are these keys.
    opening = json.loads(conversation._create_initiation_message())
    assert sent[0]["type"] == opening["type"]
    assert set(sent[1]) == {"user_audio_chunk"}
    conversation.start_session()
    read["conversation id known"] += bool(conversation.wait_for_session_end())
    return read


async def gemini(url: str, sent: list[Any]) -> Counter[str]:
    genai = import_module("google.genai")
    types = import_module("google.genai.types")
    read: Counter[str] = Counter()
    for message in sent:  # its models refuse what they do not know
        types.LiveClientMessage.model_validate(message)
        read[f"ours read as LiveClientMessage.{next(iter(message))}"] += 1
    client = genai.Client(api_key="x")
    # It insists on TLS otherwise.
    client._api_client._websocket_base_url = lambda *_: url
    client._api_client._websocket_ssl_ctx = {}
    config = {"response_modalities": ["AUDIO"], "input_audio_transcription": {}}
    async with client.aio.live.connect(model="gemini-x", config=config) as session:
        read["connected"] += 1

        async def send(packet: bytes) -> None:
            blob = types.Blob(data=packet, mime_type="audio/pcm;rate=16000")
            await session.send_realtime_input(audio=blob)

        async def receive() -> None:
            while True:
                async for message in session.receive():
                    for name, value in message.server_content or ():
                        if value is not None:
                            read[name] += 1
                    read["samples"] += len(message.data or b"") // 2

        receiving = asyncio.create_task(receive())
        await talk(16_000, send)
        receiving.cancel()
    return read


CLIENTS = {"deepgram-agent": deepgram, "elevenlabs": elevenlabs, "gemini-live": gemini}


# --- in turngap's own environment -------------------------------------------------------------


def sent_by(dialect: str) -> list[Any]:
    """What our session sends first: its opening, and a packet of audio where that is JSON."""
    from turngap.caller.dialects.registry import find_dialect

    session = find_dialect(dialect).session()
    session.open()
    if dialect == "deepgram-agent":
        session.receive_data('{"type":"Welcome","request_id":"x"}')
    session.send_audio(base64.b64decode("AQD/fw=="))
    return [json.loads(m) for m in session.data_to_send() if isinstance(m, str)]


async def serve(python: str) -> None:
    from turngap.testing.agent import Reply, Script, ScriptedAgent

    reply = Reply(delay_ms=300, speech_ms=2000, paced=False)
    for dialect in CLIENTS:
        async with ScriptedAgent(script=Script(replies=(reply,)), dialect=dialect) as agent:
            arguments = [python, __file__, dialect, agent.url, json.dumps(sent_by(dialect))]
            done = await asyncio.to_thread(
                subprocess.run, arguments, capture_output=True, text=True, timeout=120
            )
        told = done.stdout.strip() or done.stderr.strip()[-2000:]
        print(f"{dialect}: {'ok' if not done.returncode else 'FAILED'} {told}")


if __name__ == "__main__":
    if sys.argv[1] in CLIENTS:
        name, url, sent = sys.argv[1:4]
        print(dict(asyncio.run(CLIENTS[name](url, json.loads(sent)))))
    else:
        asyncio.run(serve(sys.argv[1]))
