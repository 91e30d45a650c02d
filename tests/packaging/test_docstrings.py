"""No docstring begins with a question word or as half a sentence."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pipeline", "services", "tools", "benchmarks", "examples", "scenarios")
BEGINS = re.compile(r"(What|That|Of|Whether|Where|When|Which|Why|How|As|So|Who|The same)\b")
KINDS = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def offenders(tree: ast.Module, module: str) -> Iterator[str]:
    """Yield the name of each function, class and module whose docstring begins so."""
    for node in ast.walk(tree):
        if isinstance(node, KINDS) and BEGINS.match(ast.get_docstring(node) or ""):
            yield module if isinstance(node, ast.Module) else f"{module}.{node.name}"


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = [
        name
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in offenders(ast.parse(file.read_text(encoding="utf-8")), file.stem)
    ]
    assert found == [], "begin with a verb (Return, Build) or a noun (Report of)"


def test_a_question_word_is_found() -> None:
    code = (
        '"""Where it is."""\n'
        'class A:\n  """How it is."""\n  def b(self):\n    """What it is."""\n'
        'def c():\n  """Return the same."""\n'
    )
    assert sorted(offenders(ast.parse(code), "x")) == ["x", "x.A", "x.b"]
