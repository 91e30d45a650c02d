"""The steps of action.yml on a stock pipecat bot: made 80 ms slower, and the same bot again.

    .venv/bin/python benchmarks/action_gate.py [--only slower|same] [--slower-ms 80] [--keep FOLDER]

It makes a repository with the bot of examples/, two pull requests as GitHub would merge them, and
runs the action's two steps on each, with a GitHub of its own on loopback. The slower bot has to end
as `regressed` with exit code 1, the same one as `pass` with 0, and each has to leave one comment.
In real time: 4 minutes for the slower bot and 11 for the same one, and up to 2 more for each to
install. The machine has to be quiet.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

from fake_github import TOKEN, FakeGitHub, served  # noqa: E402 (found only now)

# Rounds before the first look: a regression shows after 10 conversations, a pass takes 86 pairs.
CASES = {"slower": ("regressed", 1, 5), "same": ("pass", 0, 15)}
INSTALL = f"pip install --quiet uv && uv pip install --quiet '{ROOT}[embedded]'"
LLM = 'engine("llm", "sim")'
SHORTER = {
    "It's ten past nine now.": "Ten past nine.",
    "It's sunny, about twenty degrees.": "Sunny, twenty.",
    "Yes, light rain tomorrow afternoon.": "Yes, rain.",
}


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=you", "-c", "user.email=you@example.invalid"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def commit(folder: Path, llm: str, about: str) -> None:
    bot = (ROOT / "examples/pipecat_bot.py").read_text(encoding="utf-8")
    if LLM not in bot:
        sys.exit(f"examples/pipecat_bot.py has no {LLM} any more")
    (folder / "examples").mkdir(exist_ok=True)
    (folder / "examples/bot.py").write_text(
        bot.replace(LLM, llm) + f"# {about}\n", encoding="utf-8"
    )
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", about)


def scenario_in(folder: Path) -> None:
    """Copy quick-questions with shorter replies, since every turn is played in real time."""
    shutil.copytree(ROOT / "scenarios/quick-questions", folder / "quick-questions")
    text = (ROOT / "scenarios/quick-questions.yaml").read_text(encoding="utf-8")
    for long, short in SHORTER.items():
        if long not in text:
            sys.exit(f"scenarios/quick-questions.yaml has no reply {long!r} any more")
        text = text.replace(long, short)
    (folder / "quick-questions.yaml").write_text(text, encoding="utf-8")


def origin_in(folder: Path, slower_ms: float) -> Path:
    """A repository whose branches `slower` and `same` are pull requests merged into main."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    scenario_in(folder / "scenarios")
    first = {"main": 150.0, "slower": 150.0 + slower_ms, "same": 150.0}
    for name, ms in first.items():
        if name != "main":
            git(folder, "checkout", "-q", "-b", f"{name}-head")
        commit(folder, f'engine("llm", "sim", ttft_ms={ms})', name)
        if name != "main":
            git(folder, "checkout", "-q", "-b", name, "main")
            git(folder, "merge", "-q", "--no-ff", "-m", "merge", f"{name}-head")
            git(folder, "checkout", "-q", "main")
    return folder


def step(name: str, environment: dict[str, str]) -> int:
    command = [sys.executable, str(ROOT / "tools/action.py"), name]
    return subprocess.run(command, env=environment, check=False).returncode


def job(
    case: str, rounds: int, options: str, *, origin: Path, folder: Path, github: FakeGitHub
) -> tuple[str, int]:
    """Both steps as GitHub runs them; the verdict and the job's exit code."""
    folder.mkdir()
    git(folder, "clone", "-q", "--depth=1", "-b", case, f"file://{origin}", "checkout")
    pull = {
        "number": 12,
        "base": {"sha": git(origin, "rev-parse", "main"), "ref": "main"},
        "head": {"sha": git(origin, "rev-parse", f"{case}-head")},
    }
    (folder / "event.json").write_text(json.dumps({"pull_request": pull}), encoding="utf-8")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "GATE_"))},
        "GITHUB_WORKSPACE": str(folder / "checkout"),
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_SHA": git(folder / "checkout", "rev-parse", "HEAD"),
        "GITHUB_REPOSITORY": "you/bot",
        "GITHUB_API_URL": github.url,
        "GITHUB_OUTPUT": str(folder / "output"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "RUNNER_TEMP": str(folder / "temp"),
        "GATE_INSTALL": INSTALL,
        "GATE_START": 'python examples/bot.py --marks --port "$PORT"',
        "GATE_ROUNDS": str(rounds),
        "GATE_NAME": case,
        "GATE_OPTIONS": options,
    }
    if code := step("measure", environment):
        return "failed", code
    written = (folder / "output").read_text(encoding="utf-8")
    out = dict(re.findall(r"^([\w-]+)<<(?:end-\w+)\n(.*)\nend-\w+$", written, re.MULTILINE))
    told = {"GATE_OUT": out["folder"], "GATE_TOKEN": TOKEN}
    return out["verdict"], step("tell", {**environment, **told})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--slower-ms", type=float, default=80.0)
    parser.add_argument("--rounds", type=int, help="instead of those that a verdict takes")
    parser.add_argument("--options", default="", help="for turngap check, as --starved-ms 60")
    parser.add_argument("--keep", type=Path, help="a new folder, which stays")
    arguments = parser.parse_args()
    failed: list[str] = []
    kept = arguments.keep and arguments.keep.resolve()
    if kept:
        kept.mkdir(parents=True)
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as made, served() as github:
        folder = Path(made)
        origin = origin_in(folder / "origin", arguments.slower_ms)
        for case, (verdict, code, rounds) in CASES.items():
            if arguments.only in (None, case):
                before = len(github.comments)
                given = {"origin": origin, "folder": folder / case, "github": github}
                found = job(case, arguments.rounds or rounds, arguments.options, **given)
                comments = github.comments[before:]
                print(f"\n{case}: {found[0]}, exit code {found[1]}, {len(comments)} comment")
                for comment in comments:
                    print(comment["body"])
                if found != (verdict, code) or len(comments) != 1:
                    failed.append(f"{case}: expected {verdict}, exit code {code} and one comment")
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
