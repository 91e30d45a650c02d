"""Scenario files: their model, reading one, and finding them by name."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from turngap.core.cue import AFTER_REPLY_MS, Ms, Pause, SpeechBounds, Strict, When
from turngap.core.errors import InputError, known_names
from turngap.core.untrusted import harmless, problems, reason, shown
from turngap.scenario.expectation import AT, Call, Expectation
from turngap.scenario.phrases import tokens
from turngap.store.documents import is_dir, is_file
from turngap.store.files import read_text
from turngap.store.yaml import load_yaml

# What a voice speaks at a time: a minute, which is more than anybody says in a turn.
MOST_SPOKEN = 1000
# A conversation of hours; what its recordings may hold in all is bounded, too.
MOST_TURNS = 1000


class Recorded(Strict):
    """The user's words, and their recording; without one, a voice speaks `say`."""

    say: Annotated[str, Field(min_length=1)]
    # Empty: there is none. No file system takes longer names.
    audio: Annotated[str, Field(max_length=255)] = ""
    speech: SpeechBounds | None = None
    # None: no one looked for pauses; (): there are none.
    pauses: tuple[Pause, ...] | None = None

    @field_validator("audio")
    @classmethod
    def _inside(cls, audio: str) -> str:
        path = PurePosixPath(audio)
        if path.is_absolute() or ".." in path.parts or "\\" in audio:
            raise ValueError("must be a relative path inside the scenario's folder")
        if path.suffix.lower() not in (".wav", ".flac") or "\0" in audio:
            raise ValueError("must name a .wav or .flac file")
        return audio

    @property
    def is_sound(self) -> bool:
        """Return whether `say` names a sound without words, in square brackets, as in "[cough]"."""
        return self.say.startswith("[") and self.say.endswith("]")

    @model_validator(mode="after")
    def _can_be_heard(self) -> Self:
        if self.audio:
            return self
        if self.is_sound or not tokens(self.say):
            raise ValueError(f"no voice can speak {self.say[:40]!r}: give a recording, audio")
        if self.speech is not None or self.pauses is not None:
            raise ValueError(
                "without audio a voice speaks the text, and turngap finds its speech and pauses "
                "itself: leave out speech and pauses, or give audio"
            )
        if len(self.say) > MOST_SPOKEN:
            raise ValueError(
                f"a voice speaks at most {MOST_SPOKEN} characters a turn, found {len(self.say)}: "
                "split it into turns, or give audio"
            )
        return self

    @model_validator(mode="after")
    def _pauses_lie_in_the_speech(self) -> Self:
        speech = self.speech
        for pause in self.pauses or ():
            if not speech or pause.start_ms <= speech.start_ms or pause.end_ms >= speech.end_ms:
                raise ValueError(
                    f"the pause from {pause.start_ms:g} to {pause.end_ms:g} ms must lie inside "
                    "the turn's speech"
                )
        for one, other in pairwise(self.pauses or ()):
            if other.start_ms < one.end_ms:
                raise ValueError(
                    f"the pause from {other.start_ms:g} ms begins before the one before it ends, "
                    f"at {one.end_ms:g} ms"
                )
        return self


class Backchannel(Recorded):
    """A word like "mm-hm" laid over the reply. It does not take a turn, so it has no outcome."""

    reply_ms: Ms


class UserTurn(Recorded):
    """One turn of the user: its words, its recording, and the expected answer.

    `calls` are the tools that the simulated model calls before its `reply`, in which `{key}` stands
    for a value of their results.
    """

    calls: tuple[Call, ...] = ()
    reply: str | None = None
    expect: Expectation = Expectation()
    when: When = When(after_reply_ms=AFTER_REPLY_MS)
    backchannels: tuple[Backchannel, ...] = ()

    @model_validator(mode="after")
    def _says_what_came_of_it(self) -> Self:
        if self.calls and self.reply is None:
            raise ValueError("calls need a reply, which may hold what they gave: {key}")
        return self


class Scenario(Strict):
    """One conversation.

    >>> scenario = turngap.Scenario.load("quick-questions")
    >>> scenario.turns[0].say
    'what time is it'
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    about: str = ""
    # What the person may ask for, as it follows "I can help with".
    topic: Annotated[str, Field(max_length=40)] | None = None
    tags: tuple[str, ...] = ()
    voices: Literal["synthetic", "recorded"] | None = None  # None: the file does not say
    # Of turns without a recording, as BACKEND[,KEY=VALUE…]; None: the first that is installed.
    voice: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    turns: Annotated[tuple[UserTurn, ...], Field(min_length=1, max_length=MOST_TURNS)]

    @field_validator("turns")
    @classmethod
    def _first_turn_waits_for_nobody(cls, turns: tuple[UserTurn, ...]) -> tuple[UserTurn, ...]:
        if turns[0].when.barge_in_ms is not None:
            raise PydanticCustomError(
                "nothing_to_barge_into",
                "the first turn has no reply to barge into; allowed: after_reply_ms, at_ms",
                {AT: (0, "when", "barge_in_ms")},
            )
        return turns

    @model_validator(mode="after")
    def _a_voice_that_speaks_text_is_synthetic(self) -> Self:
        said = [each for turn in self.turns for each in (turn, *turn.backchannels)]
        if not all(each.audio for each in said):
            object.__setattr__(self, "voices", "synthetic")  # whatever the file says of the rest
        return self

    @classmethod
    def load(cls, name: str | Path, library: str | Path | None = None) -> "Scenario":
        """Read a scenario from a file, or by its name in a library.

        Args:
            name: a scenario's name, or the path of a `.yaml` file.
            library: the folder of scenarios; by default `./scenarios`, or the one that ships.

        Raises:
            InputError: there is no such scenario, or its file is wrong, with the line.
        """
        folder = library_for([str(name)], None if library is None else Path(library))
        (path,) = scenario_paths(folder, [str(name)])
        return read_scenario(path)


# One file


def read_scenario(path: Path) -> Scenario:
    """Parse and check one file; recordings are not opened.

    Raises:
        InputError: with file, line, reason and the allowed keys.
    """
    return parse_scenario(path, text_of(path))


def parse_scenario(path: Path, text: str) -> Scenario:
    """Parse a scenario from text; errors name `path`, and the scenario's name must match it."""
    return parse_with_places(path, text)[0]


def text_of(path: Path) -> str:
    """Return a scenario file's text, with its line ends as they are; raises `InputError`."""
    return read_text(
        path, "scenario", hint="give a scenario's .yaml file, which names its recordings"
    )


# A command reads each scenario several times over: for its tags, to play it, and for each engine
# that is made from the library. Parsing the 23 that ship takes 0.15 s each time.
@lru_cache(maxsize=64)
def parse_with_places(path: Path, text: str) -> tuple[Scenario, CommentedMap]:
    """Parse a scenario as `parse_scenario` does, with the tree in which `line_of` finds keys.

    Callers with the same text share both results, so none may change them.
    """
    tree = load_yaml(text, path, "scenario")
    if not isinstance(tree, CommentedMap):
        raise InputError(
            "scenario.not_a_mapping",
            f"{path}:1: expected a mapping with the keys {_keys(Scenario)}",
        )
    try:
        scenario = Scenario.model_validate(_plain(tree))
    except ValidationError as e:
        found = problems(e)
        lines: list[str] = []
        for problem in found:
            loc = (*problem["loc"], *problem.get("ctx", {}).get(AT, ()))
            key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).lstrip(".")
            place = f"{path}:{line_of(tree, loc)}: {harmless(key, 200) or 'scenario'}"
            lines.append(f"{place}: {_reason(problem)}")
        kinds = {p["type"] for p in found}
        kind = "scenario.unknown_key" if "extra_forbidden" in kinds else "scenario.invalid"
        raise InputError(kind, "\n".join(lines), hint="docs/scenarios.md shows every key") from e
    if scenario.name != path.stem:
        raise InputError(
            "scenario.name",
            f"{path}:{line_of(tree, ('name',))}: name {scenario.name!r} must equal the file's name "
            f"{path.stem!r}, by which it is played",
        )
    return scenario, tree


def _plain(node: Any) -> Any:
    if isinstance(node, CommentedMap):
        return {str(k): _plain(v) for k, v in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(v) for v in node]
    return node


def line_of(tree: Any, loc: Sequence[str | int]) -> int:
    """Find the one-based line of the innermost part of `loc` that is in the file."""
    line, node = 1, tree
    for key in loc:
        try:
            position = node.lc.key(key) if isinstance(node, CommentedMap) else node.lc.item(key)
            line, node = position[0] + 1, node[key]
        except (KeyError, IndexError, AttributeError, TypeError):
            break
    return line


def _reason(problem: ErrorDetails) -> str:
    """Describe the error and the allowed values, with a scenario's keys at this place."""
    loc = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key; allowed here: {_keys(_model_at(loc[:-1]))}"
        case "missing":
            return f"missing; keys here: {_keys(_model_at(loc[:-1]))}"
        case "model_type":
            return f"expected a mapping with the keys {_keys(_model_at(loc))}"
    said, found = reason(problem), problem["input"]
    return f"{said}, found {shown(found, 80)}" if isinstance(found, str | int | float) else said


def _model_at(loc: Sequence[str | int]) -> Any:
    """Find the model that the keys at `loc` belong to, by walking the annotations."""
    model: Any = Scenario
    for key in loc:
        if isinstance(key, int):
            continue
        annotation = model.model_fields[key].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next((c for c in candidates if hasattr(c, "model_fields")), model)
    return model


def _keys(model: Any) -> str:
    return ", ".join(model.model_fields)


# Found by name

SUFFIXES = (".yaml", ".yml")
# Scenarios with this tag are played by name or by tag alone, so that playing all of a library does
# not take longer for them. Engines made from a library know them all the same.
EXTRA = "extra"


def library_dir(explicit: Path | None = None) -> Path:
    """Find the scenario library: an explicit path, then `./scenarios`, then the shipped one.

    Raises:
        InputError: the explicit path does not exist, or no library is found.
    """
    if explicit is not None:
        if not is_dir(explicit):
            raise InputError(
                "library.missing",
                f"scenario library {explicit} is not a folder",
                hint="give a folder of *.yaml scenarios",
            )
        return explicit
    for candidate in (Path("scenarios"), *_shipped()):
        if candidate.is_dir() and any(candidate.glob("*.yaml")):
            return candidate
    raise InputError(
        "library.missing",
        "no scenario library found (looked for ./scenarios and the shipped one)",
        hint="name a folder that has scenarios",
    )


def shipped_library() -> Path:
    """Return the library that ships, regardless of the working directory."""
    return next(folder for folder in _shipped() if folder.is_dir())


def _shipped() -> tuple[Path, Path]:
    """List where the shipped library may be.

    An editable install has no packaged copy; its sources are next to the package's parent.
    """
    packaged = Path(str(resources.files("turngap"))) / "_scenarios"
    return packaged, Path(__file__).parents[3] / "scenarios"


def library_for(names: Sequence[str], explicit: Path | None = None) -> Path:
    """Return the library to play `names` from: the one folder that they name, or that has them.

    Raises:
        InputError: as `library_dir`.
    """
    folders = {_folder_of(name, explicit) for name in names}
    if explicit is None and len(folders) == 1 and (folder := folders.pop()) is not None:
        return folder
    return library_dir(explicit)


def _folder_of(name: str, explicit: Path | None = None) -> Path | None:
    """Return the folder of a file, or the folder that is named; None for a scenario's name.

    A scenario's name is never read as a folder of the same name: write `./NAME` for that.
    """
    path = Path(name)
    if path.suffix in SUFFIXES and is_file(path):
        return path.parent
    if not is_dir(path) or name in {p.stem for p in library_paths(library_dir(explicit))}:
        return None
    return path


def require_inside(library: Path, paths: Iterable[Path]) -> None:
    """Refuse scenarios from elsewhere for an agent whose engines are made from `library`.

    Raises:
        InputError: the scenarios are from elsewhere. The recogniser would hear other sentences,
            without any warning.
    """
    for path in paths:
        if path.resolve().parent != library.resolve():
            raise InputError(
                "library.outside",
                f"{path} lies outside the library {library}, from which the agent's recogniser and "
                "simulated model are made",
                hint=f"leave out names and files of other folders, or play all of {path.parent}",
            )


def library_paths(library: Path) -> list[Path]:
    """List the files of every scenario in the library."""
    return [p for p in sorted(library.iterdir()) if p.suffix in SUFFIXES]


def scenario_paths(library: Path, names: Sequence[str] = (), tag: str | None = None) -> list[Path]:
    """Return the files of the named scenarios, of those with a tag, or of all but extras.

    A name is a scenario's name in `library`, a path to a file, or a folder of scenarios.

    Raises:
        InputError: a name is unknown, or nothing is left to play.
    """
    known = {p.stem: p for p in library_paths(library)}
    paths: list[Path] = []
    for name in names or [None]:
        whole = library if name is None else Path(name)
        if name is None or (name not in known and is_dir(whole)):
            inside = library_paths(whole)
            if not inside:
                raise none_in(whole)
            paths += [p for p in inside if tag is not None or EXTRA not in read_scenario(p).tags]
        else:
            paths.append(_named(name, known, library))
    if tag is not None:
        paths = [p for p in paths if tag in read_scenario(p).tags]
    if not paths:
        wanted = f" with tag {tag!r}" if tag else ""
        raise InputError(
            "library.empty",
            f"no scenario{wanted} in {library}",
            hint="`turngap scenarios` lists what there is",
        )
    return paths


def none_in(library: Path) -> InputError:
    """Build the "no scenarios found" error."""
    return InputError(
        "library.empty",
        f"no scenario in {library}: no *.yaml file",
        hint="give a folder that has some; docs/scenarios.md says how to write one",
    )


def _named(name: str, known: dict[str, Path], library: Path) -> Path:
    as_path = Path(name)
    if as_path.suffix in SUFFIXES and is_file(as_path):
        return as_path
    if name in known:
        return known[name]
    if is_file(as_path):
        raise InputError(
            "library.no_scenario",
            f"{name} is a file and no scenario, which is a {' or '.join(SUFFIXES)} file",
            hint="write one that names your recordings as `audio`: docs/scenarios.md",
        )
    where = "the library that ships" if library in _shipped() else str(library)
    raise InputError(
        "library.unknown",
        f"no scenario {name!r} in {where} and no such file",
        hint=known_names(name, known, listed_by="turngap scenarios"),
    )
