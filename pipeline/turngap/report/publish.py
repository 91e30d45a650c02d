"""A stored run as a static folder that others can look at, listen to and verify."""

import shutil
from pathlib import Path

from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.report.run import write_html
from turngap.store.documents import writing
from turngap.store.files import refuse_links, sha256_of
from turngap.store.folders import AUDIO_DIR, RUN_FILE, TURNS_FILE
from turngap.store.runs import Run, read_run

DIGESTS_FILE, README_FILE = "SHA256SUMS", "README.txt"
_README = """\
{name}, measured with turngap {version}, {started}: {turns} turns.

report.html   the figures; it plays the recordings in audio/ (left the person, right the agent)
run.json      the agent, the machine, the settings, and the SHA-256 of each recording
turns.jsonl   every turn, a line each

Check that no file was changed:     sha256sum -c SHA256SUMS
Derive the figures from the audio:  pip install turngap; turngap verify .

The digest of SHA256SUMS itself, if you got it from its author by another way, ties the folder to
that author. What `turngap verify` derives, and what no audio can show: docs/verify.md in turngap.
"""


def publish(run: Run, folder: Path) -> Path:
    """Write a run to a new folder: its page, audio, documents, digests, and how to verify it.

    Stored runs hold no secrets; the agent's log, audio of no turn and other files are left out.

    Raises:
        InputError: the folder is not empty or cannot be written to, or a file is a link.
    """
    with writing(folder, "publish.unwritable"):
        if folder.is_symlink():
            raise InputError(
                "publish.link",
                f"{harmless(str(folder))} is a link, which may lead to a folder of yours elsewhere",
                hint="name a new folder",
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "publish.not_empty",
                f"{harmless(str(folder))} is there and is not an empty folder",
                hint="name a new folder: nothing is overwritten",
            )
        files = [run.path / RUN_FILE, run.path / TURNS_FILE]
        named = {turn.audio.file for turn in run.turns if turn.audio is not None}
        files += (
            f
            for f in sorted((run.path / AUDIO_DIR).glob("*.wav"))
            if f"{AUDIO_DIR}/{f.name}" in named
        )
        for file in files:
            refuse_links(file, run.path)
            there = folder / file.relative_to(run.path)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)
        write_html(read_run(folder))
        record = run.record
        readme = _README.format(
            name=record.name,
            version=record.turngap_version,
            started=record.started_utc,
            turns=len(run.turns),
        )
        (folder / README_FILE).write_text(readme, encoding="utf-8")
        written = sorted(path for path in folder.rglob("*") if path.is_file())
        lines = [f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in written]
        (folder / DIGESTS_FILE).write_text("".join(lines), encoding="utf-8")
    return folder
