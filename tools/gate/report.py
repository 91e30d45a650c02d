"""Report the measurement: the summary, one comment on the pull request, and the exit code."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gate.github import CommentError, PullRequest
from gate.inputs import AGENT_FAILED, INCONCLUSIVE, GateError, Telling
from gate.measure import STATE_FILE, State
from gate.runner import Environment, annotate, event_of

# What an exit code means where the check's own words are missing.
OUTCOMES = {
    0: ("notice", "the gate passes"),
    1: ("error", "slower, more cut-ins, or over a budget"),
    2: ("error", "wrong input"),
    3: ("error", "neither a regression nor its absence could be shown"),
}
FAILED = ("error", "a version could not be installed, started or measured")
# Longer summaries than 1 MiB are refused by GitHub.
MOST_SUMMARY_BYTES = 1_000_000
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~<>&@!])")


def tell(environment: Environment) -> int:
    """Write summary and comment; the exit code that the job is to end with."""
    try:
        telling, wrong = Telling.of(environment), 0
    except GateError as e:
        annotate("error", "turngap: wrong input", str(e))
        telling, wrong = Telling(comments=False), e.exit_code
    out = environment.get("GATE_OUT", "").strip()
    folder = Path(out) if out else None
    state = state_in(folder)
    text = text_of(state, folder, environment)
    _summarise(environment, text)
    if telling.comments:
        _comment(environment, text)
    kind, meaning = OUTCOMES.get(state.exit_code, FAILED)
    if state.exit_code == INCONCLUSIVE and telling.lenient:
        kind = "warning"
    annotate(kind, f"turngap: {state.verdict.replace('_', ' ')}", _in_short(text) or meaning)
    return wrong or (0 if kind != "error" else state.exit_code)


def state_in(folder: Path | None) -> State:
    """Read what `measure` left; a failure if it left nothing that is well-formed.

    A file of that name in the checkout is not ours.
    """
    failed = State("failed", AGENT_FAILED, why="The step that measures left nothing.")
    if folder is None:
        return failed
    try:
        state = State(**json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
        texts = (state.verdict, state.check, state.head, state.base, state.base_name, state.why)
        is_well_formed = type(state.exit_code) is int and all(type(t) is str for t in texts)
    except (OSError, ValueError, TypeError):
        return failed
    if not is_well_formed or not re.fullmatch(r"(?!\.)[\w.-]*", state.check, re.ASCII):
        return failed
    if state.exit_code == 0 and state.verdict != "pass":
        return replace(state, exit_code=INCONCLUSIVE)
    return state


def text_of(state: State, folder: Path | None, environment: Environment) -> str:
    """Return the check's summary, followed by the compared versions and links to its pages."""
    try:
        if folder is None or not state.check:
            raise FileNotFoundError
        written = (folder / state.check / "summary.md").read_text(encoding="utf-8")
    except (OSError, ValueError):
        why = escaped(state.why or "turngap check left no summary.")
        written = f"## turngap: {escaped(state.verdict.upper())}\n\n{why}\n"
    head, _, rest = written.partition("\n")
    told = [compared_words(state, environment), *_pages_words(environment)]
    return f"{head}\n\n{' '.join(told)}\n{rest}"


def compared_words(state: State, environment: Environment) -> str:
    """Say which versions were measured; on a pull request GitHub makes a link of a commit."""
    new = _new_words(state, environment)
    name = "" if environment.get("GATE_NAME", "turngap") == "turngap" else environment["GATE_NAME"]
    start = f"**{escaped(name)}**: " if name else ""
    if state.base:
        return f"{start}{new} against {escaped(state.base_name)} ({_commit(state.base)})."
    if state.base_name:
        return f"{start}{new} against the baseline {escaped(state.base_name)}."
    return f"{start}{new.rstrip(',')}."


def _new_words(state: State, environment: Environment) -> str:
    """Name the version at hand; on a pull request GitHub merged it into its base."""
    pull = event_of(environment).get("pull_request")
    merged = state.head and state.head == environment.get("GITHUB_SHA")
    if isinstance(pull, dict) and merged and (head := str(pull.get("head", {}).get("sha", ""))):
        into = escaped(str(pull.get("base", {}).get("ref", ""))) or "its base"
        return f"Commit {_commit(head)}, merged into {into},"
    return f"Commit {_commit(state.head)}" if state.head else "This version"


def _commit(commit: str) -> str:
    return commit[:12] if re.fullmatch(r"[0-9a-f]{7,64}", commit) else "unknown"


def _pages_words(environment: Environment) -> list[str]:
    """Say where the uploaded pages are; empty if nothing was uploaded."""
    url = environment.get("GATE_PAGES", "").strip()
    if not re.fullmatch(r"https?://[\w.:/%-]+", url, re.ASCII):
        return []
    return [f"[Download the pages]({url}) with every turn, its waterfall and its recording."]


def escaped(text: str) -> str:
    """`text` as plain words in Markdown."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return _SPECIAL.sub(r"\\\1", plain.replace("&", "&amp;").replace("<", "&lt;"))


def _in_short(text: str) -> str:
    """Extract the sentence of the check's summary that says what changed; empty if none."""
    found = re.search(r"^- In short: (.*)$", text, re.MULTILINE)
    return html.unescape(re.sub(r"\\(.)", r"\1", found[1])) if found else ""


def _summarise(environment: Environment, text: str) -> None:
    file = environment.get("GITHUB_STEP_SUMMARY")
    if not file:
        print(text)
        return
    with Path(file).open("a", encoding="utf-8") as summary:
        summary.write(text.encode()[:MOST_SUMMARY_BYTES].decode(errors="ignore") + "\n")


def _comment(environment: Environment, text: str) -> None:
    """Comment on the pull request, if there is one. That it cannot is no reason to fail the job."""
    pull: Any = event_of(environment).get("pull_request")
    number = pull.get("number") if isinstance(pull, dict) else None
    if not isinstance(number, int):
        return
    token = environment.get("GATE_TOKEN", "").strip()
    try:
        if not token:
            raise CommentError("the job has no token")
        name = environment.get("GATE_NAME", "").strip() or "turngap"
        request = PullRequest(
            environment.get("GITHUB_API_URL", "https://api.github.com"),
            environment.get("GITHUB_REPOSITORY", ""),
            number,
            token,
        )
        url = request.comment(f"<!-- turngap: {name} -->", text)
        print(f"turngap: commented, {url}")
    except CommentError as e:
        annotate("notice", "turngap: no comment", f"{e}. The job's summary has all of it.")
