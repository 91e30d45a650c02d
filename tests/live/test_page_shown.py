"""Texts and drawings of the page, with an agent that the test controls. No real time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from page_browser import (
    Microphone,
    Opened,
    PageServer,
    Puppet,
    chromium,
    needs_chromium,
    opened,
)
from playwright.async_api import Browser

from turngap.core.stages import MARKS

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

SESSION = {
    "turngap": "session",
    "id": "abc",
    "kept": True,
    "budget_ms": 800,
    "audio": {"in_rate": 16_000, "out_rate": 24_000},
    "stages": list(MARKS),
}
MODELS = {
    "turngap": "llm",
    "current": "sim",
    "offered": [
        {"name": "sim", "state": "ready"},
        {"name": "other", "state": "unloaded"},
        {"name": "broken", "state": "failed", "why": "no such model"},
    ],
    "switched": None,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """In a quiet room: the beeps of Chromium's own microphone would be turns."""
    room = Microphone().pause(1000).write(tmp_path_factory.mktemp("room") / "quiet.wav")
    async with chromium(microphone=room) as one:
        yield one


@dataclass
class Talk:
    tab: Opened
    agent: Puppet
    server: PageServer

    @property
    def page(self) -> Any:
        return self.tab.page

    async def notice(self, *words: str) -> str:
        return await self.tab.text("#notice", lambda text: all(word in text for word in words))


@asynccontextmanager
async def talk(
    browser: Browser, *greeting: dict[str, Any], script: str = "", **context: Any
) -> AsyncIterator[Talk]:
    """The page beside a puppet."""
    async with Puppet(*greeting) as agent, PageServer(agent.port) as server:
        tab = await opened(browser, server.url, script, **context)
        try:
            yield Talk(tab, agent, server)
        finally:
            await tab.page.context.close()


async def typed(talking: Talk, text: str) -> dict[str, Any]:
    await talking.page.fill("#text", text)
    await talking.page.press("#text", "Enter")
    return await talking.agent.heard("turngap.say")


async def test_it_says_who_it_talks_to_and_how_the_line_is(browser: Browser) -> None:
    async with talk(browser, SESSION, MODELS) as t:
        await t.tab.text("h1", lambda text: text == "turngap test")
        await t.tab.state("not connected")
        await t.tab.start()
        assert await t.page.inner_text("#talk") == "Stop"
        assert await t.page.is_visible("#mute")
        await t.page.click("#talk")
        await t.tab.state("not connected")
        assert not await t.page.is_visible("#mute")
        assert t.tab.problems == []


async def test_words_are_shown_as_text_whatever_they_hold(browser: Browser) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script><b>bold</b>'
    async with talk(browser, {**SESSION, "id": evil}, MODELS) as t:
        await t.tab.start()
        await typed(t, evil)
        await t.agent.say("bot-llm-started")
        await t.agent.say("bot-llm-text", {"text": evil})
        await t.tab.text("#turns", lambda text: text.count("<b>bold</b>") == 2)
        await t.agent.tell({"turngap": "refused", "message": evil, "hint": evil})
        await t.notice("<b>bold</b>")
        await t.agent.tell(
            {**MODELS, "current": evil, "offered": [{"name": evil, "state": evil}] * 2}
        )
        await t.agent.say("error", {"error": evil})
        await t.notice("The agent reports", "<script>")
        assert (
            await t.page.evaluate("document.querySelectorAll('img, b b, script:not([src])').length")
            == 0
        )
        assert await t.page.title() == "turngap"
        assert t.tab.problems == []


async def test_another_model_is_picked_during_the_conversation(browser: Browser) -> None:
    async with talk(browser, SESSION, MODELS) as t:
        assert not await t.page.is_visible("#llm")
        await t.tab.start()
        options = await t.tab.text("#llm", lambda text: "sim" in text)
        assert options.split("\n") == ["sim", "other (unloaded)", "broken (no such model)"]
        assert await t.page.is_disabled("#llm option[value=broken]")
        await typed(t, "hello")
        await t.page.select_option("#llm", "other")
        await t.agent.tell({"turngap": "refused", "re": "turngap.llm", "message": "not now"})
        await t.notice("not now")
        assert await t.page.input_value("#llm") == "sim"
        await t.page.select_option("#llm", "other")
        await t.agent.heard("turngap.llm")
        assert await t.agent.heard("turngap.llm") == {"use": "other"}
        await t.agent.tell({**MODELS, "current": "other", "switched": {"cancelled": True}})
        kept = await t.agent.heard("turngap.turn")
        assert (kept["turn"], kept["ended"]) == (1, "interrupted")
        await typed(t, "and now?")
        turns = await t.tab.turns()
        assert [turn["llm"] for turn in turns] == ["sim", "other"]
        await t.tab.text("#turns", lambda text: "turn 2 · other" in text)
        figures = {
            "n": 1,
            "hits": 1,
            "p50_ms": None,
            "why_no_p50": "n=1, needs 5",
            "cut_ins": {"percent": "0 %", "words": "cut in on 0 of 1 turn"},
            "percent": "100 %",
            "words": "1 of 1",
            "caption": "p50 – (n=1, needs 5)",
        }
        other = {**figures, "p50_ms": 512.4, "caption": "p50 512 ms · cut in on 0 of 1 turn"}
        told = {"all": figures, "llms": {"sim": figures, "other": other}}
        await t.agent.tell({"turngap": "kept", "figures": told})
        shown = await t.tab.text("#gaps", lambda text: "other" in text)
        assert "sim p50 – (n=1, needs 5)" in shown
        assert "other p50 512 ms · cut in on 0 of 1 turn" in shown
        assert await t.page.inner_text("#rate") == "100 %"
        assert await t.page.inner_text("#rate-n") == "1 of 1"
        assert await t.page.inner_text("#cut-ins") == "0 %"
        assert await t.page.inner_text("#cut-ins-n") == "cut in on 0 of 1 turn"
        assert await t.page.locator("#gaps .median").count() == 1


async def test_a_typed_turn_grows_on_both_sides_and_is_told(browser: Browser) -> None:
    async with talk(browser, SESSION, MODELS) as t:
        await t.tab.start()
        assert await typed(t, "  what time is it? ") == {"turn": 1, "text": "what time is it?"}
        assert await t.page.input_value("#text") == ""
        for text in ("Half", " past", " nine."):
            await t.agent.say("bot-llm-text", {"text": text})
        await t.tab.text("#turns", lambda text: "Half past nine." in text)
        await typed(t, "thanks")
        told = await t.agent.heard("turngap.turn")
        assert (told["turn"], told["input"], told["ended"]) == (1, "typed", "interrupted")
        assert told["start_ns"] == told["end_ns"] <= told["ended_ns"]
        assert told["offset"]["n"] >= 1


async def test_what_is_typed_is_no_gap(browser: Browser) -> None:
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        await typed(t, "hello")
        await t.page.evaluate("""async () => {
          const { tracker } = await import("/page/main.js"), { startNs } = tracker.open;
          const at = { ns: startNs + 9e8, receivedNs: startNs + 9e8, leadNs: 0, userLastNs: 0 };
          tracker.agentStart(at);
        }""")
        shown = await t.tab.text("#turns", lambda text: "answered" in text)
        assert "900 ms" in shown
        assert await t.page.inner_text("#page-ms") == "–"


async def test_who_stops_has_the_turn_told_before_the_line_is_closed(browser: Browser) -> None:
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        await typed(t, "hello")
        await t.page.click("#talk")
        told = await t.agent.heard("turngap.turn")
        assert (told["turn"], told["ended"]) == (1, "interrupted")
        assert await t.agent.left() == 1000


async def test_a_lost_line_ends_the_turn_and_the_next_call_is_a_new_one(browser: Browser) -> None:
    async with talk(browser, SESSION, MODELS) as t:
        await t.tab.start()
        await typed(t, "are you there?")
        t.server.cut()
        await t.notice("The line to the server is lost", "start again")
        await t.tab.state("not connected")
        (turn,) = await t.tab.turns()
        assert (turn["ended"], turn["outcome"]) == ("line_lost", "error")
        await t.tab.start()
        assert await t.page.inner_text("#notice") == ""
        assert (await typed(t, "again"))["turn"] == 1


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (1013, "full: 8 of 8 conversations", ["full: 8", "Start again"]),
        (1007, "expected binary messages", ["expected binary", "Reload"]),
        (4401, "no token: open the address that turngap talk printed", ["no token: open"]),
        (1011, "the agent failed: boom", ["boom", "Start again"]),
    ],
)
async def test_a_server_that_hangs_up_is_told_with_its_reason(
    browser: Browser, code: int, reason: str, words: list[str]
) -> None:
    async with talk(browser) as t:
        t.agent.refusal = (code, reason)
        await t.page.click("#talk")
        await t.notice(*words)
        await t.tab.state("not connected")
        assert await t.page.inner_text("#talk") == "Start talking"
        t.agent.refusal = None
        await t.tab.start()
        assert await t.page.inner_text("#notice") == ""


async def test_what_is_no_frame_ends_the_line(browser: Browser) -> None:
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        await t.agent.send("this is no protobuf frame")
        await t.notice("a text message", "Reload")
        await t.tab.start()
        await t.agent.send(b"\x12\x06\x1a\x01x\x20\x80\x7d")  # one byte of audio
        await t.notice("no PCM16 mono")


async def test_a_second_tab_is_told_that_there_is_a_first(browser: Browser) -> None:
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        second = await t.page.context.new_page()
        await second.goto(t.server.url)
        await second.click("#talk")
        other = Opened(second, [])
        await other.text("#notice", lambda text: "open in another tab" in text)
        await t.page.click("#talk")
        await t.tab.state("not connected")
        # The browser frees the first tab's lock a moment after it was given back.
        await second.wait_for_function(
            "async () => !(await navigator.locks.query()).held.some((l) => l.name === 'turngap')"
        )
        await other.start()


REFUSED = (
    "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', '%s'); };"
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NotAllowedError", ["refused", "Allow it"]),
        ("NotFoundError", ["no microphone", "Plug one in"]),
        ("NotReadableError", ["Another program", "Close it"]),
        ("OddError", ["cannot be used: no"]),
    ],
)
async def test_without_a_microphone_one_can_type(
    browser: Browser, error: str, words: list[str]
) -> None:
    async with talk(browser, SESSION, script=REFUSED % error) as t:
        await t.page.click("#talk")
        await t.notice(*words, "type your turns")
        await t.tab.state("connected")
        assert not await t.page.is_visible("#mute")
        assert (await typed(t, "hello"))["turn"] == 1
        assert t.agent.audio == []
        # What was said of the microphone stands until it is put right.
        await t.notice(*words)


# The browser's question is open until the test answers it.
ASKED = """
  const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  window.answers = [];
  window.streams = [];
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    await new Promise((answer) => answers.push(answer));
    const stream = await ask(wanted);
    streams.push(stream);
    return stream;
  };
"""
ENDED = "streams.map((stream) => stream.getTracks()[0].readyState)"


async def test_who_stops_before_the_microphone_is_allowed_leaves_it_off(browser: Browser) -> None:
    async with talk(browser, SESSION, script=ASKED) as t:
        await t.page.click("#talk")
        await t.page.wait_for_function("() => answers.length === 1")
        await t.page.click("#talk")
        await t.tab.state("not connected")
        await t.page.evaluate("answers[0]()")
        await t.page.wait_for_function(f"() => {ENDED}.join() === 'ended'")
        assert await t.page.inner_text("#notice") == ""
        assert not [asked for asked in t.server.asked if asked.startswith("/live")]
        await t.page.click("#talk")
        await t.page.wait_for_function("() => answers.length === 2")
        await t.page.evaluate("answers[1]()")
        await t.tab.state("connected")
        assert t.tab.problems == []


async def test_a_microphone_that_is_pulled_out_is_told(browser: Browser) -> None:
    script = """
      const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (wanted) => (window.stream = await ask(wanted));
    """
    async with talk(browser, SESSION, script=script) as t:
        await t.tab.start()
        await t.page.evaluate("stream.getTracks()[0].dispatchEvent(new Event('ended'))")
        await t.notice("microphone is gone")


async def test_saving_and_downloading(browser: Browser) -> None:
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        assert not await t.page.is_visible("#save")  # nothing to be saved yet
        await typed(t, "hello")
        await typed(t, "hello?")
        path = "/api/runs/abc/scenario"
        t.server.answers[path] = {
            "name": "my-talk",
            "turns": 2,
            "left_out": [],
            "zip": f"{path}/my-talk.zip",
            "folder": "recorded",
            "replay": "turngap replay recorded/my-talk.yaml",
        }
        await t.page.fill("#name", "my-talk")
        await t.page.press("#name", "Enter")
        said = await t.tab.text("#saved", lambda text: "2 turns saved" in text)
        assert "turngap replay recorded/my-talk.yaml" in said
        assert await t.page.get_attribute("#saved a", "href") == f"{path}/my-talk.zip"
        t.server.answers[path] = {
            "error": {"message": "nothing is kept yet", "hint": "say something"}
        }
        await t.page.press("#name", "Enter")
        await t.tab.text("#saved", lambda text: "nothing is kept yet: say something." in text)
        assert await t.page.get_attribute("#run", "href") == "/api/runs/abc.zip"
        # Stopped, it can still be saved.
        await t.page.click("#talk")
        assert await t.page.is_visible("#save")
        await t.server.__aexit__()
        await t.page.press("#name", "Enter")
        await t.tab.text("#saved", lambda text: "Nothing answers" in text)


async def test_a_turn_shows_the_stages_that_the_server_judged(browser: Browser) -> None:
    """The server knows which marks cannot be true; the page's own stages are a first sight."""
    async with talk(browser, SESSION) as t:
        await t.tab.start()
        await t.page.evaluate("""async () => {
          const { tracker } = await import("/page/main.js");
          tracker.start("voice", 1e9);
          tracker.userEnd({ ns: 2e9 });
          tracker.agentStart({ ns: 2.4e9, receivedNs: 2.4e9, leadNs: 0, userLastNs: 2e9 });
          tracker.marks({ turn: 1, marks: { endpoint: 2.1e9, sent: 2.39e9 } });
          tracker.close(3e9, "reply_done");
        }""")
        (turn,) = await t.tab.turns()
        assert "endpoint" in {stage["name"] for stage in turn["stages"]}
        judged = [{"name": "unattributed", "ns": 400_000_000, "ms": 400.0}]
        figures = {"all": {"percent": "100 %", "words": "1 of 1"}, "llms": {}}
        kept = {"turngap": "kept", "turn": 1, "record": {"stages": judged}, "figures": figures}
        await t.agent.tell(kept)
        await t.tab.text("#rate-n", lambda text: text == "1 of 1")
        (turn,) = await t.tab.turns()
        assert turn["stages"] == judged
