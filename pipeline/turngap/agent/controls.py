"""What a caller may ask of a running conversation: another LLM, or a turn in writing."""

from collections.abc import Awaitable, Callable
from typing import Any

from loguru import logger
from pipecat.frames.frames import LLMMessagesAppendFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frameworks.rtvi import RTVIProcessor

from turngap.agent.access import TEXT_CHARS
from turngap.agent.switching import LlmSwitch
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap.core.messages import LLM, SAY, refusal
from turngap.core.spoken import OUT_OF_DOMAIN
from turngap.core.untrusted import whole


class Controls:
    """Answers a caller's RTVI client messages, or refuses them with the reason.

    What is typed and not known, by `knows`, is marked as speech is that a recogniser did not know.
    """

    def __init__(
        self, switch: LlmSwitch, clock: Clock, knows: Callable[[str], bool] = lambda text: True
    ) -> None:
        self._knows = knows
        self._switch = switch
        self._clock = clock

    def attach(self, worker: PipelineWorker) -> None:
        asked: dict[str, Callable[[PipelineWorker, dict[str, Any]], Awaitable[None]]] = {
            LLM: self._use,
            SAY: self._say,
        }

        async def on_client_ready(rtvi: RTVIProcessor) -> None:
            await self._tell(rtvi)

        async def on_client_message(rtvi: RTVIProcessor, message: Any) -> None:
            if answer := asked.get(message.type):
                try:
                    data = message.data if isinstance(message.data, dict) else {}
                    await answer(worker, data)
                except TurngapError as e:
                    await rtvi.send_server_message(refusal(message.type, e))

        worker.rtvi.add_event_handler("on_client_ready", on_client_ready)
        worker.rtvi.add_event_handler("on_client_message", on_client_message)

    async def _tell(
        self, rtvi: RTVIProcessor, *, loading: str = "", switched: dict[str, Any] | None = None
    ) -> None:
        offered = self._switch.offers.as_json()
        for row in offered:
            if row["name"] == loading:
                row["state"] = "loading"
        message = {"turngap": "llm", "current": self._switch.current, "offered": offered}
        await rtvi.send_server_message({**message, "switched": switched})

    async def _use(self, worker: PipelineWorker, data: dict[str, Any]) -> None:
        offers, before = self._switch.offers, self._switch.current
        name = offers.get(str(data.get("use"))).name
        if offers.state(name) != "ready":
            await self._tell(worker.rtvi, loading=name)
        try:
            cancelled = await self._switch.use(name)
        except Exception as e:
            await self._tell(worker.rtvi)
            raise _unusable(name, e) from e
        switched = None
        if cancelled is not None:
            now_ns = self._clock.now_ns()
            switched = {"from": before, "to": name, "at_ns": now_ns, "cancelled": cancelled}
        await self._tell(worker.rtvi, switched=switched)

    async def _say(self, worker: PipelineWorker, data: dict[str, Any]) -> None:
        text = str(data.get("text") or "").strip()
        if not text or len(text) > TEXT_CHARS:
            raise InputError(
                "say.length", f"{len(text)} characters of text, expected 1 to {TEXT_CHARS}"
            )
        turn = data.get("turn")
        try:
            turn = None if turn is None else whole(turn)
        except ValueError as e:
            raise InputError("say.turn", f"the turn of a typed text: {e}") from e
        content = text if self._knows(text) else f"{OUT_OF_DOMAIN} {text}"
        messages: list[Any] = [{"role": "user", "content": content}]
        await worker.rtvi.interrupt_bot()
        # The interruption commits what was spoken so far to the context, before the text.
        await worker.flush_pipeline()
        await worker.rtvi.push_frame(LLMMessagesAppendFrame(messages, run_llm=True))
        await worker.rtvi.send_server_message({"turngap": "said", "turn": turn})


def _unusable(name: str, error: Exception) -> TurngapError:
    if isinstance(error, TurngapError):
        return error
    logger.opt(exception=error).warning(f"the LLM {name} cannot be used")
    why = str(error) or type(error).__name__
    return AgentError("llm.failed", f"the LLM {name!r} cannot be used: {why}")
