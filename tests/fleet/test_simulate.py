"""`turngap simulate` as its user runs it, and what it leaves behind."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, turngap_here
from html_page import Page
from made_records import make_record, make_turn

from turngap.core.errors import ExitCode, InputError
from turngap.fleet.report import read_simulation, render, simulation_report
from turngap.report import terminal
from turngap.store.loads import SIMULATION_FILE, AgentCpu, SimulationRecord
from turngap.store.writer import RunWriter


def sets(*assignments: str) -> tuple[str, ...]:
    return tuple(argument for each in assignments for argument in ("--set", each))


A_TURN = {
    "before_ms": 300, "after_ms": 40, "speech_ms": 1500, "reply_ms": 2000,
    "user_tokens": 10, "reply_tokens": 30, "opening_tokens": 6,
}  # fmt: skip
TURN = sets(*(f"turn.{key}={value}" for key, value in A_TURN.items()))
CALL = sets("call.system_tokens=300", "call.turns=5")
QUICK = (*TURN, *CALL, *sets("pool.weights=fp8"), "--minutes", "0.5")


def spoken_turn(turn: int, *, tokens: int = 12) -> Any:
    """A made turn with what an agent that streams its text would have reported."""
    made = make_turn(turn=turn)
    marks = {mark.name: mark.at_ns for mark in made.marks}
    first = marks["llm_first_token"]
    events = [
        {"event": "AgentText", "at_ns": first + n * 4_000_000, "text": f" {n}"}
        for n in range(tokens)
    ]
    silence = {"event": "AgentSilence", "at_ns": marks["agent_onset"] + 1_800_000_000}
    return made.model_copy(update={"events": (*events, silence)})


def stored_run(out: Path, turns: int = 8, **agent: Any) -> Path:
    record = make_record(planned_turns=turns)
    record = record.model_copy(update={"agent": record.agent | agent})
    with RunWriter.create(out, "replay", record) as writer:
        for number in range(1, turns + 1):
            writer.append_turn(spoken_turn(number))
        writer.finish(record)
        return writer.path


def test_no_more_calls_are_held_than_the_agents_machine_carries(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = sets("agent.cores=2", "agent.cores_per_call=0.16")
    done = turngap_here(capsys, "simulate", *QUICK, *small, "--out", tmp_path / "small")
    told = " ".join(done.out.split())
    assert "at most 12 calls at once, because more take all of the agent's cores" in told
    assert "2 cores carry at most 12.5 calls of 0.16 cores each: a bound" in told
    (folder,) = (tmp_path / "small").iterdir()
    record = read_simulation(folder)
    assert record.agent == AgentCpu(2, 0.16)
    assert record.capacity is not None
    assert (record.capacity.held, record.capacity.not_held) == (12, 13)
    of_llm = record.capacity.of_llm
    assert of_llm is not None
    assert {load.holds for load in record.loads if 12.5 < load.calls <= of_llm} == {False}
    assert f"the LLM's servers would hold {of_llm:,.0f}" in told
    # Of a machine that carries more than the servers do, nothing changes.
    large = sets("agent.cores=64", "agent.cores_per_call=0.001")
    document = turngap_here(
        capsys, "simulate", *QUICK, *large, "--json", "--out", tmp_path / "large"
    ).document()
    assert document["capacity"]["held"] == of_llm
    assert document["capacity"]["of_llm"] is None


def test_a_load_beyond_the_agents_cores_is_not_held(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = turngap_here(
        capsys, "simulate", *QUICK, *sets("agent.cores=1", "agent.cores_per_call=0.25"),
        "--calls", "4,5", "--min-hit-rate", "0.5", "--out", tmp_path,
    )  # fmt: skip
    assert done.code == ExitCode.OVER_BUDGET
    assert "held at 4; not held at 5 calls at once" in " ".join(done.out.split())


def test_loads_are_simulated_shown_and_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = turngap_here(
        capsys,
        "simulate",
        *QUICK,
        *sets("pool.part_hour_usd=3"),
        "--calls",
        "5,50",
        "--out",
        tmp_path,
    )
    assert done.code == 0
    assert "simulated: nothing here was measured" in done.out
    assert "95 % of turns within 800 ms: held at 5, 50 calls at once" in done.out
    assert "replies of 30, spoken from token 6 on" in " ".join(done.out.split())
    assert "h100: llama-3.1-8b fp8" in done.out
    (folder,) = tmp_path.iterdir()
    assert {f.name for f in folder.iterdir()} == {SIMULATION_FILE, "simulation.html"}
    record = read_simulation(folder)
    assert [load.calls for load in record.loads] == [5, 50]
    assert record.capacity is None
    assert all(load.usd_per_1000 for load in record.loads)
    again = turngap_here(capsys, "report", folder)
    assert again.code == 0
    assert again.out == done.out


def test_json_is_one_document_and_the_same_seed_the_same_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("simulate", *QUICK, "--calls", "20", "--json", "--out", tmp_path)
    first = turngap_here(capsys, *arguments).document()
    second = turngap_here(capsys, *arguments).document()
    other = turngap_here(capsys, *arguments, "--seed", "2").document()
    assert first["loads"] == second["loads"] != other["loads"]
    (load,) = first["loads"]
    assert load["hit_rate"]["low"] <= load["hit_rate"]["value"] <= load["hit_rate"]["high"]
    assert load["usd_per_1000"] is None
    assert load["why_no_usd"] == "no accelerator's price is given"
    assert load["part_hours_per_1000"] == pytest.approx(
        load["seconds"] / 3600 * 1000 / load["turns"]
    )
    assert first["path"].startswith(str(tmp_path))
    shown = turngap_here(capsys, "report", first["path"], "--json").document()
    assert shown == first


def test_a_measured_run_gives_everything_but_the_llm(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = stored_run(tmp_path / "runs", pipeline={"system_prompt": "Be brief and kind."})
    done = turngap_here(
        capsys, "simulate", "--from", run, "--calls", "5", "--minutes", "1",
        *sets("pool.weights=fp8"), "--json", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0
    document = done.document()
    work = document["workload"]
    assert work["runs"] == [run.name]
    assert (work["samples"], work["left_out"]) == (8, {})
    # Up to the request 233.1 ms of the made turn's 398.25, and 36.65 after the TTS was asked.
    assert work["mean"]["before_ms"] == pytest.approx(233.1)
    assert work["mean"]["after_ms"] == pytest.approx(36.65)
    assert work["mean"]["speech_ms"] == 500
    assert work["mean"]["reply_ms"] == pytest.approx(1800)
    assert work["mean"]["reply_tokens"] == 12
    assert work["mean"]["opening_tokens"] == 3
    assert work["turns_per_call"] == 8
    assert work["system_tokens"] == 8  # four words of two tokens each
    (load,) = document["loads"]
    gap, llm = load["gap_ms"]["p50"]["value"], load["llm_ms"]["p50"]["value"]
    assert gap - llm == pytest.approx(233.1 + 36.65, abs=0.1)


def test_settings_replace_what_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = stored_run(tmp_path / "runs")
    done = turngap_here(
        capsys, "simulate", "--from", run, *CALL,
        *sets("turn.before_ms=100", "turn.reply_tokens=2"),
        "--calls", "5", "--minutes", "1", "--json", "--out", tmp_path / "out",
    )  # fmt: skip
    mean = done.document()["workload"]["mean"]
    assert mean["before_ms"] == 100
    assert mean["reply_tokens"] == mean["opening_tokens"] == 2
    assert mean["after_ms"] == pytest.approx(36.65)


def test_the_search_names_what_is_held(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = turngap_here(
        capsys, "simulate", *QUICK, *sets("pool.policy=immediate"), "--json", "--out", tmp_path
    )
    document = done.document()
    held, not_held = document["capacity"]["held"], document["capacity"]["not_held"]
    assert 1 <= held < not_held <= max(held + 1, held * 1.021)
    by_calls = {load["calls"]: load for load in document["loads"]}
    assert by_calls[held]["holds"] is True
    assert by_calls[not_held]["holds"] is not True


@pytest.mark.parametrize(
    ("calls", "rate", "code"), [("5", "0.95", 0), ("100000", "0.95", 1), ("5", "0.9999", 3)]
)
def test_a_hit_rate_can_gate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, calls: str, rate: str, code: int
) -> None:
    done = turngap_here(
        capsys, "simulate", *QUICK[:-1], "0.1", "--minutes", "0.2", *sets("pool.policy=immediate"),
        "--calls", calls, "--min-hit-rate", rate, "--out", tmp_path,
    )  # fmt: skip
    assert done.code == code
    words = {0: f"held at {calls} calls", 1: "not held at", 3: "not sure at"}[code]
    assert words in done.out


FLEET = """
routing = "least-busy"
prefix_cache = false

[[pool]]
hardware = "h100"
parts = 2
replicas = 3
model = "llama-3.3-70b"
weights = "fp8"
kv = "fp8"
max_batch = 64
part_hour_usd = 2.5
speculation = { acceptance = 0.7, draft_tokens = 3 }

[[pool]]
hardware = { name = "mine", memory_gb = 24, bandwidth_gb_s = 1000, tflops = { bf16 = 150 } }
model = { name = "small", params_b = 3, layers = 28, heads = 24, kv_heads = 8, head_dim = 128 }
policy = "static"
max_batch = 8
max_wait_ms = 30
"""


def test_a_fleet_can_be_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    done = turngap_here(
        capsys, "simulate", *TURN, *CALL, "--minutes", "0.2", "--calls", "5", file,
        "--json", "--out", tmp_path / "out",
    )  # fmt: skip
    document = done.document()
    assert (document["routing"], document["prefix_cache"]) == ("least-busy", False)
    first, second = document["pools"]
    assert (first["parts"], first["replicas"], first["chunk_tokens"]) == (2, 3, 2048)
    assert first["speculation"]["acceptance"] == 0.7
    assert (second["hardware"], second["model"], second["policy"]) == ("mine", "small", "static")
    assert (second["max_wait_ms"], second["chunk_tokens"]) == (30, None)
    # One pool without a price makes the fleet's price unknown.
    assert document["loads"][0]["usd_per_1000"] is None
    yaml = tmp_path / "fleet.yaml"
    yaml.write_text("pool:\n  - {hardware: wafer, model: 20b, weights: fp16}\n")
    done = turngap_here(
        capsys, "simulate", *TURN, *CALL, "--minutes", "0.2", "--calls", "5", yaml,
        "--json", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.document()["pools"][0]["hardware"] == "wafer"


def test_set_changes_one_pool_of_a_file_or_all(tmp_path: Path) -> None:
    from turngap.fleet.files import read_fleet

    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    changed = read_fleet(
        file, ["pool.kv=int8", "pool.2.max_batch=9", "pool.1.speculation.draft_tokens=5",
               "pool.2.hardware.tflops.fp8=300", "prefix_cache=true"]
    )  # fmt: skip
    first, second = changed.pool
    assert (first.kv, second.kv, first.max_batch, second.max_batch) == ("int8", "int8", 64, 9)
    assert first.speculation is not None
    assert (first.speculation.acceptance, first.speculation.draft_tokens) == (0.7, 5)
    assert not isinstance(second.hardware, str)
    assert second.hardware.tflops == {"bf16": 150, "fp8": 300}
    assert (changed.routing, changed.prefix_cache) == ("least-busy", True)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("pool.wieghts", "pool.weights"),
        ("weights", "pool.weights"),
        ("before_ms", "turn.before_ms"),
        ("prefix-cache", "prefix_cache"),
    ],
)
def test_an_unknown_key_names_the_nearest_that_is_known(wrong: str, meant: str) -> None:
    from turngap.fleet.files import read_fleet

    with pytest.raises(InputError) as e:
        read_fleet(None, [f"{wrong}=1"])
    assert f"did you mean {meant}?" in e.value.hint


def test_the_example_has_every_key_of_a_fleet_file_with_its_default(tmp_path: Path) -> None:
    from turngap.fleet.files import KEYS, FleetFile, read_fleet

    example = ROOT / "examples" / "fleet.toml"
    assert read_fleet(example) == FleetFile()
    text = example.read_text(encoding="utf-8")
    named = set(re.findall(r"(\w+) = ", text))
    assert {key.rpartition(".")[2] for key in KEYS} <= named
    alternatives = [line[2:] for line in text.splitlines() if re.match(r"# \w+ = ", line)]
    for line in alternatives:
        name, tables = line.split()[0], {"call": "[call]", "turn": "[turn]", "pool": "[[pool]]"}
        header = next((head for t, head in tables.items() if f"{t}.{name}" in KEYS), "")
        changed = tmp_path / "changed.toml"
        changed.write_text(f"{header}\n{line}\n", encoding="utf-8")
        read_fleet(changed)


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ((), "simulate.no_source", "give --from RUN, or set turn.before_ms, turn.after_ms"),
        (sets("turn.before_ms=300"), "simulate.no_source", "or set turn.after_ms"),
        (TURN, "simulate.no_source", "call.system_tokens"),
        ((*TURN, *sets("call.system_tokens=9")), "simulate.no_source", "call.turns"),
        (("--from", "no-such-run"), "run.unknown", "no-such-run"),
        ((*QUICK, "--calls", "many"), "simulate.calls", "expected N1,N2"),
        ((*QUICK, "--calls", "5,0"), "simulate.calls", "expected N1,N2"),
        ((*QUICK, "--calls", "nan"), "simulate.calls", "expected N1,N2"),
        ((*QUICK, "--min-hit-rate", "0.9"), "simulate.no_load", "applies to a load"),
        ((*QUICK, *sets("pool.hardware=h300")), "inference.hardware", "no accelerator 'h300'"),
        ((*QUICK, *sets("pool.model=llama-9")), "inference.model", "no model 'llama-9'"),
        ((*QUICK, *sets("pool.weights=fp7")), "fleet.invalid", "pool 1 weights"),
        ((*QUICK, *sets("pool.kv=x")), "fleet.invalid", "pool 1 kv"),
        ((*QUICK, *sets("pool.policy=eager")), "fleet.invalid", "pool 1 policy"),
        ((*QUICK, *sets("pool.policy=static")), "inference.policy", "size is not given"),
        ((*QUICK, *sets("pool.max_batch=0")), "inference.policy", "max_batch is 0"),
        ((*QUICK, *sets("pool.chunk_tokens=-5")), "fleet.invalid", "chunk_tokens"),
        ((*QUICK, *sets("pool.chunk_tokens=100")), "inference.policy", "chunk_tokens is 100"),
        ((*QUICK, *sets("pool.max_wait_ms=5")), "inference.policy", "only `static` waits"),
        ((*QUICK, *sets("pool.parts=0")), "inference.parts", "0 accelerators"),
        ((*QUICK, *sets("pool.replicas=0")), "simulate.replicas", "0 replicas"),
        ((*QUICK, *sets("pool.speculation.draft_tokens=3")), "fleet.invalid", "acceptance"),
        ((*QUICK, *sets("pool.speculation.acceptance=1.5")), "inference.speculation", "is 1.5"),
        ((*QUICK, *sets("routing=random")), "fleet.invalid", "routing"),
        ((*QUICK, *sets("pool.part_hour_usd=-1")), "simulate.price", "-1.0 USD"),
        ((*QUICK, *sets("turn.opening_tokens=31")), "simulate.workload", "opening_tokens is 31"),
        ((*QUICK, *sets("turn.speech_ms=0")), "simulate.workload", "speech_ms"),
        ((*QUICK, *sets("call.turns=0.5")), "simulate.workload", "turns is 0.5"),
        ((*QUICK, *sets("call.system_tokens=0")), "simulate.workload", "system_tokens is 0"),
        ((*QUICK, *sets("call.think_sigma=4")), "simulate.workload", "think_sigma is 4"),
        ((*QUICK, *sets("agent.cores=2")), "fleet.invalid", "agent cores_per_call: missing"),
        ((*QUICK, *sets("agent.cores=0", "agent.cores_per_call=1")), "fleet.invalid", "cores"),
        ((*QUICK, *sets("agent.cores=1e300", "agent.cores_per_call=1")), "fleet.invalid", "agent"),
        ((*QUICK, *sets("pool.weights")), "fleet.set", "expected KEY=VALUE"),
        ((*QUICK, *sets("pool.wieghts=fp8")), "fleet.unknown_key", "pool.wieghts: no such key"),
        ((*QUICK, *sets("pool.2.weights=fp8")), "fleet.no_pool", "no such pool"),
        (
            (*QUICK, *sets("pool.hardware=wafer", "pool.model=70b", "pool.weights=fp16")),
            "inference.no_fit",
            "dense-70b at fp16 does not fit",
        ),
        ((*TURN, *CALL, "no.toml"), "fleet.unreadable", "no.toml"),
        ((*TURN, *CALL, "fleet.json"), "fleet.suffix", ".toml, .yaml"),
        ((*TURN, *CALL, "bad.toml"), "fleet.not_toml", "not TOML"),
        ((*TURN, *CALL, "bad.yaml"), "fleet.not_yaml", "not YAML"),
        ((*TURN, *CALL, "list.yaml"), "fleet.invalid", "expected tables"),
        ((*TURN, *CALL, "keys.toml"), "fleet.invalid", "pool 2 gpus: unknown key"),
        ((*TURN, *CALL, "empty.toml"), "fleet.invalid", "pool"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_nothing_is_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, *, arguments: Any, kind: str, says: str
) -> None:
    files = {
        "fleet.json": "{}",
        "bad.toml": "pool = [",
        "bad.yaml": "pool: [",
        "list.yaml": "- 1\n",
        "keys.toml": "[[pool]]\n[[pool]]\ngpus = 2\n",
        "empty.toml": "pool = []\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with contextlib.chdir(tmp_path):
        done = turngap_here(capsys, "simulate", *arguments, "--json", "--out", tmp_path / "out")
    problem = done.document()["error"]
    assert (done.code, problem["kind"]) == (2, kind)
    assert says in problem["message"]
    assert not (tmp_path / "out").exists()


def test_a_run_without_usable_turns_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = make_record(planned_turns=6)
    with RunWriter.create(tmp_path / "runs", "replay", record) as writer:
        for number in range(1, 7):
            writer.append_turn(make_turn(turn=number))
        writer.finish(record)
    done = turngap_here(capsys, "simulate", "--from", writer.path, "--out", tmp_path / "out")
    assert done.code == 3
    assert "0 of 6 turns can be drawn from" in done.err
    assert "6 × the agent did not report its reply's text token by token" in " ".join(
        done.err.split()
    )


def test_a_run_that_never_ended_is_warned_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = make_record(planned_turns=600, finished_utc=None)
    with RunWriter.create(tmp_path / "runs", "replay", record) as writer:
        writer.append_turn(make_turn())
    done = turngap_here(capsys, "simulate", "--from", writer.path, "--out", tmp_path / "out")
    assert "unfinished: 1 of 600 planned turns were played" in done.err


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> SimulationRecord:
    """A search with loads that are held, not held, and with turns that were never answered."""
    from turngap.fleet.files import FleetFile, build_fleet
    from turngap.fleet.run import SimulationPlan, run_simulation, source_of, workload_of

    described = FleetFile.model_validate(
        {
            "pool": [{"weights": "fp8", "policy": "immediate"}],
            "turn": A_TURN,
            "call": {"system_tokens": 300, "turns": 5},
        }
    )
    source = source_of((), described.turn)
    work = workload_of(source, described.call)
    plan = SimulationPlan(
        fleet=build_fleet(described, work.longest_tokens),
        workload=work,
        source=source,
        seconds=40,
        out=tmp_path_factory.mktemp("out"),
    )
    return run_simulation(plan)[0]


def test_what_a_record_names_is_text_in_the_page(searched: SimulationRecord) -> None:
    evil = "<script>alert(1)</script>"
    work = searched.workload.model_copy(update={"runs": (evil,)})
    pool = searched.pools[0].model_copy(update={"model": evil})
    page = Page(render(searched.model_copy(update={"workload": work, "pools": (pool,)})))
    page.assert_safe()
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_the_terminal(searched: SimulationRecord, width: int) -> None:
    lines = terminal.block(simulation_report(searched), width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)
    header = next(line for line in lines if line.lstrip().startswith("calls "))
    assert "95 % interval" in header
    assert ("part-h" in header) is (width >= 120)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"{", "document.damaged"),
        (b"[]", "document.damaged"),
        (b'{"schema_version": 99}', "document.version"),
        (b'{"schema_version": 1}', "document.damaged"),
    ],
)
def test_a_damaged_simulation_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, kind: str
) -> None:
    (tmp_path / SIMULATION_FILE).write_bytes(content)
    done = turngap_here(capsys, "report", tmp_path, "--json")
    assert (done.code, done.document()["error"]["kind"]) == (2, kind)


def test_the_record_is_plain_json(searched: SimulationRecord) -> None:
    text = searched.model_dump_json()
    assert SimulationRecord.model_validate_json(text) == searched
    assert "NaN" not in text
    json.loads(text)


def test_a_sweep_in_several_processes_has_the_figures_of_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records = []
    for workers in ("1", "2"):
        out = tmp_path / workers
        done = turngap_here(
            capsys, "simulate", *QUICK, "--calls", "50,5,20", "--workers", workers, "--out", out
        )
        assert done.code == 0
        (folder,) = out.iterdir()
        records.append(json.loads((folder / SIMULATION_FILE).read_text()))
    alone, shared = records
    assert [load["calls"] for load in shared["loads"]] == [5, 20, 50]
    assert (shared["loads"], shared["virtual_s"]) == (alone["loads"], alone["virtual_s"])


def test_a_sweep_in_another_process_refuses_as_this_one_does() -> None:
    from turngap.fleet.files import build_fleet, read_fleet
    from turngap.fleet.run import SimulationPlan, source_of, sweep, workload_of
    from turngap.workers.local import LocalWorkers

    described = read_fleet(None, [each for each in (*QUICK, *CALL) if "=" in each])
    source = source_of([], described.turn)
    work = workload_of(source, described.call)
    too_long = replace(work, system_tokens=1_000_000)
    task = SimulationPlan(build_fleet(described, work.longest_tokens), too_long, source).task(5)
    for simulated in (
        lambda: task.evaluate(lambda _: None),
        lambda: sweep([task], LocalWorkers(1), lambda _: None),
    ):
        with pytest.raises(InputError, match="the longest call comes to") as refused:
            simulated()
        assert (refused.value.kind, refused.value.hint[:7]) == ("simulate.context", "shorter")


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--workers", "2"), "simulate.no_load"),
        (("--on", "ray"), "simulate.no_load"),
        (("--calls", "5", "--on", "rya"), "workers.unknown"),
        (("--calls", "5", "--ray-address", "head:6379"), "workers.address"),
        (("--calls", "5", "--on", "ray", "--ray-address", "ray://head:1"), "workers.address"),
    ],
)
def test_workers_that_cannot_be_are_refused(
    arguments: tuple[str, ...], kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = turngap_here(capsys, "simulate", *QUICK, *arguments, "--json", "--out", tmp_path / "out")
    assert (done.code, done.document()["error"]["kind"]) == (2, kind)
    assert not (tmp_path / "out").exists()
