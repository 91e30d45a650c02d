"""Runs made with 37 secrets wherever a user or an agent may put one: none is stored or shown."""

import json
from pathlib import Path

import pytest
from commandline import turngap_here

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
