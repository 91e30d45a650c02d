"""Save a live conversation as a scenario: recordings, transcript, labels and expectations.

You can replay the scenario as it is. Its labels are proposals, found in the recordings. So are its
expectations, which repeat what one agent happened to say.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_MS
from turngap.core.counts import OUT_OF_DOMAIN
from turngap.core.cue import Pause, SpeechBounds
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.stored import AudioRecord
from turngap.scenario.library import load_scenario
from turngap.scenario.phrases import tokens
from turngap.scenario.speech import find_speech
from turngap.store.documents import writing
from turngap.store.sound import read_sound

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")

# How much of the line to keep around the speech; the caller's stream has its own noise.
ROOM_MS = 300.0

# People do not interrupt a reply on purpose sooner than this.
LEAST_BARGE_IN_MS = 100.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A turn that is not in the scenario."""

    turn: int
    why: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A scenario that was written; its recordings are in a folder next to the YAML file `path`."""

    name: str
    path: Path
    turns: int
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    record: Turn
    pcm: Pcm
    rate: int
    speech: SpeechBounds
    pauses: tuple[Pause, ...] | None


def checked_name(name: str) -> str:
    """Return the name of a scenario after checking it.

    Raises:
        InputError: a scenario cannot have this name.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            "scenario.name",
            f"{name[:80]!r} cannot be a scenario's name",
            hint="use at most 80 lower-case letters, digits and hyphens, such as coffee-order",
        )
    return name


def scenario_name(run: Path) -> str:
    """Make a scenario's name from the name of a run's folder."""
    return re.sub(r"[^a-z0-9]+", "-", run.name.lower()).strip("-")


def why_unsaved(record: Turn, *, foreign: bool) -> str | None:
    """Return why a turn cannot be saved; None if it can, though it may have no audible speech."""
    if record.left_out == "typed":
        return "typed"
    if not (record.say.strip() or foreign):  # many foreign agents do not report a transcript
        return "nothing was transcribed"
    if OUT_OF_DOMAIN in record.say:
        return "the recogniser does not know its words"
    return None if record.audio else "it has no recording"


def save(run: Path, turns: Sequence[Turn], name: str, folder: Path, with_whom: str = "") -> Saved:
    """Write the scenario `name` into `folder`, completely or not at all.

    `with_whom` names a foreign agent, if the conversation was with one.

    Raises:
        InputError: the name is invalid or taken, no turn can be saved, or the folder is not
            writable.
    """
    checked_name(name)
    cuts, left_out = list[_Cut](), list[LeftOut]()
    for record in turns:
        cut = _cut(run, record, foreign=bool(with_whom))
        if isinstance(cut, str):
            left_out.append(LeftOut(record.turn, cut))
        else:
            cuts.append(cut)
    if not cuts:
        why = "; ".join(f"turn {x.turn}: {x.why}" for x in left_out) or "there is none"
        raise InputError("live.nothing_to_save", f"no turn can be saved as a scenario: {why}")
    path, audio = folder / f"{name}.yaml", folder / name
    if path.exists() or audio.exists():
        raise InputError(
            "scenario.exists", f"{folder} already has a scenario {name!r}", hint="take another name"
        )
    with writing(folder, "scenario.unwritable"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as made:
            new_audio, new_path = Path(made) / name, Path(made) / path.name
            new_audio.mkdir()
            for number, cut in enumerate(cuts, start=1):
                file = new_audio / f"{number}.flac"
                soundfile.write(file, cut.pcm, cut.rate, subtype="PCM_16", format="FLAC")
            new_path.write_text(_yaml(name, cuts, with_whom), encoding="utf-8")
            load_scenario(new_path)  # make sure that it can be played
            shutil.move(new_audio, audio)
            shutil.move(new_path, path)
    return Saved(name, path, len(cuts), tuple(left_out))


def end_error_ms(user: Pcm, rate: int, audio: AudioRecord) -> float | None:
    """Return the possible error of a turn's end that the page found while the person spoke.

    The recording is judged as a saved one is; None if it holds no speech that can be judged.
    """
    start_ms, end_ms = _spoken(audio)
    found = find_speech(user[round(start_ms * rate / 1000) : round(end_ms * rate / 1000)], rate)
    if found is None or found.bounds.end_error_ms is None:
        return None
    off_ms = abs(start_ms + found.bounds.end_ms - audio.user_end_ms)
    return round(off_ms + found.bounds.end_error_ms, 1)


def _spoken(audio: AudioRecord) -> tuple[float, float]:
    """Return the part of a turn's recording in which the person speaks, ms."""
    start_ms, end_ms = max(0.0, audio.user_start_ms - ROOM_MS), audio.user_end_ms + ROOM_MS
    if audio.onset_ms is not None and audio.onset_ms > audio.user_end_ms:
        end_ms = min(end_ms, audio.onset_ms)  # a loudspeaker is heard here too
    return start_ms, end_ms


def _cut(run: Path, record: Turn, *, foreign: bool) -> _Cut | str:
    """Return the user's part of a turn's recording with its bounds, or why it is unusable."""
    if why_not := why_unsaved(record, foreign=foreign):
        return why_not
    assert record.audio is not None
    kept_from_ms, kept_to_ms = _spoken(record.audio)
    part_ms = (kept_from_ms, kept_to_ms)
    sound = read_sound(run / record.audio.file, "run", below=run, channels=2, part_ms=part_ms)
    pcm, rate = np.ascontiguousarray(sound.samples[:, 0]), sound.rate
    if found := find_speech(pcm, rate):
        return _Cut(record, pcm, rate, found.bounds, found.pauses)
    if not record.say.strip():
        return "no speech was found in its recording"
    # The recogniser read words where Silero heard no voice, as in a whisper.
    start_ms = record.audio.user_start_ms - kept_from_ms
    end_ms = min(record.audio.user_end_ms - kept_from_ms, len(pcm) * 1000 / rate)
    if end_ms <= start_ms:
        return "no speech was found in its recording"
    return _Cut(record, pcm, rate, SpeechBounds(start_ms=start_ms, end_ms=end_ms), None)


def _yaml(name: str, cuts: Sequence[_Cut], with_whom: str) -> str:
    named = f" with {with_whom}" if with_whom else ""
    about = {"name": name, "about": f"Saved from a live conversation{named}."}
    about |= {"tags": _flow(CommentedSeq(["live"])), "voices": "recorded"}
    turns = CommentedSeq([_turn(name, n, cuts) for n in range(1, len(cuts) + 1)])
    scenario = CommentedMap({**about, "turns": turns})
    scenario.yaml_set_start_comment(
        "This was proposed from one conversation. `say` is what the recogniser heard; correct it.\n"
        "`turngap label` finds `speech` and `pauses` again; `--show DIR` draws them.\n"
        "`expect` is what one agent said; keep only what every right answer must say.\n"
    )
    out, yaml = StringIO(), YAML(typ="rt")
    yaml.width = 96
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(scenario, out)
    return out.getvalue()


def _turn(name: str, number: int, cuts: Sequence[_Cut]) -> CommentedMap:
    cut = cuts[number - 1]
    record, speech = cut.record, cut.speech
    say = (record.say.strip() and record.say) or f"[turn {record.turn}, not transcribed]"
    turn = CommentedMap({"say": say, "audio": f"{name}/{number}.flac"})
    turn["speech"] = _flow(CommentedMap(speech.model_dump(exclude_none=True)))
    if cut.pauses is not None:
        pauses = [_flow(CommentedMap(pause.model_dump())) for pause in cut.pauses]
        turn["pauses"] = _flow(CommentedSeq(pauses))
    if number > 1 and (when := _when(cuts[number - 2].record, record)):
        turn["when"] = _flow(CommentedMap(when))
    if reply := record.reply.strip():
        turn["reply"] = reply
    if tokens(reply):  # otherwise there is no phrase to look for
        any_of = _flow(CommentedSeq([reply]))
        turn["expect"] = CommentedMap({"reply": CommentedMap({"any_of": any_of})})
    return turn


def _when(before: Turn, record: Turn) -> dict[str, float]:
    """Return when the user spoke, unless it was simply after the reply."""
    marks = {m.name: m.at_ns for m in before.marks}
    own_end_ns = next((m.at_ns for m in record.marks if m.name == "user_end"), None)
    follows = record.turn == before.turn + 1 and before.ended == "interrupted"
    if not follows or own_end_ns is None or record.audio is None:
        return {}
    # The person's first audible sample, on the clock of the turn's marks.
    spoke_ms = record.audio.user_end_ms - record.audio.user_start_ms
    start_ns = own_end_ns - round(spoke_ms * NS_PER_MS)
    onset_ns, end_ns = marks.get("agent_onset"), marks.get("user_end")
    if onset_ns is not None:
        after_ms = round((start_ns - onset_ns) / NS_PER_MS, 1)
        # There is a yield only if the agent was heard when the user began.
        barged_in = record.yield_ms is not None and after_ms >= LEAST_BARGE_IN_MS
        return {"barge_in_ms": after_ms} if barged_in else {}
    if end_ns is not None and start_ns > end_ns:
        return {"at_ms": round((start_ns - end_ns) / NS_PER_MS, 1)}
    return {}


def _flow(node: Any) -> Any:
    node.fa.set_flow_style()
    return node
