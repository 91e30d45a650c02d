"""A fleet file, with what `--set` changes in it: what may be written, and what it means."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from turngap.backends import value_of
from turngap.core.errors import InputError, known_names
from turngap.core.problems import problems, reason
from turngap.fleet import THINK_MS, THINK_SIGMA
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


class TurnTable(_Strict):
    """A turn but for the LLM, where no run was measured, or on top of one: see `TurnSample`."""

    before_ms: float | None = None
    after_ms: float | None = None
    speech_ms: float | None = None
    reply_ms: float | None = None
    user_tokens: int | None = None
    reply_tokens: int | None = None
    opening_tokens: int | None = None


class CallTable(_Strict):
    """A call: see `Workload`. A measured run says how long its prompt and its calls are."""

    system_tokens: int | None = None
    turns: float | None = None
    think_ms: float = THINK_MS
    think_sigma: float = THINK_SIGMA


class FleetFile(_Strict):
    """A fleet and who calls it."""

    routing: Routing = "sticky"
    prefix_cache: bool = True
    pool: Annotated[tuple[PoolTable, ...], Field(min_length=1)] = (PoolTable(),)
    turn: TurnTable = TurnTable()
    call: CallTable = CallTable()


def _keys(model: type[BaseModel], within: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        tables = [t for t in _types(field.annotation) if issubclass(t, BaseModel)]
        if within or not tables:  # what is a table in a pool may be a name as well
            yield within + name
        for table in tables:
            yield from _keys(table, f"{within}{name}.")


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [t for part in get_args(annotation) for t in _types(part)]


# Every key that a fleet file may have, as `--set` names it.
KEYS = tuple(_keys(FleetFile))
_TFLOPS = "pool.hardware.tflops"


def read_fleet(path: Path | None, sets: Sequence[str] = ()) -> FleetFile:
    """Read a fleet from a TOML or YAML file, and change what `KEY=VALUE` assignments say.

    Without a file it is a fleet of defaults.

    Raises:
        InputError: the file cannot be read, or says what a fleet file may not say.
    """
    values: Any = {} if path is None else _parsed(path)
    if not isinstance(values, dict):
        raise InputError(
            "fleet.invalid", f"{path}: expected tables", hint="for example: [[pool]] in TOML"
        )
    for assignment in sets:
        _assign(values, assignment)
    where = "--set" if path is None else f"{path} with --set" if sets else str(path)
    try:
        return FleetFile.model_validate(values)
    except ValidationError as e:
        found = [problem for problem in problems(e) if _meant(problem)]
        unknown = [str(p["loc"][-1]) for p in found if p["type"] == "extra_forbidden"]
        raise InputError(
            "fleet.invalid",
            "\n".join(f"{where}: {_at(p['loc'])}: {reason(p)}" for p in found),
            hint=known_names(unknown[0] if unknown else "", KEYS),
        ) from e


def _parsed(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise InputError("fleet.unreadable", f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise InputError("fleet.unreadable", f"{path}: not a text file: {e}") from e
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as e:
            raise InputError("fleet.not_toml", f"{path}: not TOML: {e}") from e
    if path.suffix in (".yaml", ".yml"):
        try:
            return YAML(typ="safe", pure=True).load(text)
        except YAMLError as e:
            raise InputError("fleet.not_yaml", f"{path}: not YAML: {e}") from e
    raise InputError(
        "fleet.suffix", f"{path}: expected a .toml, .yaml or .yml file that describes a fleet"
    )


def _assign(values: dict[str, Any], assignment: str) -> None:
    """Change what `KEY=VALUE` says; a key of a pool changes all pools, `pool.2.KEY` the second."""
    name, equals, text = assignment.partition("=")
    path = name.strip().split(".")
    plain = ".".join(part for part in path if not part.isdigit())
    if not equals:
        raise InputError(
            "fleet.set", f"--set {assignment!r}: expected KEY=VALUE", hint="--set pool.weights=fp8"
        )
    if plain.rpartition(".")[0] != _TFLOPS and plain not in KEYS:
        raise InputError(
            "fleet.unknown_key", f"--set {name}: no such key", hint=known_names(plain, KEYS)
        )
    tables: Any = [values]
    if path[0] == "pool":
        tables = values.setdefault("pool", [{}])
        tables = tables if isinstance(tables, list) else []
        if path[1].isdigit():
            tables = tables[int(path[1]) - 1 : int(path[1])]
            if not tables:
                raise InputError("fleet.no_pool", f"--set {name}: there is no such pool")
        path = [part for part in path[1:] if not part.isdigit()]
    for table in tables:
        if not isinstance(table, dict):
            continue  # refused below, with its place in the file
        inner = table
        for key in path[:-1]:
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[path[-1]] = value_of(text)


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
                hint="give the pool max_batch, or --set pool.max_batch=8",
            )
        max_batch = CONTINUOUS_BATCH if table.policy == "continuous" else 1
    if chunk is None and table.policy == "continuous":
        chunk = max(CHUNK_TOKENS, 2 * max_batch)
    return Policy(
        table.policy, max_batch, chunk_tokens=chunk or None, max_wait_ms=table.max_wait_ms
    )
