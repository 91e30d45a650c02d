"""The share of a model's right answers on dialogues that were held out from its training.

`held_out.json` is next to the model; `python -m training.ship` writes it.
"""

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.core.errors import AgentError
from turngap.core.run_record import HeldOutRecord
from turngap.core.stats import Proportion
from turngap.core.untrusted import in_a_line
from turngap_services.llm.small import SmallSettings

FILE = "held_out.json"
_HINT = f"write it again with `python -m training.ship`, or delete {FILE}"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    sha256: str
    """Digest of `model.bin`, the only file that the figures apply to."""
    dialogues: int = Field(ge=1)
    right: Proportion


def read_held_out(directory: Path) -> HeldOutRecord | None:
    """Read the file next to a model.

    Returns:
        The share of right answers; None if there is no such file, or no model.

    Raises:
        AgentError: it cannot be read, or is about another model than the one next to it.
    """
    path, weights = directory / FILE, directory / "model.bin"
    if not path.is_file() or not weights.is_file():
        return None
    try:
        file = _File.model_validate_json(path.read_bytes())
    except ValidationError as e:
        raise AgentError("model.held_out", f"{path}: {in_a_line(e)}", hint=_HINT) from e
    if hashlib.sha256(weights.read_bytes()).hexdigest() != file.sha256:
        raise AgentError(
            "model.held_out", f"{path} is about another model than {weights.name}", hint=_HINT
        )
    return HeldOutRecord(model=file.model, dialogues=file.dialogues, right=file.right)


def held_out_share(settings: SmallSettings) -> HeldOutRecord | None:
    """Read the share of right answers measured when the model was made; None if not known.

    The figures were measured with int8 arithmetic on a CPU, and whole replies of the likeliest
    tokens. They do not apply to any other use.
    """
    as_counted = settings.compute_type in (None, "int8") and all(
        getattr(settings, name) == SmallSettings.model_fields[name].default
        for name in ("device", "temperature", "max_tokens")
    )
    return read_held_out(settings.directory) if as_counted else None
