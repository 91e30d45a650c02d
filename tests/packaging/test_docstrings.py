"""No docstring of a function in the product begins with a question word or as half a sentence."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pipeline", "services/turngap_services")
BEGINS = re.compile(r"(What|That|Of|Whether|How|As|So|Who|The same)\b")


def offenders(node: ast.AST, within: str) -> Iterator[str]:
    """Yield the name of each function whose docstring begins so."""
    for child in ast.iter_child_nodes(node):
        inside = within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{within}.{child.name}"
            is_function = not isinstance(child, ast.ClassDef)
            if is_function and BEGINS.match(ast.get_docstring(child) or ""):
                yield inside
        yield from offenders(child, inside)


def test_a_functions_docstring_begins_with_a_verb() -> None:
    found = [
        name
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in offenders(ast.parse(file.read_text(encoding="utf-8")), file.stem)
    ]
    assert found == [], "begin them with a verb: Return, Build, Check, Read"


def test_what_begins_with_a_question_word_is_seen() -> None:
    code = 'class A:\n  def b(self):\n    """What it is."""\ndef c():\n  """Return the same."""\n'
    assert list(offenders(ast.parse(code), "x")) == ["x.A.b"]
