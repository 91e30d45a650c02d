"""The page's server with a foreign agent behind it, and a stand-in for the page."""

import json
from pathlib import Path

import pytest
from foreign_talk import CLOCK, a_turn, answers, foreign
from live_server import serving

from turngap.caller.endpoint import Endpoint
from turngap.core.errors import AgentError
from turngap.live.answering import ForeignAgent, reach
from turngap.live.keeping import Keeping
from turngap.scenario.library import load_scenario
from turngap.store.runs import read_run
from turngap.testing.agent import ScriptedAgent


async def test_a_turn_is_kept_and_saved_under_the_agents_name(tmp_path: Path) -> None:
    async with (
        answers() as agent,
        serving(tmp_path, answering=foreign(f"{agent.url}/?key=s3cr3t-s3cr3t")) as served,
        served.page() as page,
    ):
        _, _, body = await served.get("/api/about")
        about = json.loads(body)
        assert about["agent"] == f"{agent.url}/?key=(removed) (pipecat)"
        assert about["in_sample_rate"] == 16_000
        await a_turn(page)
        kept = await page.next("kept")
        assert kept["outcome"] == "answered"
        assert 0 < kept["relay_ms"] < 60_000
        said = page.of("session")[0]
        url = f"/api/runs/{said['id']}/scenario"
        status, saved = await served.post(url, {"name": "my-talk"})
        assert status == 200
        flags = f"--agent '{about['agent'][:-10]}' --dialect pipecat"
        assert saved["replay"] == f"turngap replay my-talk.yaml {flags}"
        _, _, zipped = await served.get(saved["zip"])
        assert b"my-talk.yaml" in zipped
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert run.record.agent == {"url": about["agent"][:-10], "dialect": "pipecat"}
    (turn,) = run.turns
    assert turn.transcript == "utterance 1"
    assert turn.reply == "scripted reply"
    assert "s3cr3t" not in "".join(f.read_text() for f in folder.glob("*.json*"))


async def test_a_saved_scenario_names_the_agent(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "runs", tmp_path / "saved")
    async with (
        answers() as agent,
        serving(tmp_path, answering=foreign(agent.url), keeping=keeping) as served,
        served.page() as page,
    ):
        await a_turn(page)
        url = agent.url
    (path,) = (tmp_path / "saved").glob("*.yaml")
    assert (
        load_scenario(path).scenario.about
        == f"Saved from a live conversation with {url} (pipecat)."
    )


async def test_an_agent_that_is_gone_is_said_in_the_words_of_the_command_line(
    tmp_path: Path,
) -> None:
    token = "Sup3rSecretToken99"
    url = f"ws://127.0.0.1:1/ws?token={token}"
    async with serving(tmp_path, answering=foreign(url)) as served:
        async with served.page() as page:
            await page.until(lambda: page.closed)
            (failed,) = page.of("failed")
            assert failed["message"].startswith("nothing can be reached at ws://127.0.0.1:1/ws")
            assert failed["hint"].startswith("is the agent running, and is this its port and path?")
            assert page.closed is not None
            assert page.closed[0] == 1011
            assert token not in f"{failed} {page.closed}"
        await served.becomes(0)
        assert not (tmp_path / "runs").exists()


async def test_a_saved_scenario_is_played_with_what_the_agent_was_reached_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", "Sup3rSecretToken99")
    async with answers() as agent:
        headers = ("Authorization: Bearer ${K}", "X-Api-Key: hunter")
        endpoint = Endpoint(f"{agent.url}/?api_key=${{K}}", "pipecat", headers)
        answering = ForeignAgent(endpoint, "pipecat", 16_000, CLOCK)
        async with serving(tmp_path, answering=answering) as served, served.page() as page:
            await a_turn(page)
            api = f"/api/runs/{page.of('session')[0]['id']}/scenario"
            _, saved = await served.post(api, {"name": "my-talk"})
            assert saved["replay"] == (
                f"turngap replay my-talk.yaml --agent '{agent.url}/?api_key=${{K}}' --dialect "
                "pipecat --header 'Authorization: Bearer ${K}' --header 'X-Api-Key: (removed)'"
            )
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_run(folder).record.agent["url"] == endpoint.url


async def test_the_health_open_to_everybody_names_no_host_of_ours(tmp_path: Path) -> None:
    answering = foreign("ws://127.0.0.1:1/twilio/Sup3rSecretToken99")
    assert answering.name == "ws://127.0.0.1:1/twilio/(removed) (pipecat)"
    async with serving(tmp_path, answering=answering) as served:
        _, _, body = await served.get("/healthz")
        assert json.loads(body) == {"agent": "pipecat", "sessions": 0}


async def test_each_conversation_has_a_line_of_its_own_and_a_dead_agent_ends_it(
    tmp_path: Path,
) -> None:
    async with (
        answers() as agent,
        serving(tmp_path, answering=foreign(agent.url), max_sessions=2) as served,
        served.page() as one,
        served.page() as two,
        served.page() as three,
    ):
        await a_turn(one)
        await a_turn(two)
        await three.until(lambda: three.closed)
        assert three.closed is not None
        assert three.closed[0] == 1013
        await agent.__aexit__(None, None, None)
        await one.until(lambda: one.closed)
        assert one.of("failed")[0]["message"] == "the agent ended the call (1001)"
    runs = [read_run(folder) for folder in (tmp_path / "runs").iterdir()]
    assert [run.record.failure for run in runs] == ["the agent ended the call (1001)"] * 2


async def test_what_is_reached_is_named_and_what_is_not_is_an_error() -> None:
    async with ScriptedAgent() as agent:
        reached = await reach(Endpoint(agent.url), CLOCK)
        assert (reached.name, reached.rates) == (f"{agent.url} (pipecat)", (16_000, None))
    with pytest.raises(AgentError, match="nothing can be reached"):
        await reach(Endpoint("ws://127.0.0.1:1/ws"), CLOCK)


async def test_a_dialect_without_a_word_for_flushes_has_yields() -> None:
    held = ForeignAgent(Endpoint("ws://x", "gpt-live"), "pipecat", 16_000, CLOCK).begin(
        Keeping(None)
    )
    assert held.conversation.connection.tracker.tells_flushes is False
    held = foreign("ws://x").begin(Keeping(None))
    assert held.conversation.connection.tracker.tells_flushes is True
