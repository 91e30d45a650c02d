"""The files of a streaming transducer, checked before sherpa-onnx loads them.

It must be before: sherpa-onnx 2.0 ends the process where it misses something in a file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from turngap.core.errors import AgentError
from turngap_services.loading import require_files

_TOKENS = "tokens.txt"
EXPECTED = (
    "expected a streaming transducer in sherpa-onnx's format, each part as PART.onnx, "
    "PART.int8.onnx or PART-....onnx: encoder, decoder, joiner; and tokens.txt"
)
_AGAIN = "it may be half a download: download it again, or take another --set stt.model=NAME"
# What sherpa-onnx reads of an encoder of each type, besides the size of its window.
_ICEFALL = {
    "zipformer2": (
        "encoder_dims", "query_head_dims", "value_head_dims", "num_heads", "num_encoder_layers",
        "cnn_module_kernels", "left_context_len",
    ),
    "zipformer": (
        "encoder_dims", "attention_dims", "num_encoder_layers", "cnn_module_kernels",
        "left_context_len",
    ),
    "conformer": ("num_encoder_layers", "pad_length", "encoder_dim", "cnn_module_kernel"),
    "lstm": ("num_encoder_layers", "d_model", "rnn_hidden_size"),
}  # fmt: skip
_NEMO = (
    "vocab_size", "subsampling_factor", "pred_rnn_layers", "pred_hidden",
    *(f"cache_last_{what}_dim{n}" for what in ("channel", "time") for n in (1, 2, 3)),
)  # fmt: skip

# Protocol buffers: what each field of a message begins with, and ONNX's fields of a model.
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_METADATA = 14


@dataclass(frozen=True, slots=True)
class Files:
    """The parts of a model, and how much audio it reads at once.

    Attributes:
        window: frames of 10 ms that one reading is given.
        shift: frames from one reading to the next.
    """

    encoder: Path
    decoder: Path
    joiner: Path
    tokens: Path
    window: int
    shift: int


def files_in(directory: Path) -> Files:
    """Find and check the files of a model.

    Raises:
        AgentError: one is missing, damaged or of another kind of model.
    """
    if not directory.is_dir():
        raise AgentError("model.missing", f"no model directory at {directory}", hint=EXPECTED)
    require_files(directory, [_TOKENS], EXPECTED)
    encoder, decoder, joiner = (_part(directory, name) for name in ("encoder", "decoder", "joiner"))
    about = metadata(encoder)
    icefall = _ICEFALL.get(about.get("model_type", ""))
    if icefall is not None:
        _require(encoder, about, (*icefall, "T", "decode_chunk_len"))
        of_decoder = metadata(decoder)
        _require(decoder, of_decoder, ("vocab_size", "context_size"))
        metadata(joiner)
        _check_tokens(directory / _TOKENS, int(of_decoder["vocab_size"]), blank_last=False)
        window, shift = about["T"], about["decode_chunk_len"]
    elif "RNNT" in about.get("model_type", ""):  # NeMo's EncDecRNNTBPEModel and its hybrids
        _require(encoder, about, (*_NEMO, "window_size", "chunk_shift"))
        metadata(decoder)
        metadata(joiner)
        _check_tokens(directory / _TOKENS, int(about["vocab_size"]) + 1, blank_last=True)
        window, shift = about["window_size"], about["chunk_shift"]
    else:
        kind = about.get("model_type", "none")
        raise AgentError(
            "model.type",
            f"{encoder} is no encoder of a streaming transducer that is known (model_type: {kind})",
            hint=EXPECTED,
        )
    return Files(encoder, decoder, joiner, directory / _TOKENS, int(window), int(shift))


def metadata(path: Path) -> dict[str, str]:
    """Return the metadata of an ONNX model, read without the model.

    Raises:
        AgentError: it is no such file, or not all of it.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            found: dict[str, str] = {}
            while file.tell() < size:
                number, kind = divmod(_varint(file.read), 8)
                if kind == _VARINT:
                    _varint(file.read)
                    continue
                length = {_EIGHT: 8, _FOUR: 4}.get(kind) or _length(kind, file.read)
                if length > size - file.tell():
                    raise ValueError("it ends too early")
                if number == _METADATA:
                    entry = _entry(file.read(length))
                    found[entry[0]] = entry[1]
                else:
                    file.seek(length, 1)
            if not size:
                raise ValueError("it is empty")
    except (OSError, ValueError, IndexError) as e:
        raise AgentError(
            "model.damaged", f"{path} is no complete ONNX model: {e}", hint=_AGAIN
        ) from e
    return found


def _part(directory: Path, name: str) -> Path:
    """The file of a part; of several, the quantized one."""
    found = sorted(directory.glob(f"{name}*.onnx"), key=lambda path: ".int8." not in path.name)
    if not found:
        raise AgentError("model.missing", f"{directory} has no {name}.onnx", hint=EXPECTED)
    return found[0]


def _require(path: Path, about: dict[str, str], keys: tuple[str, ...]) -> None:
    if missing := [key for key in keys if not about.get(key)]:
        raise AgentError(
            "model.type", f"{path} does not say its {', '.join(missing)}", hint=EXPECTED
        )
    for key in ("T", "decode_chunk_len", "window_size", "chunk_shift", "vocab_size"):
        if key in about and not (about[key].isdecimal() and 0 < int(about[key]) < 2**31):
            raise AgentError(
                "model.type", f"{path} says {key}={about[key]!r}", hint="expected a whole number"
            )


def _check_tokens(path: Path, tokens: int, *, blank_last: bool) -> None:
    """Each number from 0 to `tokens` - 1 must have a symbol."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        numbers = {int(line.split()[-1]) for line in lines if line.strip()}
    except (OSError, ValueError) as e:
        raise AgentError("model.damaged", f"{path} cannot be read: {e}", hint=_AGAIN) from e
    last = [f"<blk> {tokens - 1}"] if blank_last else lines[-1:]
    if not numbers >= set(range(tokens)) or lines[-1:] != last:
        raise AgentError(
            "model.damaged", f"{path} does not belong to a model of {tokens} tokens", hint=_AGAIN
        )


def _length(kind: int, read: Callable[[int], bytes]) -> int:
    if kind != _LENGTH:
        raise ValueError("it is something else")
    return _varint(read)


def _varint(read: Callable[[int], bytes]) -> int:
    """A number of at most ten bytes, seven bits in each, the lowest first."""
    value = 0
    for place in range(10):
        byte = read(1)[0]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value
    raise ValueError("it is something else")


def _entry(data: bytes) -> tuple[str, str]:
    """Key and value of a metadata entry."""
    stream = BytesIO(data)
    parts = {1: "", 2: ""}
    while stream.tell() < len(data):
        number, kind = divmod(_varint(stream.read), 8)
        parts[number] = stream.read(_length(kind, stream.read)).decode()
    return parts[1], parts[2]
