"""A fleet as a file or as flags: what may be written, and the fleet that it means."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from turngap.core.errors import InputError
from turngap.core.problems import problems, reason
from turngap.fleet.fleet import Fleet, Pool, Routing
from turngap.inference.hardware import Accelerator, Precision, find_accelerator
from turngap.inference.model import Model, find_model
from turngap.inference.policy import Policy, PolicyName
from turngap.inference.server import Server
from turngap.inference.speculation import Speculation

# vLLM's defaults: max_num_seqs 256; and 2048 tokens a step, which its tuning guide gives for low
# latency between tokens.
CONTINUOUS_BATCH = 256
CHUNK_TOKENS = 2048


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HardwareTable(_Strict):
    """An accelerator that is no preset; see `turngap.inference.hardware.Accelerator`."""

    name: str = "custom"
    memory_gb: float
    bandwidth_gb_s: float
    tflops: dict[str, float]
    usable: float = 0.9
    memory_efficiency: float = 0.75
    compute_efficiency: float = 0.5
    step_us: float = 2000.0
    sequence_us: float = 0.0
    prompt_us: float = 0.0
    layer_us: float = 0.0
    split_us: float = 15.0
    link_gb_s: float = 450.0


class ModelTable(_Strict):
    """A model that is no preset; see `turngap.inference.model.Model`."""

    name: str = "custom"
    params_b: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    active_b: float | None = None
    experts: int = 0
    experts_per_token: int = 0


class SpeculationTable(_Strict):
    """Speculative decoding; see `turngap.inference.speculation.Speculation`."""

    acceptance: float
    draft_tokens: int = 4
    draft_cost: float = 0.05


class PoolTable(_Strict):
    """Equal replicas.

    `max_batch` is 256 for `continuous` and 1 for `immediate` where it is left out; `static` has to
    be told. `chunk_tokens` is 2048 for `continuous`; 0 computes a prompt in one step.
    """

    hardware: str | HardwareTable = "h100"
    parts: int = 1
    replicas: int = 1
    model: str | ModelTable = "llama-3.1-8b"
    weights: Precision = "bf16"
    kv: Precision = "bf16"
    policy: PolicyName = "continuous"
    max_batch: int | None = None
    chunk_tokens: Annotated[int, Field(ge=0)] | None = None
    max_wait_ms: float | None = None
    speculation: SpeculationTable | None = None
    part_hour_usd: float | None = None


class FleetFile(_Strict):
    """A fleet."""

    routing: Routing = "sticky"
    prefix_cache: bool = True
    pool: Annotated[tuple[PoolTable, ...], Field(min_length=1)]


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet from a TOML or YAML file.

    Raises:
        InputError: it cannot be read, or says what a fleet file may not say.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError("fleet.unreadable", f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise InputError("fleet.unreadable", f"{path}: not a text file: {e}") from e
    if path.suffix == ".toml":
        try:
            values: Any = tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise InputError("fleet.not_toml", f"{path}: not TOML: {e}") from e
    elif path.suffix in (".yaml", ".yml"):
        try:
            values = YAML(typ="safe", pure=True).load(text)
        except YAMLError as e:
            raise InputError("fleet.not_yaml", f"{path}: not YAML: {e}") from e
    else:
        raise InputError(
            "fleet.suffix", f"{path}: expected a .toml, .yaml or .yml file that describes a fleet"
        )
    return fleet_file(values, str(path))


def fleet_file(values: Any, where: str) -> FleetFile:
    """Check what a file or flags say; `where` is named in errors."""
    if not isinstance(values, Mapping):
        raise InputError(
            "fleet.invalid", f"{where}: expected tables", hint="for example: [[pool]] in TOML"
        )
    try:
        return FleetFile.model_validate(values)
    except ValidationError as e:
        said = "\n".join(f"{where}: {_at(p['loc'])}: {reason(p)}" for p in problems(e) if _meant(p))
        raise InputError(
            "fleet.invalid",
            said,
            hint=f"keys of a pool: {', '.join(PoolTable.model_fields)}; beside the pools: routing, "
            "prefix_cache",
        ) from e


# What pydantic adds to a place where either a name or a table may stand.
_EITHER = {"str", HardwareTable.__name__, ModelTable.__name__}


def _meant(problem: ErrorDetails) -> bool:
    """Whether it is of what was written: of a table nobody need be told that it is no name."""
    if not problem["loc"] or problem["loc"][-1] not in _EITHER:
        return True
    return isinstance(problem["input"], Mapping) != (problem["loc"][-1] == "str")


def _at(loc: Sequence[int | str]) -> str:
    """`pool 2, weights`: where in the file; pools count from 1."""
    parts = [f"{p + 1}" if isinstance(p, int) else p for p in loc if p not in _EITHER]
    return " ".join(parts) or "fleet"


def build_fleet(described: FleetFile, context: int) -> Fleet:
    """The fleet that is described.

    Args:
        described: as read.
        context: tokens of the longest conversation, which every replica must have room for.

    Raises:
        InputError: unknown hardware or model, or a model that does not fit.
    """
    return Fleet(
        pools=tuple(_pool(table, context) for table in described.pool),
        routing=described.routing,
        prefix_cache=described.prefix_cache,
    )


def _pool(table: PoolTable, context: int) -> Pool:
    speculation = table.speculation and Speculation(**table.speculation.model_dump())
    server = Server(
        accelerator=_hardware(table.hardware),
        model=_model(table.model),
        parts=table.parts,
        weights=table.weights,
        kv=table.kv,
        context=context,
        speculation=speculation,
    )
    return Pool(server, _policy(table), table.replicas, table.part_hour_usd)


def _hardware(given: str | HardwareTable) -> Accelerator:
    return find_accelerator(given) if isinstance(given, str) else Accelerator(**given.model_dump())


def _model(given: str | ModelTable) -> Model:
    return find_model(given) if isinstance(given, str) else Model(**given.model_dump())


def _policy(table: PoolTable) -> Policy:
    max_batch, chunk = table.max_batch, table.chunk_tokens
    if max_batch is None:
        if table.policy == "static":
            raise InputError(
                "inference.policy",
                "policy static waits for a full batch, and nothing says how many that is",
                hint="give --max-batch, or max_batch in the pool",
            )
        max_batch = CONTINUOUS_BATCH if table.policy == "continuous" else 1
    if chunk is None and table.policy == "continuous":
        chunk = max(CHUNK_TOKENS, 2 * max_batch)
    return Policy(
        table.policy, max_batch, chunk_tokens=chunk or None, max_wait_ms=table.max_wait_ms
    )
