"""What pipecat's services of other people's models need to be measured honestly."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import LLMThoughtTextFrame

from turngap_services.llm.wire import THOUGHTS

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from pipecat.services.openai.llm import OpenAILLMService as _Base
    from pipecat.utils.errors import ErrorCategory
else:
    _Base = object


class WholeReply:
    """A streamed reply that fails if it stops before its end.

    A server that dies may leave a connection that was closed in order, which the client takes for
    the end of the reply.

    Args:
        stream: the stream of OpenAI's or Anthropic's client.
        ends: returns whether a chunk says that the reply is finished.
        over: returns, after the last chunk, whether the server said so in another way.
        note: called with each chunk first.
    """

    def __init__(
        self,
        stream: Any,
        ends: Callable[[Any], bool],
        over: Callable[[], bool] = lambda: False,
        note: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._stream = stream
        self._ends = ends
        self._over = over
        self._note = note

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the chunks.

        Raises:
            ConnectionError: the reply stopped without anything that finishes it.
        """
        finished = False
        chunks = aiter(self._stream)
        try:
            async for chunk in chunks:
                finished = finished or self._ends(chunk)
                if self._note is not None:
                    await self._note(chunk)
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):  # the garbage collector would close it too late
                await chunks.aclose()
        if not (finished or self._over()):
            raise ConnectionError("the server ended its reply in the middle")

    async def close(self) -> None:
        await self._stream.close()


class _Done:
    """Notes `data: [DONE]`, with which many servers end a stream that has no `finish_reason`.

    OpenAI's client swallows it, so this takes the place of the stream's decoder, which is private.
    A client that has none there is believed that a reply which ended in order is whole, and a
    warning says so: no reply is called broken because of another version of a library.
    """

    def __init__(self, stream: Any) -> None:
        self._decoder: Any = getattr(stream, "_decoder", None)
        self.seen = not hasattr(self._decoder, "aiter_bytes")
        if self.seen:
            logger.warning("this version of openai does not show whether a reply broke off")
        else:
            stream._decoder = self

    async def aiter_bytes(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for event in self._decoder.aiter_bytes(chunks):
            self.seen = self.seen or event.data.startswith("[DONE]")
            yield event


def _finished(chunk: "ChatCompletionChunk") -> bool:
    """Return whether this is a choice's last chunk, which has a reason for the end."""
    return any(choice.finish_reason for choice in chunk.choices or ())


class AskedOnce(_Base):
    """Sends each request once. A mixin before a service of pipecat's that derives from OpenAI's.

    The client's two silent retries would turn a server that refuses or drops requests into one that
    seems slow.
    """

    async def get_chat_completions(self, context: Any) -> Any:
        stream = await super().get_chat_completions(context)
        done = _Done(stream)
        return WholeReply(stream, _finished, lambda: done.seen, self._note_thoughts)

    async def _note_thoughts(self, chunk: "ChatCompletionChunk") -> None:
        """Push what a server tells of the model's thoughts apart from the answer."""
        for choice in chunk.choices or ():
            told = (getattr(choice.delta, field, None) for field in THOUGHTS)
            if thought := next(filter(None, told), None):
                await self.push_frame(LLMThoughtTextFrame(text=str(thought)))

    def create_client(self, *args: Any, **kwargs: Any) -> Any:
        return super().create_client(*args, **kwargs).with_options(max_retries=0)

    def _classify_error(self, exception: Exception) -> "ErrorCategory | None":
        # pipecat 1.14 does not know a broken connection by the client's class for it.
        from openai import APIConnectionError
        from pipecat.utils.errors import ErrorCategory

        if isinstance(exception, APIConnectionError):
            return ErrorCategory.CONNECTIVITY
        return super()._classify_error(exception)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()  # pipecat 1.14 leaves the session's connections open
