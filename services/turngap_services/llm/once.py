"""What pipecat's services on OpenAI's client need to be measured honestly."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat.services.openai.llm import OpenAILLMService as _Base
else:
    _Base = object


class AskedOnce(_Base):
    """A request is sent once: put before a service of pipecat's that derives from OpenAI's.

    The client's two silent retries would turn a server that refuses or drops requests into one that
    seems slow.
    """

    def create_client(self, *args: Any, **kwargs: Any) -> Any:
        """The client of one session, with keep-alive connections."""
        return super().create_client(*args, **kwargs).with_options(max_retries=0)

    async def cleanup(self) -> None:
        """Close the session's connections, which pipecat 1.14 leaves open."""
        await super().cleanup()
        await self._client.close()
