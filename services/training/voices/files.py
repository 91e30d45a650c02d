"""A piper voice on disk: the network, and a file that lists its symbols."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

# What onnxruntime 1.20 reads, which piper allows.
IR_VERSION = 10
OPSET = 18

RATE = 22_050


def write_voice(
    path: Path,
    graph: onnx.GraphProto,
    symbols: Mapping[str, Sequence[int]],
    *,
    speakers: Mapping[str, int] | None = None,
) -> None:
    """Write `path` (.onnx) and its .onnx.json.

    Args:
        path: the path of the network; an existing file is overwritten.
        graph: takes `input` (1, n) of symbol ids, `input_lengths` (1), `scales` (noise, length and
            width of the noise), and `sid` (1) where there are several speakers; gives samples at
            RATE Hz, -1 to 1.
        symbols: ids of each phoneme, and of `^`, `_` and `$` (begin, between, end).
        speakers: numbers by name; None: one speaker.
    """
    opsets = [onnx.helper.make_opsetid("", OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())
    config = {
        "audio": {"sample_rate": RATE},
        "espeak": {"voice": "en-us"},
        "phoneme_type": "espeak",
        "num_symbols": 1 + max(i for ids in symbols.values() for i in ids),
        "num_speakers": len(speakers) if speakers else 1,
        "speaker_id_map": dict(speakers or {}),
        "inference": {"noise_scale": 0.667, "length_scale": 1.0, "noise_w": 0.8},
        "phoneme_id_map": {symbol: list(ids) for symbol, ids in symbols.items()},
    }
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    path.with_name(f"{path.name}.json").write_text(text, encoding="utf-8")


def inputs(*, several_speakers: bool) -> list[onnx.ValueInfoProto]:
    """Describe the inputs of every voice."""
    integers, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    info = onnx.helper.make_tensor_value_info
    taken = [
        info("input", integers, [1, "symbols"]),
        info("input_lengths", integers, [1]),
        info("scales", floats, [3]),
    ]
    return [*taken, info("sid", integers, [1])] if several_speakers else taken


def outputs() -> list[onnx.ValueInfoProto]:
    """Describe the outputs of every voice."""
    shape = [1, 1, 1, "samples"]
    return [onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, shape)]
