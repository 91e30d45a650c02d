"""The page's ear against turngap's own: audible bounds, noise floor, resampling."""

import base64
from typing import Any

import numpy as np
import pytest
from page_browser import Call, needs_chromium

from turngap.core.audio import Pcm, SpeechDetector, SpeechEnd, SpeechStart, dbfs_to_amplitude

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

RATE = 48_000
SAMPLES = "new Int16Array(Uint8Array.from(atob(pcm), (c) => c.charCodeAt(0)).buffer)"
LISTEN = f"""(m, pcm, rate, dbfs) => {{
  const detector = new m.SpeechDetector(rate), heard = [];
  if (dbfs !== undefined) detector.setLevel(dbfs);
  {SAMPLES}.forEach((x, at) => {{
    const event = detector.push(x / 32768, at);
    if (event) heard.push([event, event === "Start" ? detector.first : detector.last]);
  }});
  return heard;
}}"""
FLOOR = f"""(m, pcm, rate) => {{
  const floor = new m.NoiseFloor(rate);
  for (const x of {SAMPLES}) floor.push(x / 32768);
  return floor.level;
}}"""
RESAMPLE = """(m, pcm, from, to, sizes) => {
  const resampler = new m.Resampler(from, to), out = [];
  for (let at = 0, i = 0; at < pcm.length; at += sizes[i++ % sizes.length]) {
    out.push(...resampler.push(Float32Array.from(pcm.slice(at, at + sizes[i % sizes.length]))));
  }
  return out;
}"""


def packed(pcm: Any) -> str:
    """Samples as text: as numbers in JSON they take seconds to get into the browser."""
    return base64.b64encode(np.rint(pcm).astype("<i2").tobytes()).decode()


def speech(chance: np.random.Generator, rate: int) -> Pcm:
    """Tones, clicks and pauses of all lengths over noise near the level."""
    pieces: list[Any] = []
    for _ in range(12):
        n = int(chance.integers(10, rate // 4))
        level = dbfs_to_amplitude(float(chance.choice([-90, -60, -42, -39, -30, -12])))
        tone = np.sign(np.sin(np.arange(n) / chance.uniform(2, 40))) * level
        pieces += [tone, chance.standard_normal(int(chance.integers(1, rate // 2))) * level / 40]
        pieces.append(chance.choice([0, 30_000], int(chance.integers(1, 40))))
    return np.clip(np.rint(np.concatenate(pieces)), -32768, 32767).astype(np.int16)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
async def test_speech_is_found_where_the_core_finds_it(call: Call, rate: int) -> None:
    chance = np.random.default_rng(rate)
    found = 0
    for _ in range(6):
        pcm = speech(chance, rate)
        core = [
            ["Start" if isinstance(event, SpeechStart) else "End", event.sample]
            for event in SpeechDetector(rate).feed(pcm)
        ]
        heard = await call("speech", LISTEN, packed(pcm), rate)
        # The page tells a start as soon as it is sure of it, and an end a window later.
        both = min(len(heard), len(core))
        assert heard[:both] == core[:both]
        assert abs(len(heard) - len(core)) <= 1
        found += len(heard)
    assert found > 20


async def test_the_level_can_change_while_it_listens(call: Call) -> None:
    tone = np.rint(np.sin(np.arange(RATE) / 20) * dbfs_to_amplitude(-46)).astype(np.int16)
    quiet = np.zeros(RATE, np.int16)
    pcm = np.concatenate((quiet, tone, quiet))
    assert await call("speech", LISTEN, packed(pcm), RATE) == []
    heard = await call("speech", LISTEN, packed(pcm), RATE, -50)
    assert [kind for kind, _ in heard] == ["Start", "End"]
    events = SpeechDetector(RATE, dbfs=-50).feed(pcm)
    assert [at for _, at in heard] == [e.sample for e in events]
    assert isinstance(events[-1], SpeechEnd)


@pytest.mark.parametrize(
    ("noise_dbfs", "level"),
    [(-90, -50), (-64, -46), (-58, -40), (-54, -40), (-45, -33), (-20, -15)],
)
async def test_the_level_stays_clear_of_the_noise(call: Call, noise_dbfs: int, level: int) -> None:
    chance = np.random.default_rng(0)
    noise = chance.standard_normal(2 * RATE) * dbfs_to_amplitude(noise_dbfs)
    found = await call("speech", FLOOR, packed(noise), RATE)
    assert found == pytest.approx(level, abs=1)


async def test_speech_does_not_become_the_noise_but_a_steady_hum_does(call: Call) -> None:
    chance = np.random.default_rng(0)
    noise = chance.standard_normal(10 * RATE) * dbfs_to_amplitude(-58)
    loud = chance.standard_normal(10 * RATE) * dbfs_to_amplitude(-20)
    pauses = np.arange(10 * RATE) % RATE < RATE // 5  # a fifth of a second in each
    talk = np.where(pauses, noise, loud)
    assert await call("speech", FLOOR, packed(talk), RATE) < -35
    assert await call("speech", FLOOR, packed(loud), RATE) == -15


@pytest.mark.parametrize(
    ("source", "target"),
    [(48_000, 16_000), (44_100, 16_000), (22_050, 48_000), (24_000, 48_000), (8_000, 44_100)],
)
async def test_tones_come_through_in_their_place(call: Call, source: int, target: int) -> None:
    instants, hz = np.arange(source // 4) / source, 1000
    tone = np.cos(2 * np.pi * hz * instants)
    made = np.array(await call("resample", RESAMPLE, tone.tolist(), source, target, [320]))
    middle = slice(len(made) // 4, len(made) // 2)
    wanted = np.cos(2 * np.pi * hz * np.arange(len(made)) / target)
    assert np.abs(made - wanted)[middle].max() < 0.002
    # What is missing at the end is what the filter still waits for: 16 samples of the lower rate.
    assert 0 <= 0.25 - len(made) / target <= 17 / min(source, target)


async def test_what_would_fold_back_is_taken_out(call: Call) -> None:
    for hz in (9_000, 12_000, 15_500):
        tone = np.cos(2 * np.pi * hz * np.arange(12_000) / 48_000)
        made = np.array(await call("resample", RESAMPLE, tone.tolist(), 48_000, 16_000, [960]))
        assert 20 * np.log10(np.abs(made[200:-200]).max()) < -50


async def test_chunks_do_not_matter_to_the_resampler(call: Call) -> None:
    pcm = np.random.default_rng(1).standard_normal(4_000).tolist()
    whole = await call("resample", RESAMPLE, pcm, 22_050, 48_000, [4_000])
    pieces = await call("resample", RESAMPLE, pcm, 22_050, 48_000, [1, 7, 220, 441])
    assert pieces == pytest.approx(whole, abs=1e-6)
    assert await call("resample", RESAMPLE, pcm, 48_000, 48_000, [100]) == pytest.approx(pcm)


async def test_a_chirp_is_found_behind_noise_and_nothing_where_there_is_none(call: Call) -> None:
    program = """(m, delay, loud, noise) => {
      const sound = m.chirp(48000), heard = Float32Array.from(noise);
      sound.forEach((x, i) => (heard[delay + i] += loud * x));
      sound.forEach((x, i) => (heard[delay + 700 + i] += 0.5 * loud * x)); // an echo
      return m.delayOf(sound, heard);
    }"""
    noise = (np.random.default_rng(0).standard_normal(12_000) * 0.003).tolist()
    assert await call("calibrate", program, 2345, 0.1, noise) == 2345
    assert await call("calibrate", program, 2345, 0.0, noise) is None
