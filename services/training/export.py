"""A trained model as files: for transformers and vLLM, and for the backend `small`."""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import json
import shutil
import tempfile
from pathlib import Path

import torch
from ctranslate2.converters import TransformersConverter
from transformers import LlamaForCausalLM

# Of what transformers writes, only this is needed to load a model and to talk to it.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def save(model: LlamaForCausalLM, tokenizer_directory: Path, directory: Path) -> None:
    """Write what transformers and vLLM load: bfloat16 weights, tokenizer, chat template.

    Args:
        model: the trained model; it stays unchanged.
        tokenizer_directory: the folder of `tokenizer.json` and `tokenizer_config.json`.
        directory: made if it is not there; files in it are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    small = LlamaForCausalLM(model.config)
    small.load_state_dict(model.state_dict())
    small.to(torch.bfloat16).save_pretrained(directory)
    for name in _TOKENIZER_FILES:
        shutil.copyfile(tokenizer_directory / name, directory / name)


def convert(model_directory: Path, directory: Path, *, quantization: str | None = "int8") -> None:
    """Write what the backend `small` loads: weights in CTranslate2's format.

    Args:
        model_directory: any causal model that transformers can load and CTranslate2 converts.
        directory: made if it is not there; files in it are replaced.
        quantization: the number format of the weights; None keeps theirs.
    """
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "converted")
        converter = TransformersConverter(str(model_directory), copy_files=list(_TOKENIZER_FILES))
        converter.convert(str(out), quantization=quantization)
        _name_a_first_token(out / "config.json")
        directory.mkdir(parents=True, exist_ok=True)
        for file in out.iterdir():
            shutil.copyfile(file, directory / file.name)


def _name_a_first_token(path: Path) -> None:
    """Name a first token; CTranslate2 requires one, though it puts none before a prompt."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["bos_token"] = config["bos_token"] or config["eos_token"]
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def size_mb(directory: Path) -> float:
    """Return the megabytes (10^6 bytes) of a directory's files."""
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file()) / 1e6
