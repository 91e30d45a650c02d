"""One browser for all tests of the page's modules."""

from collections.abc import AsyncIterator

import pytest_asyncio
from page_browser import Call, modules


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def call() -> AsyncIterator[Call]:
    """Calls JavaScript with one of the page's modules, in Chromium."""
    async with modules() as calling:
        yield calling
