"""A fleet file, with the changes of `--set`: its allowed keys, and their meaning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from turngap.backends import value_of
from turngap.core.clock import LONGEST_MS
from turngap.core.errors import InputError, known_names
from turngap.core.untrusted import UNKNOWN_KEY, problems, reason
from turngap.fleet import THINK_MS, THINK_SIGMA
from turngap.fleet.fleet import Fleet, Pool, Routing
from turngap.inference.engine import Policy, PolicyName
from turngap.inference.server import (
    Accelerator,
    Model,
    Precision,
    Server,
    Speculation,
    find_accelerator,
    find_model,
)
from turngap.store.files import read_text, read_toml
from turngap.store.loads import AgentCpu
from turngap.store.yaml import load_yaml

# vLLM's defaults: max_num_seqs 256; and 2048 tokens a step, which its tuning guide gives for low
# latency between tokens.
CONTINUOUS_BATCH = 256
CHUNK_TOKENS = 2048


Ms = Annotated[float, Field(le=LONGEST_MS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PoolTable(_Strict):
    """Equal replicas.

    `max_batch` is by default 256 for `continuous` and 1 for `immediate`; `static` requires it.
    `chunk_tokens` is 2048 for `continuous`; 0 computes a prompt in one step.
    """

    hardware: str | Accelerator = "h100"
    parts: int = 1
    replicas: int = 1
    model: str | Model = "llama-3.1-8b"
    weights: Precision = "bf16"
    kv: Precision = "bf16"
    policy: PolicyName = "continuous"
    max_batch: int | None = None
    chunk_tokens: Annotated[int, Field(ge=0)] | None = None
    max_wait_ms: Ms | None = None
    speculation: Speculation | None = None
    part_hour_usd: float | None = None


class TurnTable(_Strict):
    """A turn without its LLM: used without a measured run, or to change one; see `TurnSample`."""

    before_ms: Ms | None = None
    after_ms: Ms | None = None
    speech_ms: Ms | None = None
    reply_ms: Ms | None = None
    user_tokens: int | None = None
    reply_tokens: int | None = None
    opening_tokens: int | None = None


class CallTable(_Strict):
    """A call: see `Workload`. A measured run gives the lengths of its prompt and its calls."""

    system_tokens: int | None = None
    turns: float | None = None
    think_ms: Ms = THINK_MS
    think_sigma: float = THINK_SIGMA


class FleetFile(_Strict):
    """A fleet and its callers."""

    routing: Routing = "sticky"
    prefix_cache: bool = True
    pool: Annotated[tuple[PoolTable, ...], Field(min_length=1)] = (PoolTable(),)
    turn: TurnTable = TurnTable()
    call: CallTable = CallTable()
    agent: AgentCpu | None = None


def _keys(table: Any, within: str = "") -> Iterator[str]:
    if is_dataclass(table):
        annotations = [(field.name, field.type) for field in fields(table)]
    else:
        annotations = [(name, field.annotation) for name, field in table.model_fields.items()]
    for name, annotation in annotations:
        tables = [t for t in _types(annotation) if issubclass(t, BaseModel) or is_dataclass(t)]
        if within or not tables:  # what is a table in a pool may be a name as well
            yield within + name
        for inner in tables:
            yield from _keys(inner, f"{within}{name}.")


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [t for part in get_args(annotation) for t in _types(part)]


# Every key that a fleet file may have, as `--set` names it.
KEYS = tuple(_keys(FleetFile))
_TFLOPS = "pool.hardware.tflops"


def read_fleet(path: Path | None, sets: Sequence[str] = ()) -> FleetFile:
    """Read a fleet from a TOML or YAML file, and apply `KEY=VALUE` assignments.

    Without a file it is a fleet of defaults.

    Raises:
        InputError: the file cannot be read, or has keys or values that are not allowed.
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
        unknown = [str(p["loc"][-1]) for p in found if reason(p) == UNKNOWN_KEY]
        raise InputError(
            "fleet.invalid",
            "\n".join(f"{where}: {_at(p['loc'])}: {reason(p)}" for p in found),
            hint=known_names(unknown[0] if unknown else "", KEYS),
        ) from e


def _parsed(path: Path) -> Any:
    if path.suffix == ".toml":
        return read_toml(path, "fleet")
    if path.suffix in (".yaml", ".yml"):
        return load_yaml(read_text(path, "fleet"), path, "fleet", kind="safe")
    raise InputError(
        "fleet.suffix", f"{path}: expected a .toml, .yaml or .yml file that describes a fleet"
    )


def _assign(values: dict[str, Any], assignment: str) -> None:
    """Apply `KEY=VALUE`; a key of a pool changes all pools, `pool.2.KEY` the second."""
    name, equals, text = assignment.partition("=")
    path = name.strip().split(".")
    numbered = len(path) > 1 and path[0] == "pool" and path[1].isdigit()
    plain = ".".join(path[:1] + path[2:] if numbered else path)
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
        if numbered:
            tables = tables[int(path[1]) - 1 : int(path[1])]
            if not tables:
                raise InputError("fleet.no_pool", f"--set {name}: there is no such pool")
        path = path[2:] if numbered else path[1:]
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
_EITHER = {"str", Accelerator.__name__, Model.__name__}


def _meant(problem: ErrorDetails) -> bool:
    """Return whether the problem is in the type that was written, not in the other allowed type."""
    if not problem["loc"] or problem["loc"][-1] not in _EITHER:
        return True
    return isinstance(problem["input"], Mapping) != (problem["loc"][-1] == "str")


def _at(loc: Sequence[int | str]) -> str:
    """Format a place in the file: `pool 2, weights`; pools count from 1."""
    parts = [f"{p + 1}" if isinstance(p, int) else p for p in loc if p not in _EITHER]
    return " ".join(parts) or "fleet"


def build_fleet(described: FleetFile, context: int) -> Fleet:
    """Build the fleet that the file describes.

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
    hardware, model = table.hardware, table.model
    server = Server(
        accelerator=find_accelerator(hardware) if isinstance(hardware, str) else hardware,
        model=find_model(model) if isinstance(model, str) else model,
        parts=table.parts,
        weights=table.weights,
        kv=table.kv,
        context=context,
        speculation=table.speculation,
    )
    return Pool(server, _policy(table), table.replicas, table.part_hour_usd)


def _policy(table: PoolTable) -> Policy:
    max_batch, chunk = table.max_batch, table.chunk_tokens
    if max_batch is None:
        if table.policy == "static":
            raise InputError(
                "inference.policy",
                "policy static waits for a full batch, whose size is not given",
                hint="give the pool max_batch, or --set pool.max_batch=8",
            )
        max_batch = CONTINUOUS_BATCH if table.policy == "continuous" else 1
    if chunk is None and table.policy == "continuous":
        chunk = max(CHUNK_TOKENS, 2 * max_batch)
    return Policy(
        table.policy, max_batch, chunk_tokens=chunk or None, max_wait_ms=table.max_wait_ms
    )
