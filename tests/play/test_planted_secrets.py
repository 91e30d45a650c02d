"""Runs made with 37 secrets wherever a user or an agent may put one: none is stored or shown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import turngap_here

from turngap.core.results import Turn
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target
from turngap.report.console import turn_block
from turngap.report.json import run_json
from turngap.report.markdown import markdown
from turngap.report.run import run_report, summary_block, write_html
from turngap.scenario.library import library_dir, load_scenarios, scenario_paths
from turngap.store.runs import Run
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to

Capsys = pytest.CaptureFixture[str]


class Planted:
    """Makes secrets and remembers them."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def __call__(self, form: str = "{}") -> str:
        secret = form.format(f"Pl4nted{len(self.all):02d}qZ7wK1vB9")
        self.all.append(secret)
        return secret

    def found_in(self, text: str) -> list[str]:
        return [secret for secret in self.all if secret in text]


def everything_below(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode("utf-8", errors="replace") for path in files)


def stack_file(folder: Path, plant: Planted) -> Path:
    """A stack whose LLM server prints its arguments and environment, and ends."""
    server = folder / "leaky"
    server.write_text('#!/bin/sh\necho "ERROR: $* $SERVER_TOKEN $LEAKY_API_KEY"\nexit 3\n')
    server.chmod(0o755)
    file = folder / "leaky.toml"
    args = ["--api-key", plant(), f"--api-key={plant()}", "--hf-token", plant(), "--max-len", "64"]
    headers = {"Authorization": f"Bearer {plant()}", "X-Api-Key": plant(), "Cookie": plant()}
    nested = json.dumps({"client_secret": plant(), "inner": json.dumps({"password": plant()})})
    url = f"https://{plant()}:{plant()}@hub.example/a?token={plant()}&sig={plant()}"
    file.write_text(
        f"""
name = "leaky"
description = "talks to {url}"
[pipeline]
system_prompt = "Ask https://b.example/x?X-Amz-Signature={plant()}&X-Goog-Signature={plant()}"
[turn]
backend = "smart-turn"
[stt]
backend = "pocketsphinx"
[llm]
backend = "vllm"
model = "m"
command = "{server}"
log = "{folder / "vllm.log"}"
serve_args = {json.dumps(args)}
serve_env = {{ SERVER_TOKEN = "{plant()}" }}
extra_body = {{ headers = {{ {", ".join(f'{k} = "{v}"' for k, v in headers.items())} }}, \
text = {json.dumps(nested)}, access_token = "{plant()}" }}
[tts]
backend = "espeak"
""",
        encoding="utf-8",
    )
    return file


def test_a_stack_that_fails_keeps_its_secrets(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pocketsphinx")
    pytest.importorskip("espeakng_loader")
    plant = Planted()
    file = stack_file(tmp_path, plant)
    monkeypatch.setenv("LEAKY_API_KEY", plant())
    out = tmp_path / "runs"
    done = turngap_here(
        capsys, "replay", "quick-questions", "--agent", file, "--calibration", "0", "--out", out,
        "--set", f'llm.extra_body={{api_key = "{plant()}", more = {{Authorization = '
        f'"Bearer {plant()}"}}, hook = "https://h.example/?Policy={plant()}&Key-Pair-Id={plant()}'
        '", '
        f"words = 'B=1 LLM_API_KEY={plant()} --api-key={plant()}'}}",
        "--json",
    )  # fmt: skip
    assert done.code == 4, done.err
    assert "vLLM ended with status 3" in done.err
    stored = everything_below(out)
    assert '"max_len": 64' in stored or "--max-len" in stored
    assert len(plant.all) == 23
    for text in (stored, done.out, done.err):
        assert plant.found_in(text) == []


def test_an_agent_that_repeats_its_secrets_gives_none_away(tmp_path: Path) -> None:
    plant = Planted()
    forms: list[Callable[[], str]] = [
        lambda: f"error: password={plant()}",
        lambda: f"Bearer {plant()}",
        lambda: f"https://x.example/#access_token={plant()}",
        lambda: f'{{"api_key": "{plant()}"}}',
    ]
    in_url = {name: plant() for name in ("password", "token", "signature", "sig", "api_key")}
    url = f"ws://me:{plant()}@127.0.0.1:9/ws?{'&'.join(f'{k}={v}' for k, v in in_url.items())}"
    said = "; ".join(form() for form in forms)
    echo = f"max_tokens 200, first_token_ms 120; {said}; {' '.join(in_url.values())}"
    scenarios = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    target = Target(AgentChoice(url), library_dir(), None)
    settings = {"argv": ["--password", plant()], "key": "coffee", "url": f"wss://h/?jwt={plant()}"}
    run = RunInProgress(PlayPlan(scenarios=scenarios, out=tmp_path), target, "x", settings=settings)

    async def converse() -> None:
        clock = LoopClock()
        async with line_to(Script(replies=(Reply(speech_ms=40, text=echo),))) as line:
            await run.play_over(line, clock, scenarios[0], watch=clock)

    in_virtual_time(converse())
    noted, argument = plant(), plant()
    with_more = {
        "notes": {f"unknown message: password={noted}": 1},
        "calls": [{"name": "log_in", "arguments": {"password": argument}}],
    }
    run.turns[0] = Turn.model_validate(run.turns[0].model_dump() | with_more)
    done = run.finish(f"the agent closed the line: 1008 {echo}; {settings['argv']}")
    write_html(done)
    shown = [json.dumps(run_json(done)), repr(done), done._repr_html_(), str(done.rows())]
    shown += [str(turn_block(turn, 100)) for turn in done.turns]
    shown.append(str(summary_block(done, 100)))
    shown.append(markdown(run_report(done, with_turns=True)))
    again = Run.load(done.path)
    stored = everything_below(tmp_path)
    for text in (*shown, json.dumps(run_json(again)), stored):
        assert plant.found_in(text) == []
    assert "max_tokens 200, first_token_ms 120" in again.turns[0].reply
    assert again.record.settings["key"] == "coffee"
    assert len(plant.all) == 14
