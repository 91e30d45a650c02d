"""Unknown utterances are answered without the LLM, and forgotten."""

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import running

from turngap.agent.tools import DomainAnswer, forget_outside
from turngap.backends import COUNTS
from turngap.core.counts import OUT_OF_DOMAIN, OUTSIDE
from turngap.scenario.library import Domain

EXAMPLES = ("make me a tea", "call a taxi")
DOMAIN = Domain({"tea": "make me a tea", "taxis": "call a taxi"}, EXAMPLES, EXAMPLES)
PARAMS = PipelineParams()
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def agent(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def asked(*messages: dict[str, str], speculation: bool = False) -> LLMContextFrame:
    context = LLMContext([SYSTEM, *messages])  # type: ignore[list-item]
    return LLMContextFrame(context, speculation=speculation)


async def test_the_answer_is_a_whole_reply_that_says_what_it_was() -> None:
    async with running(DomainAnswer(DOMAIN), params=PARAMS) as line:
        await line.send(asked(user(f"and {OUT_OF_DOMAIN}")))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    (text,) = line.of(LLMTextFrame)
    assert text.text == DOMAIN.offer(0)
    assert text.metadata[COUNTS] == {OUTSIDE: 1}
    assert len(line.of(LLMFullResponseStartFrame)) == 1
    assert line.of(LLMContextFrame) == []  # no LLM is asked


async def test_twice_in_a_row_is_answered_otherwise_and_a_known_turn_begins_anew() -> None:
    turns = [user(OUT_OF_DOMAIN), user(OUT_OF_DOMAIN), user("call a taxi"), user(OUT_OF_DOMAIN)]
    async with running(DomainAnswer(DOMAIN), params=PARAMS) as line:
        await line.send(*map(asked, turns))
        await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == 3)
    assert [f.text for f in line.of(LLMTextFrame)] == [DOMAIN.offer(n) for n in (0, 1, 0)]


async def test_the_llm_never_sees_it() -> None:
    before = [user("make me a tea"), agent("Here it is.")]
    outside = [user(OUT_OF_DOMAIN), agent("I can help with"), user(OUT_OF_DOMAIN), agent("tea.")]
    async with running(DomainAnswer(DOMAIN), params=PARAMS) as line:
        await line.send(asked(*before, *outside, user("call a taxi")))
        await line.until(lambda: bool(line.of(LLMContextFrame)))
    (frame,) = line.of(LLMContextFrame)
    assert frame.context.messages == [SYSTEM, *before, user("call a taxi")]


async def test_a_guess_is_refused_so_that_it_is_asked_again() -> None:
    async with running(DomainAnswer(DOMAIN), params=PARAMS) as line:
        await line.send(asked(user(OUT_OF_DOMAIN), speculation=True))
        await line.until(lambda: bool(line.of(EagerEndOfTurnCancelFrame)))
    assert line.of(LLMTextFrame) == []
    assert line.of(LLMContextFrame) == []


async def test_a_text_is_checked_while_the_model_knows_the_domain_only() -> None:
    narrow = [True, False]
    async with running(DomainAnswer(DOMAIN, lambda: narrow[0]), params=PARAMS) as line:
        await line.send(asked(user("what is the capital of France?")))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        await line.send(asked(user("Call me a taxi!")))
        await line.until(lambda: len(line.of(LLMContextFrame)) == 1)
        narrow.pop(0)
        await line.send(asked(user("what is the capital of France?")))
        await line.until(lambda: len(line.of(LLMContextFrame)) == 2)
    assert [f.text for f in line.of(LLMTextFrame)] == [DOMAIN.offer(0)]


def test_a_conversation_without_it_is_left_alone() -> None:
    messages = [SYSTEM, user("call a taxi"), agent("Where to?")]
    context = LLMContext(list(messages))  # type: ignore[arg-type]
    forget_outside(context, lambda message: False)
    assert context.messages == messages
