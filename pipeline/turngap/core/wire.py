"""The line's formats: pipecat's frames, G.711, and turngap's own messages inside RTVI."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from turngap.core.audio import Pcm
from turngap.core.errors import TurngapError

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _BYTES, _UINT32, _UINT64 = (
    _Field.TYPE_STRING,
    _Field.TYPE_BYTES,
    _Field.TYPE_UINT32,
    _Field.TYPE_UINT64,
)

# Each message's fields: name, number, type.
_MESSAGES: dict[str, tuple[tuple[str, int, Any], ...]] = {
    "TextFrame": (("id", 1, _UINT64), ("name", 2, _TEXT), ("text", 3, _TEXT)),
    "AudioRawFrame": (
        ("id", 1, _UINT64),
        ("name", 2, _TEXT),
        ("audio", 3, _BYTES),
        ("sample_rate", 4, _UINT32),
        ("num_channels", 5, _UINT32),
        ("pts", 6, _UINT64),
    ),
    "TranscriptionFrame": (
        ("id", 1, _UINT64),
        ("name", 2, _TEXT),
        ("text", 3, _TEXT),
        ("user_id", 4, _TEXT),
        ("timestamp", 5, _TEXT),
    ),
    "MessageFrame": (("data", 1, _TEXT),),
    "InterruptionFrame": (("id", 1, _UINT64), ("name", 2, _TEXT)),
}
# What a frame is one of: name, number, message.
_KINDS = (
    ("text", 1, "TextFrame"),
    ("audio", 2, "AudioRawFrame"),
    ("transcription", 3, "TranscriptionFrame"),
    ("message", 4, "MessageFrame"),
    ("interruption", 5, "InterruptionFrame"),
)


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="turngap/pipecat_frames.proto", package="pipecat", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(name=field, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    frame = file.message_type.add(name="Frame")
    frame.oneof_decl.add(name="frame")
    for field, number, kind in _KINDS:
        frame.field.add(
            name=field,
            number=number,
            type=_Field.TYPE_MESSAGE,
            type_name=f".pipecat.{kind}",
            label=_Field.LABEL_OPTIONAL,
            oneof_index=0,
        )
    return file


# A pool of its own: pipecat's module describes messages of the same names in the default one.
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_described())  # pyright: ignore[reportAttributeAccessIssue]

Frame: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName("pipecat.Frame"))


def frame_in(data: bytes) -> Any:
    """Return the frame in a message; None if there is none."""
    try:
        frame = Frame.FromString(data)
    except DecodeError:
        return None
    return None if frame.WhichOneof("frame") is None else frame


def message_frame(payload: dict[str, Any]) -> bytes:
    """Make a protobuf message frame of a JSON payload."""
    frame = Frame()
    frame.message.data = json.dumps(payload)
    return frame.SerializeToString()


RATE = 8_000

# What µ-law adds to a 14-bit magnitude, so that every segment begins at a power of two.
_BIAS = 33
# The bits that A-law inverts, so that a quiet line is no row of equal bits.
_EVEN_BITS = 0x55


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A way to store a sample in one byte.

    Attributes:
        name: its usual name.
        code: the byte of each int16 sample, shape (65536,), by the sample as uint16.
        level: the sample of each byte, shape (256,).
    """

    name: str
    code: NDArray[np.uint8]
    level: Pcm

    def encode(self, pcm: Pcm) -> bytes:
        """Return the bytes of int16 samples."""
        return self.code[pcm.view(np.uint16)].tobytes()

    def decode(self, data: bytes) -> Pcm:
        """Return the int16 samples of bytes."""
        return self.level[np.frombuffer(data, np.uint8)]


def _samples() -> NDArray[np.int32]:
    """Return every int16 sample, in the order of its uint16."""
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)


def _segment(magnitude: NDArray[np.int32], lowest: int) -> NDArray[np.int32]:
    """Return how often a magnitude has doubled from 2 ** `lowest`; 0 below the first doubling."""
    return np.maximum(np.frexp(magnitude)[1] - 1 - lowest, 0)


def _mu_law() -> Law:
    sample = _samples()
    magnitude = np.minimum((np.abs(sample) >> 2) + _BIAS, 8191)
    segment = _segment(magnitude, 5)
    step = (magnitude >> (segment + 1)) & 15
    code = ~(((sample < 0) << 7) | (segment << 4) | step) & 255
    byte = ~np.arange(256) & 255
    level = ((((byte & 15) * 2 + _BIAS) << ((byte >> 4) & 7)) - _BIAS) * 4
    return Law("µ-law", code.astype(np.uint8), np.where(byte & 128, -level, level).astype(np.int16))


def _a_law() -> Law:
    sample = _samples()
    magnitude = np.minimum(np.abs(sample) >> 4, 2047)
    segment = _segment(magnitude, 3)
    step = (magnitude >> np.maximum(segment - 1, 0)) & 15
    code = (((sample >= 0) << 7) | (segment << 4) | step) ^ _EVEN_BITS
    byte = np.arange(256) ^ _EVEN_BITS
    exponent, step = (byte >> 4) & 7, byte & 15
    level = ((step * 2 + 1 + 32 * (exponent > 0)) << np.maximum(exponent - 1, 0)) * 8
    return Law("A-law", code.astype(np.uint8), np.where(byte & 128, level, -level).astype(np.int16))


MU_LAW = _mu_law()
A_LAW = _a_law()


# Asks for the agent's clock; answered by `pong`.
PING = "turngap.ping"
# Picks another LLM, `{"use": NAME}`; answered by `llm` or `refused`.
LLM = "turngap.llm"
# Says something in writing, `{"turn": n, "text": …}`; answered by `said` or `refused`.
SAY = "turngap.say"


def refusal(about: str, error: TurngapError) -> dict[str, Any]:
    """Build the server message that says why a client message is refused."""
    return {
        "turngap": "refused",
        "re": about,
        "kind": error.kind,
        "message": error.message,
        "hint": error.hint,
    }
