"""Somebody else's test run: what the tests of the pytest plugin are made of."""

from collections.abc import Callable
from typing import Any

import pytest
from made_records import MARKS_MS, make_turn

from turngap.core.results import Turn

URL = "ws://127.0.0.1:9/ws"
PLAIN = f"""
def test_agent(turngap):
    turngap.replay("{URL}")
"""
INI = """
[pytest]
addopts = --strict-markers
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


def slower(**by_ms: float) -> dict[str, float]:
    """`MARKS_MS` with some stages longer, and all after them later."""
    late = 0.0
    marks: dict[str, float] = {}
    for name, at in MARKS_MS.items():
        late += by_ms.get(name, 0.0)
        marks[name] = at + late
    return marks


def made_turns(n: int, **by_ms: float) -> list[Turn]:
    """`n` turns, three a repeat, no two alike."""
    return [
        make_turn(
            turn=i % 3 + 1,
            repeat=i // 3 + 1,
            marks_ms=slower(**{"endpoint": i % 7 - 3.0, "llm_first_token": 0.0} | by_ms),
        )
        for i in range(n)
    ]


Play = Callable[..., list[Any]]
Inner = Callable[..., pytest.RunResult]


def text_of(result: pytest.RunResult) -> str:
    return result.stdout.str() + result.stderr.str()
