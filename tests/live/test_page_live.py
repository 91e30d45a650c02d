"""The page for real: a microphone that plays recordings, Chromium, an agent."""

import json
import re
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import quiet
from page_browser import (
    Microphone,
    PageServer,
    Puppet,
    chromium,
    needs_chromium,
    opened,
    process,
    scripted_agent,
)

from turngap.scenario.library import load_scenario
from turngap.testing.agent import Reply, Script

pytestmark = [needs_chromium, pytest.mark.realtime]

SCENARIO = Path(__file__).parents[2] / "scenarios/smart-home.yaml"


def plain(text: str) -> str:
    return re.sub(r"[^a-z' ]", "", text.lower()).strip()


async def test_a_known_delay_is_measured_and_a_barge_in_silences_the_agent(tmp_path: Path) -> None:
    delays = [250.0, 400.0, 550.0, 325.0]
    microphone = Microphone().pause(1500)
    for _ in delays:
        microphone.tone(400).pause(1600)
    microphone.tone(400).pause(1500).tone(500).pause(2500)
    replies = [Reply(delay_ms=delay, speech_ms=300) for delay in delays]
    replies += [Reply(delay_ms=300, speech_ms=4000), Reply(delay_ms=400, speech_ms=300)]
    script = Script(replies=tuple(replies), yield_ms=200)
    async with (
        scripted_agent(script) as port,
        PageServer(port) as server,
        chromium(microphone=microphone.write(tmp_path / "said.wav")) as browser,
    ):
        tab = await opened(browser, server.url)
        await tab.start()
        await tab.watch_drawing()
        turns = await tab.finished(len(replies), timeout_s=microphone.ms / 1000 + 20)
    assert tab.problems == []
    with quiet.measured():
        assert [turn["transcript"] for turn in turns] == [f"utterance {n + 1}" for n in range(6)]
        assert {turn["outcome"] for turn in turns} <= {"answered", "late"}
    for turn in turns:
        assert sum(stage["ns"] for stage in turn["stages"]) == turn["onsetNs"] - turn["endNs"]
    interrupted, barging = turns[-2:]
    with quiet.measured():
        assert (interrupted["ended"], barging["overReply"]) == ("interrupted", True)
    sound = [turn for turn in turns if turn["leftOut"] is None]
    if len(sound) < 4:
        pytest.skip(
            f"{quiet.NOT_MEASURED}the sound device stood still in {6 - len(sound)} of 6 turns"
        )
    errors = [
        abs(turn["gapMs"] - delay)
        for turn, delay in zip(turns, delays, strict=False)
        if turn["leftOut"] is None
    ]
    with quiet.measured():
        assert median(errors) <= 15, errors
        # The agent waits 200 ms before it drops its reply; what was queued here goes with it.
        assert 150 <= barging["yieldNs"] / 1e6 <= 350
        # A turn is drawn within 100 ms of being heard.
        assert median(turn.get("drawnMs", inf) for turn in turns) <= 100


async def test_a_recorded_scenario_is_heard_answered_kept_and_switched(tmp_path: Path) -> None:
    recorded = load_scenario(SCENARIO).scenario.turns[:2]
    microphone = Microphone().pause(1500)
    for turn in recorded:
        microphone.recording(SCENARIO.parent / turn.audio).pause(3800)
    serve = ("-m", "turngap", "serve", "--json", "--port", "0", "--out", str(tmp_path / "runs"))
    async with (
        process(*serve, "--llm", "sim", "--offer", "slow=sim,ttft_ms=600") as ready,
        chromium(microphone=microphone.write(tmp_path / "said.wav")) as browser,
    ):
        tab = await opened(browser, ready["page"].replace("127.0.0.1", "localhost"))
        await tab.start()
        turns = await tab.finished(len(recorded), timeout_s=microphone.ms / 1000 + 30)
        silent_ms = await _switch_in_mid_reply(tab.page)
        await _type(tab.page, "how much is that")
        turns = await tab.finished(len(recorded) + 2, timeout_s=20)
        zipped = await tab.page.evaluate(
            "async () => (await fetch(document.getElementById('run').href)).status"
        )
        await tab.page.click("#talk")
        await tab.state("not connected")
    assert tab.problems == []
    assert zipped == 200
    spoken, typed = turns[: len(recorded)], turns[len(recorded) :]
    # A browser that gets no time makes two turns of one, or hears of another model later.
    with quiet.measured():
        assert [t["input"] for t in turns] == ["voice"] * len(spoken) + ["typed"] * 2
        assert [t["llm"] for t in turns] == ["sim"] * (len(spoken) + 1) + ["slow"]
    _same_as_kept(turns, tmp_path / "runs")
    for turn in spoken:
        with quiet.measured():
            assert turn["outcome"] in ("answered", "late")
            told = {stage["name"] for stage in turn["stages"]}
            assert told > {"endpoint", "llm_first_token", "sent"}
        assert sum(stage["ns"] for stage in turn["stages"]) == turn["onsetNs"] - turn["endNs"]
    with quiet.measured():
        # The time to its first token is drawn around 600 ms, and seldom under half of it. A page
        # without time hears the end of the reply before it as this one's.
        assert (typed[1]["gapMs"] or 0) > 300
        # A browser that gets no time drops some of what its microphone hears.
        for turn, said in zip(spoken, recorded, strict=True):
            assert plain(turn["transcript"]) == plain(said.say)
            assert plain(turn["reply"]) == plain(said.reply or "")
        # Picked while the agent spoke; a page without time may learn of that when it is over.
        assert typed[0]["ended"] == "interrupted"
        assert silent_ms <= 250


# The page's loudspeaker and microphone, joined by a wire of a length to choose.
WIRE = """
  const Context = window.AudioContext, connect = AudioNode.prototype.connect;
  window.AudioContext = class extends Context {
    constructor(options) {
      super(options);
      [this.wire, this.gain] = [this.createDelay(1), this.createGain()];
      this.wire.delayTime.value = 0.04;
      this.microphone = this.createMediaStreamDestination();
      this.wire.connect(this.gain).connect(this.microphone);
      window.context = this;
    }
  };
  AudioNode.prototype.connect = function (to, ...rest) {
    if (to === this.context.destination) connect.call(this, this.context.wire);
    return connect.call(this, to, ...rest);
  };
  navigator.mediaDevices.getUserMedia = async () => window.context.microphone.stream;
"""


async def test_the_way_from_mouth_to_ear_is_measured_with_the_pages_own_sound() -> None:
    async with Puppet() as agent, PageServer(agent.port) as server, chromium() as browser:
        tab = await opened(browser, server.url, WIRE)
        await tab.start()
        assert "not calibrated" in await tab.page.inner_text("#ear-note")
        trips: list[float] = []
        for wire_s in (0.04, 0.12):
            await tab.page.evaluate("(s) => (context.wire.delayTime.value = s)", wire_s)
            await tab.page.click("#calibrate")
            told = await agent.heard("turngap.calibrated")
            with quiet.measured():
                assert told["n"] >= 3
            trips.append(told["round_trip_ms"])
        assert "not calibrated" not in await tab.page.inner_text("#ear-note")
        # Echo cancelling takes time of its own; and asked anew, this microphone hears nothing more.
        await tab.page.check("#speakers")
        await tab.text("#ear-note", lambda text: "not calibrated" in text)
        await tab.page.click("#calibrate")
        await tab.text("#notice", lambda text: "did not hear the page" in text)
        assert "not calibrated" in await tab.page.inner_text("#ear-note")
    # The wire's own length is in it, and what the browser adds to it is the same each time.
    assert trips[0] >= 40
    with quiet.measured():
        assert trips[1] - trips[0] == pytest.approx(80, abs=5)


async def _type(page: Any, text: str) -> None:
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def _switch_in_mid_reply(page: Any) -> float:
    """Return how long after the switch to another model the old one fell silent, ms."""
    await _type(page, "how much is that")
    return await page.evaluate("""async () => {
      const { tracker } = await import("/page/main.js");
      const until = async (sure) => {
        while (!sure()) await new Promise((done) => setTimeout(done, 2));
      };
      await until(() => tracker.agentSpeaking);
      const picker = document.getElementById("llm"), began = performance.now();
      picker.value = "slow";
      picker.dispatchEvent(new Event("change"));
      await until(() => !tracker.agentSpeaking);
      const silentMs = performance.now() - began;
      await until(() => tracker.llm === "slow");
      return silentMs;
    }""")


def _same_as_kept(turns: list[dict[str, Any]], runs: Path) -> None:
    """The page's figures are those that the server keeps, made from the same facts by the core."""
    (run,) = runs.iterdir()
    lines = (run / "turns.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [json.loads(line) for line in lines]
    for turn, record in zip(turns, kept, strict=True):
        assert (record["turn"], record["outcome"]) == (turn["number"], turn["outcome"])
        assert (record["llm"], record["left_out"]) == (turn["llm"], turn["leftOut"])
        if turn["input"] == "voice":
            assert record["gap_ms"] == pytest.approx(turn["gapMs"], abs=1e-6)
            stages = {stage["name"]: stage["ns"] for stage in record["stages"]}
            assert stages.keys() == {stage["name"] for stage in turn["stages"]}
