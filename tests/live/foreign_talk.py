"""A turn said at the page to a foreign agent, by a stand-in for the page."""

from live_server import CLOCK, Page, silence, tone

from turngap.caller.endpoint import Endpoint
from turngap.live.answering import ForeignAgent
from turngap.testing.agent import Reply, ScriptedAgent

SPEECH_MS = 400


def foreign(url: str) -> ForeignAgent:
    return ForeignAgent(Endpoint(url), "pipecat", 16_000, CLOCK)


async def a_turn(page: Page) -> None:
    """Say something, hear the answer out, and report both."""
    assert (await page.ready())["foreign"] is True
    await page.ping()
    spoke_ns = CLOCK.now_ns()
    start_ns, ended_ns = await page.speak(tone(600), silence(400))
    end_ns = ended_ns - 400_000_000
    await page.until(lambda: page.agent_samples == SPEECH_MS * 24)
    onset_ns = end_ns + 300_000_000
    await page.say("turngap.played", {"played": [[0, page.agent_samples, onset_ns]]})
    await page.until(lambda: "bot-stopped-speaking" in page.rtvi)
    # The page's clock is placed so that its turn ended when it began to speak. The agent's facts
    # came at some time since then, and by so much the clock may be wrong.
    offset_ns, bound_ns = spoke_ns - end_ns, CLOCK.now_ns() - spoke_ns + 600_000_000
    stretch = {"onset_ns": onset_ns, "received_ns": onset_ns, "end_ns": onset_ns + 400_000_000}
    turn = {
        "turn": 1,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "agent": [stretch],
        "ended_ns": onset_ns + 700_000_000,
        "ended": "reply_done",
        "stall_ms": 0.1,
        "view": {"page_ms": 300.0},
        "offset": {"offset_ns": offset_ns, "bound_ns": bound_ns, "n": 3},
    }
    await page.say("turngap.turn", turn)
    await page.next("kept")


def answers() -> ScriptedAgent:
    return ScriptedAgent((Reply(delay_ms=50, speech_ms=SPEECH_MS, paced=False),))
