"""Whole replies from tokens: nothing before the end, nothing lost, nothing kept."""

from turngap.agent.speech_output import ReplyAggregator


async def test_a_reply_comes_whole_at_its_end_and_the_next_one_is_new() -> None:
    aggregator = ReplyAggregator()
    tokens = ["Well,", " hello", " there.", " Bye."]
    assert [a for token in tokens async for a in aggregator.aggregate(token)] == []
    assert aggregator.text.text == "Well, hello there. Bye."
    whole = await aggregator.flush()
    assert whole is not None
    assert whole.text == "Well, hello there. Bye."
    assert await aggregator.flush() is None


async def test_an_interrupted_reply_is_dropped() -> None:
    aggregator = ReplyAggregator()
    assert [a async for a in aggregator.aggregate("Well, ")] == []
    await aggregator.handle_interruption()
    assert await aggregator.flush() is None
