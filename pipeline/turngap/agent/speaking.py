"""From the LLM's tokens to speech on its way to the caller, as the stack's settings say."""

from collections.abc import Callable
from dataclasses import dataclass

from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.utils.text.base_text_aggregator import BaseTextAggregator

from turngap.agent.feed import SpeechFeed
from turngap.agent.paced import PacedText
from turngap.agent.speech_output import Count, SpeechOutput
from turngap.agent.stack import Stack
from turngap.agent.text import ClauseAggregator, ReplyAggregator, WordAggregator
from turngap.core.clock import Clock

# `sentence` is the TTS service's own way, `adaptive` is paced.
AGGREGATORS: dict[str, type[BaseTextAggregator]] = {
    "token": WordAggregator,
    "clause": ClauseAggregator,
    "reply": ReplyAggregator,
}


@dataclass(frozen=True, slots=True)
class Speaking:
    """The processors from the LLM to the output, in order.

    Attributes:
        playing: to be told when the caller hears a reply from (ns), where somebody behind these
            processors decides that.
    """

    processors: tuple[FrameProcessor, ...]
    playing: Callable[[int], None]


def speaking(
    stack: Stack,
    tts: FrameProcessor,
    clock: Clock,
    *,
    feed: SpeechFeed,
    gated: bool,
    count: Count = lambda name, value: None,
) -> Speaking:
    """How a reply is spoken in one session, whose engines' speed is known to `feed`.

    `gated` says that something behind the TTS may keep a reply from being heard; `count` is told
    what happened to the speech, by name.
    """
    paced = PacedText(feed, clock) if stack.text.aggregation == "adaptive" else None
    aggregator = AGGREGATORS.get(stack.text.aggregation)
    gathered = [LLMTextProcessor(text_aggregator=aggregator())] if aggregator else []
    if paced is None and not stack.audio.cut_lead_in:
        return Speaking((*gathered, tts), lambda at_ns: None)
    output = SpeechOutput(
        feed if paced else None,
        clock,
        cut_lead=stack.audio.cut_lead_in,
        gated=gated,
        stir=paced.stir if paced else lambda: None,
        count=count,
    )
    if paced is not None:
        paced.heard_by(output.look_again)
    return Speaking((*([paced] if paced else gathered), tts, output), output.playing)
