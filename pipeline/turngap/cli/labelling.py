"""`turngap label` and `turngap scenarios`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turngap.cli import options
from turngap.cli.progress import Display
from turngap.cli.shared import print_block, print_json, print_text, say, table

if TYPE_CHECKING:
    from turngap.scenario.label import Labelled


def label(
    files: Annotated[list[Path], typer.Argument(help="Scenario files (.yaml).")],
    only_missing: Annotated[
        bool, typer.Option("--only-missing", help="Keep the labels that are there.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Draw each recording with its labels into this folder, as SVG."
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Find where speech begins, pauses and ends in each recording, and write it into the scenario.

    Each bound gets an error in ms, which becomes part of the gap's error bar. Recordings whose
    labels you should check by ear or eye are named with the reason.

    Exit: 0 labelled, 2 bad input, and then that scenario's file stays as it was.
    """
    from turngap.scenario.label import label_file

    labelled: list[Labelled] = []
    drawn: dict[Path, int] = {}
    with Display(len(files), "files") as shown:
        for file in files:
            shown.step(file.name)
            of_file = label_file(file, only_missing=only_missing)
            labelled += of_file
            if show is not None:
                from turngap.scenario.picture import draw_labels

                drawn[file] = len(draw_labels(file, of_file, show))
            shown.advance()
    for file, pictures in drawn.items():
        say(f"{pictures} picture{'s' if pictures != 1 else ''} of {file} drawn in {show}")
    changed = [label for label in labelled if label.changed]
    if json_:
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


def scenarios(
    library: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER",
            help="The folder that has them. Default: ./scenarios, or else those of turngap.",
            show_default=False,
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """List the scenarios that can be played."""
    from turngap.scenario.library import library_dir, library_paths, none_in
    from turngap.scenario.parsing import read_scenario

    folder = library_dir(library)
    found = [read_scenario(p) for p in library_paths(folder)]
    if not found:
        raise none_in(folder)
    rows = [
        {"name": s.name, "turns": len(s.turns), "tags": list(s.tags), "about": s.about}
        for s in found
    ]
    if json_:
        print_json(rows)
    else:
        print_block(lambda _: table(rows))
