"""A child ends with its parent, even one that takes no notice of a first signal."""

import asyncio
import os
import signal
import sys

from turngap.children import PARENT_HOLDS_STDIN

DEAF = """
import signal
from turngap.children import end_with_parent
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end_with_parent()
end_with_parent(signal.SIGKILL, after_s=0.05)
print("ready", flush=True)
while True:
    signal.pause()
"""


async def test_a_child_that_ignores_sigterm_is_killed_when_its_parent_is_gone() -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DEAF),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, PARENT_HOLDS_STDIN: "1"},
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
        assert child.returncode is None
        child.stdin.close()
        assert await asyncio.wait_for(child.wait(), 30) == -signal.SIGKILL
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
