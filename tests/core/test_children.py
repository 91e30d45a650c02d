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


# As `turngap load &` in a script: its shell lets it ignore SIGINT.
IN_BACKGROUND = """
import asyncio, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from turngap.children import treat_hangups_as_interrupts
treat_hangups_as_interrupts()
async def work():
    print("ready", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("kept", flush=True)
try:
    asyncio.run(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


async def test_sigterm_ends_what_a_script_runs_in_the_background() -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IN_BACKGROUND), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
        child.terminate()
        assert await asyncio.wait_for(child.stdout.read(), 30) == b"kept\ninterrupted\n"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
