"""The page for real, on a foreign agent: Chromium, a microphone, a scripted phone line."""

from pathlib import Path
from statistics import median

import pytest
import quiet
from live_server import CLOCK, serving
from page_browser import Microphone, chromium, needs_chromium, opened, scripted_agent

from turngap.caller.endpoint import Endpoint
from turngap.live.answering import reach
from turngap.live.keeping import Keeping
from turngap.store.runs import read_run
from turngap.testing.agent import Reply, Script

pytestmark = [needs_chromium, pytest.mark.realtime]

SAVE = """async () => {
  const name = document.getElementById("name");
  name.value = "phoned";
  name.form.requestSubmit();
  const saved = document.getElementById("saved");
  while (!saved.innerText) await new Promise((done) => setTimeout(done, 20));
  return saved.innerText;
}"""


async def test_a_phone_line_is_talked_to_interrupted_kept_and_saved(tmp_path: Path) -> None:
    # Longer than the agent holds a pause (`hold_ms`), for it cannot answer before that.
    delays = [500.0, 650.0, 500.0]
    spoken = Path(__file__).parents[2] / "scenarios/smart-home/1.flac"
    microphone = Microphone().pause(1500)
    for _ in delays:
        microphone.tone(400).pause(1600)
    microphone.tone(400).pause(1500).recording(spoken).pause(3000)
    replies = [Reply(delay_ms=delay, speech_ms=300) for delay in delays]
    replies += [Reply(delay_ms=500, speech_ms=4000), Reply(delay_ms=500, speech_ms=300)]
    script = Script(replies=tuple(replies), dialect="twilio", yield_ms=200, hold_ms=400)
    async with scripted_agent(script) as port:
        endpoint = Endpoint(f"ws://127.0.0.1:{port}", "twilio")
        answering = await reach(endpoint, CLOCK)
        keeping = Keeping(tmp_path / "runs", tmp_path / "saved")
        async with (
            serving(tmp_path, answering=answering, keeping=keeping) as served,
            chromium(microphone=microphone.write(tmp_path / "said.wav")) as browser,
        ):
            tab = await opened(browser, served.url("/").replace("127.0.0.1", "localhost"))
            await tab.start()
            turns = await tab.finished(len(replies), timeout_s=microphone.ms / 1000 + 20)
            assert await tab.page.inner_text("#agent") == f"{endpoint.url} (twilio)"
            assert not await tab.page.is_visible("#typing")
            assert not await tab.page.is_visible("#models")
            said = await tab.page.evaluate(SAVE)
            await tab.page.click("#talk")
            await tab.state("not connected")
        assert tab.problems == []
    assert f"--agent {endpoint.url} --dialect twilio" in said
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert run.record.agent["dialect"] == "twilio"
    with quiet.measured():
        assert [turn["outcome"] in ("answered", "late") for turn in turns] == [True] * len(turns)
        assert (turns[-2]["ended"], turns[-1]["overReply"]) == ("interrupted", True)
        assert run.record.valid
        assert len(run.turns) == len(turns)
    for turn, record in zip(turns, run.turns, strict=True):
        assert record.gap_ms == pytest.approx(turn["gapMs"], abs=1e-6)
        assert sum(stage.ns for stage in record.stages) == record.gap_ns
        assert record.events[-1]["relay_ms"] > 0
    sound = [
        abs(turn["gapMs"] - delay)
        for turn, delay in zip(turns, delays, strict=False)
        if turn["leftOut"] is None
    ]
    if len(sound) < len(delays):
        pytest.skip(f"{quiet.NOT_MEASURED}the sound device stood still")
    with quiet.measured():
        assert median(sound) <= 15, sound
        # The agent waits 200 ms before it drops its reply; what was queued here goes with it.
        assert 150 <= turns[-1]["yieldNs"] / 1e6 <= 350
