"""pipecat's protobuf frames, described here so that a caller needs no pipecat.

The fields and their numbers are those of pipecat's `frames.proto`. An `interruption` is sent by
pipecat 1.1 and later.
"""

import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

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
