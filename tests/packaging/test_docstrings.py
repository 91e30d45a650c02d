"""No function's docstring begins with a question word, and the list of those that do only shrinks.

`python tests/packaging/test_docstrings.py` prints the list as `old_docstrings.txt` should hold it.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("old_docstrings.txt")
FOLDERS = ("pipeline", "services/turngap_services")
BEGINS = re.compile(r"(What|That|Of|Whether|How|As|So|Who|The same)\b")


def offenders() -> Iterator[str]:
    """Yield each function whose docstring begins so, as its file and its name."""
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = file.relative_to(ROOT).as_posix()
            for function in functions(ast.parse(file.read_text(encoding="utf-8")), ""):
                yield f"{name}:{function}"


def functions(node: ast.AST, within: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inside = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{within}.{child.name}".lstrip(".")
            is_function = not isinstance(child, ast.ClassDef)
            if is_function and BEGINS.match(ast.get_docstring(child) or ""):
                yield inside
        yield from functions(child, inside)


def test_docstrings_begin_with_a_verb_and_those_that_may_not_are_ever_fewer() -> None:
    allowed = Counter(ALLOWED.read_text(encoding="utf-8").split("\n")[:-1])
    now = Counter(offenders())
    assert sorted(now - allowed) == [], "begin them with a verb: Return, Build, Check, Read"
    assert sorted(allowed - now) == [], f"take these out of {ALLOWED.name}: they are mended"


def test_what_begins_with_a_question_word_is_seen() -> None:
    code = 'class A:\n  def b(self):\n    """What it is."""\ndef c():\n  """Return the same."""\n'
    assert list(functions(ast.parse(code), "")) == ["A.b"]


if __name__ == "__main__":
    sys.stdout.writelines(f"{each}\n" for each in sorted(offenders()))
