"""`turngap backends`, `dialects`, `fetch`, `doctor`, `scenarios`, `label` and `init`."""

import asyncio
import dataclasses
import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turngap.cli.shared import Display, print_block, print_json, print_text, say, table
from turngap.core.errors import ExitCode, InputError, known_names
from turngap.core.secrets import text_without_secrets
from turngap.core.wording import bytes_words
from turngap.play.options import Asked

if TYPE_CHECKING:
    from turngap.backends import BackendSpec
    from turngap.caller.dialects.registry import DialectSpec
    from turngap.play.doctor import Download
    from turngap.scenario.label import Labelled
    from turngap.setup import Bot, Chosen


def backends(_: typer.Context, asked: Asked) -> None:
    """List engines with their needs, and whether this machine meets them; or one engine's settings.

    "not by default" means that it runs here, but not with its default settings.
    """
    from turngap.backends import specs

    name = asked.backend
    shown = [spec for spec in specs() if name in (None, spec.name)]
    if name is not None and not shown:
        hint = known_names(name, [spec.name for spec in specs()])
        raise InputError("backend.unknown", f"no backend named {name!r}", hint=hint)
    rows: list[dict[str, Any]] = [
        {**_row(spec), **({"settings": _settings(spec)} if name else {})} for spec in shown
    ]
    if asked.json_:
        print_json(rows)
        return
    print_block(lambda _: table([_shown(row) for row in rows]))
    for row in rows:
        # In lines that can be copied: none is folded.
        if lacks := [*row["missing"], *row["missing_by_default"]]:
            print_text(f"{row['name']} lacks {', '.join(lacks)}:")
            print_text("\n".join(f"  {step}" for step in dict.fromkeys(row["remedy"])))
        if name is not None:
            print_text(f"\nsettings of {row['kind']} backend {name}:")
            print_block(lambda _, row=row: table(row["settings"]))


def _settings(spec: "BackendSpec") -> list[dict[str, Any]]:
    """List each setting with its type, its default and its description, in that order."""
    fields = spec.settings_type.model_json_schema()["properties"]
    required = {k for k, f in spec.settings_type.model_fields.items() if f.is_required()}
    return [
        {
            "setting": key,
            "type": _type(field),
            "default": "(required)" if key in required else json.dumps(field.get("default")),
            "about": field.get("description", ""),
        }
        for key, field in fields.items()
        if key != "library"  # the agent fills it in
    ]


def _type(field: dict[str, Any]) -> str:
    """Describe the allowed values: `enum`'s names, or a type with its bounds."""
    options = field.get("anyOf", [field])
    names: list[str] = []
    for option in options:
        bounds = [option.get(key, field.get(key)) for key in ("minimum", "maximum")]
        least, most = ("…" if bound is None else f"{bound:g}" for bound in bounds)
        shown = "" if bounds == [None, None] else f" {least} to {most}"
        if "enum" in option:
            names += [str(value) for value in option["enum"]]
        elif option.get("type") != "null":
            names.append(option.get("type", "table") + shown)
    return " | ".join(names)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Put the parts of a backend that fit into a table."""
    by_default = row["available"] and row["missing_by_default"]
    cells = {key: row[key] for key in ("name", "kind", "available", "licence", "notes")}
    return cells | ({"available": "not by default"} if by_default else {})


def _row(spec: "BackendSpec") -> dict[str, Any]:
    from turngap.backends import remedies

    lacks, by_default = spec.missing(), spec.missing_by_default()
    return {
        "name": spec.name,
        "kind": spec.kind,
        "available": not lacks,
        "missing": [need.name for need in lacks],
        "missing_by_default": [need.name for need in by_default],
        "remedy": remedies([*lacks, *by_default]),
        "licence": spec.licence,
        "notes": spec.notes,
    }


def dialects(_: typer.Context, asked: Asked) -> None:
    """List the protocols in which turngap can speak to an agent.

    The column Hz is the rate of the person's audio, in samples per second. Exit: 0 listed.
    """
    from turngap.caller.dialects import registry

    rows = [_dialect_row(spec) for spec in registry.dialects().values()]
    if asked.json_:
        print_json(rows)
        return
    print_block(lambda _: table([_shown_dialect(row) for row in rows]))
    for row in rows:
        if row["missing"]:
            print_text(f"{row['name']} lacks {', '.join(row['missing'])}")


def _dialect_row(spec: "DialectSpec") -> dict[str, Any]:
    from turngap.testing.dialects import HALVES

    missing = spec.missing()
    return {
        "name": spec.name,
        "available": not missing,
        "missing": missing,
        "rate": _rate_of(spec),
        "about": spec.about,
        "hosts": list(spec.hosts),
        "key": spec.key.env if spec.key else None,
        "settings": list(spec.settings_type.model_fields),
        "loopback": spec.name in HALVES,
    }


def _rate_of(spec: "DialectSpec") -> int | None:
    """Return the default rate of the person's audio; None if a session needs a setting."""
    try:
        return None if spec.missing() else spec.session().rate
    except InputError:
        return None


def _shown_dialect(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: row[key] for key in ("name", "available", "about", "key")}
    return kept | {"key": row["key"] or "", "Hz": f"{row['rate']:,}" if row["rate"] else ""}


def fetch(_: typer.Context, asked: Asked) -> None:
    """Fetch published weights that stacks or engines load, so that they start without a network.

    Before it begins, it shows what is fetched, how large it is and under which licence. What is
    here already is not fetched again. Exit: 0 all is here, 2 bad input, 4 something cannot be had.
    """
    from turngap.backends.weights import bring
    from turngap.play.doctor import wanted_by

    wanted = [weights for name in asked.what for weights in wanted_by(name, asked.sets)]
    folders = bring(wanted)
    rows = [
        {"name": weights.name, "licence": weights.licence, "folder": str(folder)}
        for weights, folder in zip(wanted, folders, strict=True)
    ]
    if asked.json_:
        print_json(rows)
        return
    for row in rows:
        print_text(f"{row['name']}: {row['folder']}")
    if not rows:
        print_text(f"{', '.join(asked.what)}: nothing has to be fetched")


def doctor(_: typer.Context, asked: Asked) -> None:
    """Check whether this machine is fit to measure, and which agents it can run.

    For each agent it says which published weights it loads, and whether they are here. Nothing is
    fetched. It also says whether something listens where the repository's file expects your bot.

    Exit: 0 fit to measure, 4 not. With the extra `agent`, the agent `embedded` must be able to run;
    other agents may lack something, and a bot that does not run or a machine that is busy just now
    is only mentioned.
    """
    from turngap.play.doctor import Check, examine, examine_agent
    from turngap.setup import servers

    checks: list[Check] = []
    for check in chain(examine(asked.library), examine_agent(servers)):
        checks.append(check)
        if not asked.json_:
            mark = "ok" if check.ok else "NO" if check.needed else "-"
            print_text(f"{mark:3} {check.name}: {check.detail}")
            if check.remedy:
                print_text(f"    {check.remedy}")
            for download in check.downloads:
                print_text(f"    {_downloaded(download)}")
    if asked.json_:
        print_json([dataclasses.asdict(c) for c in checks])
    fit = all(check.ok for check in checks if check.needed)
    raise typer.Exit(ExitCode.PASS if fit else ExitCode.AGENT_FAILED)


def _downloaded(download: "Download") -> str:
    """Format weights in a line, as in an agent's list."""
    size = "size not known" if download.bytes is None else bytes_words(download.bytes)
    words = f"{'here' if download.here else 'to fetch'}: {download.name}, {size}"
    words += f" ({download.licence or 'licence not known here'})"
    words += "" if download.pinned else "; digest not pinned"
    return words + (f"; pins from {download.pins}" if download.pins else "")


def scenarios(_: typer.Context, asked: Asked) -> None:
    """List the scenarios that can be played."""
    from turngap.scenario.model import library_dir, library_paths, none_in, read_scenario

    folder = library_dir(asked.folder)
    found = [read_scenario(p) for p in library_paths(folder)]
    if not found:
        raise none_in(folder)
    rows = [
        {"name": s.name, "turns": len(s.turns), "tags": list(s.tags), "about": s.about}
        for s in found
    ]
    if asked.json_:
        print_json(rows)
    else:
        print_block(lambda _: table(rows))


def label(_: typer.Context, asked: Asked) -> None:
    """Find where speech begins, pauses and ends in each recording, and write it into the scenario.

    Each bound gets an error in ms, which becomes part of the gap's error bar. Recordings whose
    labels you should check by ear or eye are named with the reason.

    Exit: 0 labelled, 2 bad input, and then that scenario's file stays as it was.
    """
    from turngap.scenario.label import label_file

    files, show = asked.files, asked.show
    labelled: list[Labelled] = []
    drawn: dict[Path, int] = {}
    with Display(len(files), "files") as shown:
        for file in files:
            shown.step(file.name)
            of_file = label_file(file, only_missing=asked.only_missing)
            labelled += of_file
            if show is not None:
                from turngap.scenario.label import draw_labels

                drawn[file] = len(draw_labels(file, of_file, show))
            shown.advance()
    for file, pictures in drawn.items():
        say(f"{pictures} picture{'s' if pictures != 1 else ''} of {file} drawn in {show}")
    changed = [label for label in labelled if label.changed]
    if asked.json_:
        print_json([_label(label) for label in labelled])
        return
    for label in changed:
        print_text(str(label))
    for label in labelled:
        for warning in label.found.warnings:
            say(f"warning: {label.audio}: {warning}")
    say(f"{len(changed)} label{'s' if len(changed) != 1 else ''} changed")


def _label(label: "Labelled") -> dict[str, Any]:
    found = label.found
    return {
        "audio": label.audio,
        "changed": label.changed,
        "before": None if label.before is None else label.before.model_dump(),
        "after": found.bounds.model_dump(),
        "pauses": [pause.model_dump() for pause in found.pauses],
        "snr_db": found.snr_db,
        "warnings": [{"kind": w.kind, "text": w.text} for w in found.warnings],
    }


def init(_: typer.Context, asked: Asked) -> None:
    """Write turngap.toml, a test and a workflow, so that `turngap check` needs no flags.

    It looks for files that import pipecat and for servers on the usual ports, starts and calls what
    you choose, and finds out its dialect. Without a terminal it takes --yes, --agent or --start.

    Exit: 0 written, 2 bad input or files that are there already, 4 no agent could be reached.
    """
    from turngap.play.defaults import FILE, PYPROJECT, read_defaults, repository_of, strangers
    from turngap.setup import WORKFLOW, Chosen, contents, require_no_secrets, write

    folder, here = Path(), Path.cwd()
    if not asked.force and (folder / FILE).exists():
        raise InputError(
            "init.exists", f"{FILE} is there already", hint="turngap init --force replaces it"
        )
    there = None if (folder / FILE).exists() else read_defaults()
    if there is not None and there.path == Path(PYPROJECT):
        raise InputError(
            "init.exists",
            f"{PYPROJECT} has defaults for turngap already, and two files would disagree",
            hint=f"edit [tool.turngap] in {PYPROJECT}",
        )
    given = Chosen(asked.agent or "", asked.start or "", asked.dialect, asked.headers)
    require_no_secrets(given)
    chosen = _agent_of(folder, given, yes=asked.yes)
    # Where GitHub looks for workflows. A `.git` that another user has put above does not count.
    root = repository_of(here)
    root = here if root is None or strangers(root / ".git") else root
    files = contents(chosen, here.relative_to(root))
    written = write(folder, files, force=asked.force, root=root)
    if asked.json_:
        agent_facts = {"agent": chosen.agent, "start": chosen.start, "dialect": chosen.dialect}
        print_json({"written": written, **agent_facts})
    else:
        for name in files:
            print_text(f"wrote {name}" if name in written else f"kept {name}, which was there")
    if chosen.is_elsewhere:
        say("no workflow was written: the agent is on another machine")
    adapt = [name for name in written if name.endswith(WORKFLOW)]
    more = f'; then adapt the lines of {adapt[0]} that are marked "yours"' if adapt else ""
    say(f"next: is it fast enough? turngap check{more}")


def _agent_of(folder: Path, given: "Chosen", *, yes: bool) -> "Chosen":
    """Return the agent that was given, or that is found here, once it has answered."""
    from turngap.clocks import MonotonicClock
    from turngap.setup import SCENARIO, Chosen, bot_of, from_here, reached

    own = any(Path("scenarios").glob("*.yaml"))
    scenarios = () if own else (SCENARIO,)
    agent, start, headers = given.agent, given.start, given.headers
    if agent and "://" not in agent:
        from turngap.agent.stack import load_stack

        load_stack(agent)
        return Chosen(agent, scenarios=scenarios)
    bot = bot_of(agent, start, folder) if agent or start else _bot_here(folder, yes=yes)
    endpoint = asyncio.run(reached(bot, given.dialect, headers, MonotonicClock(), say))
    say(f"{text_without_secrets(endpoint.url)} answers, and speaks {endpoint.spec().name}")
    command = from_here(bot.start or "", Path.cwd())
    return Chosen(endpoint.url, command, endpoint.dialect, headers, scenarios, bot.takes_port)


def _bot_here(folder: Path, *, yes: bool) -> "Bot":
    """Return the first bot found (if `yes`), or the one that the person chooses.

    Raises:
        InputError: no bot was found, or there is no one to ask.
    """
    from turngap.setup import RUNNER_PORT, URLS, Bot, bots, servers

    choices = bots(folder)
    for port in servers():
        bot = Bot(f"ws://127.0.0.1:{port}", is_called=port == RUNNER_PORT)
        choices[f"port {port}"] = bot
    names = list(choices)
    hint = f"name your agent: turngap init --agent {URLS}, with --start COMMAND if turngap should "
    hint += "start it"
    if not names:
        raise InputError("init.nothing_found", "nothing here looks like a bot", hint=hint)
    if yes:
        return choices[names[0]]
    if not _can_ask():
        hint += "; or turngap init --yes takes the first"
        raise InputError("init.nobody_to_ask", f"found here: {'; '.join(names)}", hint=hint)
    for number, name in enumerate(names, start=1):
        say(f"  {number}  {name}")
    number = typer.prompt("Which is your agent? A number", default=1, type=int, err=True)
    if not 1 <= number <= len(names):
        raise InputError("init.number", f"the list has no number {number}", hint=hint)
    return choices[names[number - 1]]


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
