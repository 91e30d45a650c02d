"""Fixtures for the recognisers that read in a thread."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from spoken_frames import Spoken, recordings


@pytest.fixture(scope="module")
def library() -> list[Spoken]:
    """Return what people say in the library's first conversations."""
    return recordings()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings take no time: the audio, which comes faster than speech here, waits for them."""

    async def here(call: Callable[..., Any], *given: object) -> Any:
        return call(*given)

    monkeypatch.setattr(asyncio, "to_thread", here)
