"""Each hostile agent is replayed against, in virtual time: no run is lost to any of them."""

import json
from pathlib import Path

import pytest
from commandline import only_run, turngap_here, turns_on_disk
from hostile_agents import ALL, GAP_MS, Bot, Hostile
from virtual_agents import VirtualAgents

from turngap.caller.intake import MOST_WAITING_BYTES
from turngap.core.secrets import remember_arguments
from turngap.core.stages import AGENT_MARKS
from turngap.report.ci import markdown
from turngap.report.run import render, run_report
from turngap.store.runs import read_run

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("hostile", ALL, ids=lambda hostile: hostile.name)
def test_a_hostile_agent(
    hostile: Hostile,
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    virtual_agents: VirtualAgents,
) -> None:
    # Half a gigabyte takes ten seconds to look through, and an eighth of it shows the same.
    monkeypatch.setattr("turngap.caller.intake.MOST_CONVERSATION_BYTES", 2 * MOST_WAITING_BYTES)
    url = virtual_agents.url_of(hostile.course)
    arguments = ("replay", "quick-questions", "--calibration", "0", "--agent", url)
    done = turngap_here(capsys, *arguments, "--out", tmp_path)
    for text in (done.out, done.err):
        assert "Traceback" not in text
        assert "turngap itself failed" not in text
        assert all(line.isprintable() for line in text.split("\n"))
    expected = [hostile.before, hostile.outcome, hostile.after] if hostile.outcome else []
    expected = [outcome for outcome in expected if outcome]
    folder = only_run(tmp_path)
    turns = turns_on_disk(folder)
    outcomes = [turn["outcome"] for turn in turns]
    assert len(outcomes) == len(expected)
    for outcome, due in zip(outcomes, expected, strict=True):
        assert due in (outcome, "any")
    assert done.code == (hostile.code if hostile.failure or "error" in outcomes else 0)
    record = json.loads((folder / "run.json").read_text())
    assert record["valid"] == (not hostile.failure)
    reasons = record["failure"], record["why_invalid"], [turn["error"] for turn in turns]
    assert hostile.failure in str(reasons)
    if turns:
        the_run_can_be_read(folder, hostile)


def the_run_can_be_read(folder: Path, hostile: Hostile) -> None:
    run = read_run(folder)
    assert run.problems == ()
    render(run).encode()
    turn = run.turns[1]
    assert hostile.error in (turn.error or "")
    assert (turn.error is None) == (not hostile.error)
    assert any(hostile.note in note for note in turn.notes) or not hostile.note
    explained = any(stage.name in AGENT_MARKS for stage in turn.stages)
    if turn.outcome == "answered":
        # The first sample may be in the reply's third message, 10 ms later.
        assert turn.gap_ms == pytest.approx(GAP_MS, abs=11)
        assert explained == hostile.stages


# Plain words, of which nothing but where the user put them says that they are secret.
WORDS = [
    *("marble-statue", "granite-pillar", "swordfish-mackerel", "pass-word-user"),
    *("violet-umbrella", "olive-branch/seven", "turquoise-lantern", "crimson-kettle"),
]


OTHERS = [f"Pl4nted{n}qZ7wK1vB9" for n in range(5)]  # which their names tell
FORMS = "password={} Bearer {} https://x.example/#access_token={} {{'api_key': '{}'}}"


async def echoes(bot: Bot) -> None:
    """Repeat the words wherever an agent may say anything, and hang up with them."""
    echo, one = f"{' '.join(WORDS)} {FORMS.format(*OTHERS)}", dict.fromkeys(WORDS, 1)
    for kind in ("user-transcription", "bot-llm-text", "error"):
        await bot.says(kind, {"text": echo, "error": echo, "final": True})
    instants = dict.fromkeys(WORDS, bot.now_ns)
    calls = [
        {"name": word, "arguments": {word: [word], "password": OTHERS[4]}, "error": word}
        for word in WORDS
    ]
    told = {"counts": one, "calls": calls, "why": echo, "error": echo, "no_reply": echo}
    await bot.answers(**told, marks=instants | {"endpoint": bot.now_ns, "sent": bot.now_ns})
    await bot.says(echo, one)
    raise ConnectionError(echo)


def test_an_agent_that_echoes_what_it_was_given_plants_none_of_it(
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: pytest.MonkeyPatch,
    virtual_agents: VirtualAgents,
) -> None:
    monkeypatch.setenv("SHOP_A", WORDS[0])
    monkeypatch.setenv("SHOP_B", WORDS[5])
    host = f"me:{WORDS[3]}@in-memory/?token={WORDS[2]}&room=${{SHOP_B}}&x="
    course = Hostile("echo", echoes).course
    headers = (
        "X-Shop: ${SHOP_A}",
        f"Cookie: a={WORDS[1]}; b=1",
        f"Authorization: Bearer {WORDS[4]}",
    )
    given = [part for header in headers for part in ("--header", header)]
    remember_arguments(["bot", "--api-key", WORDS[6], f"--password={WORDS[7]}"])
    url = virtual_agents.url_of(course, host)
    told = ("replay", "quick-questions", "--calibration", "0", "--agent", url, *given, "--json")
    shown = [turngap_here(capsys, *told, "--out", tmp_path / "runs")]
    run = only_run(tmp_path / "runs")
    assert len(read_run(run).turns) == 3
    for form in (("--json",), ("--csv", "t.csv"), ("--junit", "t.xml"), ("--svg", "t.svg")):
        file = [tmp_path / name if "." in name else name for name in form]
        shown.append(turngap_here(capsys, "report", run, *file))
    files = [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    everything = "\n".join((*(done.out + done.err for done in shown), *files))
    again = read_run(run)
    everything += markdown(run_report(again, with_turns=True)) + repr(again) + again._repr_html_()
    assert [word for word in WORDS + OTHERS if word in everything] == []
    assert everything.count("(removed)") > 100
