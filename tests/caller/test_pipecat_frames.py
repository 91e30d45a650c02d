"""turngap's own description of pipecat's frames against pipecat's."""

from typing import Any

from pipecat.frames.protobufs import frames_pb2

from turngap.core.wire import Frame


def described(file: Any) -> dict[str, list[tuple[str, int, int, bool]]]:
    """Return the fields on the wire: one that is `optional` in theirs is there like any other."""
    return {
        name: [
            (f.name, f.number, f.type, getattr(f.containing_oneof, "name", "") == "frame")
            for f in message.fields
        ]
        for name, message in file.message_types_by_name.items()
    }


def test_the_frames_are_pipecats() -> None:
    theirs = described(frames_pb2.DESCRIPTOR)
    assert "Frame" in theirs
    assert described(Frame.DESCRIPTOR.file) == theirs
