"""Playing for scripts and notebooks: blocking or awaited, and one at a time in a process.

Each play runs in an event loop of its own. If no event loop runs in the calling thread, the play's
loop runs there. If one does (in a notebook's cell, or an await of the async twin), the play's loop
runs in another thread, so that whatever the caller's loop does meanwhile does not delay the
instrument.
"""

import asyncio
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from turngap.backends.needs import not_installed
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.secrets import remember_secrets, without_known_secrets
from turngap.core.untrusted import harmless
from turngap.core.wording import minutes_words, seconds_left

if TYPE_CHECKING:
    from turngap.core.results import Turn
    from turngap.play.plan import PlayPlan, Progress

P = ParamSpec("P")
Result = TypeVar("Result")

# How often a replay looks whether the one before it has ended.
LOOK_AGAIN_MS = 50.0


class _Playing(Generic[Result]):
    """A coroutine that runs to its end in a thread with an event loop of its own."""

    def __init__(self, main: Coroutine[Any, Any, Result]) -> None:
        self._main = main
        self._begun = threading.Event()
        thread = ThreadPoolExecutor(1, thread_name_prefix="turngap")
        self.done = thread.submit(copy_context().run, asyncio.run, self._run())
        thread.shutdown(wait=False)

    async def _run(self) -> Result:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        return await self._main

    def stop(self) -> None:
        """End the coroutine as Ctrl-C does; played turns are stored. `done` says when it ended."""
        self._begun.wait()
        with suppress(RuntimeError):  # its loop has closed: it has ended by itself
            self._loop.call_soon_threadsafe(self._task.cancel if self._task else bool)


def blocking(play: Callable[P, Coroutine[Any, Any, Result]]) -> Callable[P, Result]:
    """Wrap a coroutine as a plain function that returns when everything has been played."""

    @wraps(play)
    def plain(*args: P.args, **kwargs: P.kwargs) -> Result:
        main = _alone(play(*args, **kwargs))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(main)
        playing = _Playing(main)
        with _interruptible():
            try:
                return playing.done.result()
            except KeyboardInterrupt:
                playing.stop()
                wait([playing.done])
                raise

    return plain


def awaitable(play: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """Build the async twin of a `blocking` function; the awaiting event loop runs on meanwhile."""
    coroutine: Callable[P, Coroutine[Any, Any, Result]] = getattr(play, "__wrapped__")  # noqa: B009

    @wraps(coroutine)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> Result:
        playing = _Playing(_alone(coroutine(*args, **kwargs)))
        done = asyncio.wrap_future(playing.done)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            playing.stop()
            await asyncio.gather(done, return_exceptions=True)
            raise

    name = f"{coroutine.__name__}_async"
    twin.__name__ = twin.__qualname__ = name
    twin.__doc__ = f"Await what `{coroutine.__name__}` returns; it takes the same arguments.\n"
    return twin


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt a wait in the main thread.

    `asyncio.run` answers Ctrl-C by cancelling its task, which would notice only after the wait.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    if before is None or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_PLAYS = threading.Lock()
# Set where one of these plays, and in what it calls.
_WITHIN: ContextVar[bool] = ContextVar("within", default=False)


async def _alone(main: Coroutine[Any, Any, Result]) -> Result:
    """Play while nothing else in this process plays: two callers would disturb each other.

    Errors end up in notebooks and CI logs, so the secrets of URLs are removed from them.
    """
    if _WITHIN.get():
        main.close()
        raise InputError(
            "api.nested",
            "a replay, check, comparison or load test was started in the on_turn of another one",
            hint="start it after the first one has returned",
        )
    clock = MonotonicClock()
    try:
        while not _PLAYS.acquire(blocking=False):
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(LOOK_AGAIN_MS))
    except asyncio.CancelledError:
        main.close()
        raise
    try:
        with quietly():
            import_module("turngap.play.run")
        _WITHIN.set(True)
        remember_secrets(os.environ)
        return await main
    except TurngapError as e:
        if e.stored is not None:
            e.add_note(_kept(e.stored))
        raise e from None
    except ImportError as e:
        if (missing := not_installed(e)) is None:
            raise
        raise missing from e
    finally:
        main.close()  # it never began if the import above failed
        _PLAYS.release()


@contextmanager
def quietly() -> Iterator[None]:
    """Keep pipecat quiet while it is first imported: it logs a greeting, and it warns.

    It warns of its own deprecations, which would fail tests that turn warnings into errors.
    """
    from loguru import logger

    first = "pipecat" not in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if first:
            logger.disable("pipecat")
        try:
            yield
        finally:
            if first:
                logger.enable("pipecat")


class Line:
    """A line on stderr that shows how far a play is, in a terminal or a notebook; silent elsewhere.

    Args:
        total: the number of steps, or of seconds, as far as it is known.
        planned_s: how long the whole play is expected to take.
        on: False: silent everywhere.
    """

    def __init__(self, total: float, planned_s: float | None = None, *, on: bool = True) -> None:
        notebook = type(sys.stderr).__module__.startswith("ipykernel")
        self._on = on and (notebook or sys.stderr.isatty())
        self._total, self._planned_s = total, total if planned_s is None else planned_s
        self._clock = MonotonicClock()
        self._begun_ns, self._width, self._done, self._what = self._clock.now_ns(), 0, 0, ""

    @classmethod
    @contextmanager
    def shown(
        cls, plan: "PlayPlan", on_turn: "Callable[[Turn], None] | None", on: bool
    ) -> "Iterator[Progress]":
        """Show a plan's progress for as long as it is played."""
        from turngap.play.plan import Progress

        with cls(plan.turns, plan.minutes * 60, on=on) as line:

            def count(turn: "Turn") -> None:
                line.reach(line._done + 1, "turns")
                if on_turn is not None:
                    on_turn(turn)

            line.reach(0, "turns")
            yield Progress(on_step=line.step, on_turn=count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def step(self, what: str) -> None:
        """Name the present work."""
        self._what = f": {what}"
        self.reach(self._done, "turns")

    def reach(self, done: float, unit: str) -> None:
        """Show how much is done, and about how long the rest takes."""
        self._done, total = done, max(done, self._total)
        elapsed_s = (self._clock.now_ns() - self._begun_ns) / NS_PER_S
        left_s = seconds_left(done / total, elapsed_s, self._planned_s) if total else None
        left = "" if left_s is None or done >= total else f", {minutes_words(left_s / 60)} left"
        self._write(f"{done:.0f} of {total:.0f} {unit}{left}{self._what}")

    def _write(self, text: str) -> None:
        if self._on:
            shown = harmless(without_known_secrets(text))[:78]
            sys.stderr.write(f"\r{shown.ljust(self._width)}" + ("" if text else "\r"))
            sys.stderr.flush()
            self._width = len(shown)


def _kept(stored: Any) -> str:
    from turngap.store.runs import Run

    if not isinstance(stored, Run):
        return f"what was played is stored in {stored.path}"
    played = f"{len(stored.turns)} of {stored.record.planned_turns} turns were played"
    return f"{played}; they are stored in {stored.path}"
