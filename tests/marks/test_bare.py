"""`MarksObserver` in a bot whose environment has pipecat and nothing else that turngap needs."""

import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from packaging.requirements import Requirement
from pipecat.frames.frames import Frame, LLMContextFrame, TextFrame
from pipecat.observers.base_observer import FramePushed
from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.marks.observer import FirstPushes, is_guess, tool_error

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def required_by(distribution_: str) -> set[str]:
    found = [Requirement(each) for each in distribution(distribution_).requires or ()]
    return {r.name.lower() for r in found if not r.marker or r.marker.evaluate({"extra": ""})}


def test_it_imports_nothing_that_pipecat_does_not_bring() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    declared = [*project["dependencies"], *extras]
    brought = {"turngap", "pipecat-ai", *required_by("pipecat-ai")}
    ours = {Requirement(each).name.lower() for each in declared} - brought
    modules = {m for m, of in packages_distributions().items() if {d.lower() for d in of} & ours}
    assert {"typer", "ruamel", "rapidfuzz", "text_to_num", "jinja2"} <= modules
    program = f"""
import sys
class Lacks:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacks())
import turngap.pytest_plugin  # pytest loads it in every environment that has turngap
from turngap import MarksObserver
MarksObserver()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def pushed(frame: Frame, **told: bool) -> FramePushed:
    return cast(FramePushed, SimpleNamespace(frame=frame, **told))


def test_the_first_push_of_a_frame_is_told_from_later_ones_where_pipecat_does_not() -> None:
    pushes, one, other = FirstPushes(), TextFrame("a"), TextFrame("b")
    seen = [pushes.is_first(pushed(frame)) for frame in (one, one, other, one, other)]
    assert seen == [True, False, True, False, False]


def test_what_pipecat_says_of_a_push_counts() -> None:
    pushes, frame = FirstPushes(), TextFrame("a")
    assert not pushes.is_first(pushed(frame, first_push=False))
    assert pushes.is_first(pushed(frame, first_push=True))


def test_what_is_remembered_of_pushes_is_bounded() -> None:
    pushes = FirstPushes()
    for _ in range(10_100):
        assert pushes.is_first(pushed(TextFrame("a")))
    assert len(pushes._seen) == 10_000  # pyright: ignore[reportPrivateUsage]


def test_frames_of_versions_without_guesses_and_errors_are_read() -> None:
    old = cast(Any, SimpleNamespace(context=LLMContext(), tool_call_id="1"))
    assert not is_guess(old)
    assert tool_error(old) is None
    assert is_guess(LLMContextFrame(LLMContext(), speculation=True))
