"""benchmarks/simulate_vllm.py: what was planted is found, and predicts loads that were not seen.

The real server is a simulated one, in virtual time: it is asked, loaded and read as vLLM is.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import aiohttp
import pytest
import simulate_vllm
import vllm_calibration
from aiohttp import web
from closed_loop import Ask, Rates, replay
from fake_vllm import PROMPT_TOKENS, FakeVllm
from pages import END
from simulate_vllm import (
    BEGIN,
    POLICY,
    STREAMS,
    Found,
    Judged,
    Row,
    document,
    loaded,
    measure,
    page,
    predicted,
    table,
)
from vllm_calibration import (
    BATCHES,
    BOTH,
    ENDED,
    GENERATED,
    LONG_TOKENS,
    PREFILL,
    STEPS,
    Calibration,
    decode_step,
    decoding,
    doing_both,
    long_text,
    middle,
    mixed_step,
    model_of,
)
from vllm_load import Asking, Metrics, Reply, Running

from turngap.core.errors import ExitCode, InconclusiveError
from turngap.inference.fit import Measured, predicted_ms
from turngap.inference.hardware import Accelerator
from turngap.inference.policy import Policy
from turngap.inference.server import Server
from turngap.testing import LoopClock, in_virtual_time
from turngap_services.llm.sim.server import Background, LiveServer

ROOT = Path(__file__).parents[2]
TEACHER = ROOT / "models" / "teacher"
MODEL = model_of(TEACHER)
# In the proportions of vLLM on one core: a step is nearly all overhead.
CPU = Accelerator(
    "cpu", memory_gb=2, bandwidth_gb_s=9, tflops={"bf16": 0.06}, memory_efficiency=1,
    compute_efficiency=1, step_us=4500, sequence_us=500, prompt_us=1500,
)  # fmt: skip
PLANTED = Server(CPU, MODEL, context=512)
TURN_MS = 6.0
CLOCK = LoopClock()
ASKS = [Ask(f"text {n}", 28 + n % 9, 24 + 5 * n % 70) for n in range(40)]


class SimulatedVllm:
    """In place of `Asking`: the same questions, to a simulated server."""

    def __init__(self, server: Server = PLANTED, prefills: bool = True) -> None:
        nobody = Background(streams=0, prompt=1, unread=1)
        self._live = LiveServer(server, nobody, max_batch=128, seed=1, clock=CLOCK)
        self._counters: Metrics = {GENERATED: 0.0, f"{PREFILL}_sum": 0.0, f"{PREFILL}_count": 0.0}
        self._prefills = prefills
        self.asked: list[tuple[str, int]] = []

    async def reply(
        self, text: str, tokens: int, *, priority: int | None = None, count: bool = False
    ) -> Reply:
        self.asked.append((text, tokens))
        prompt = 20 + 2 * len(text.split())
        asked_ns = CLOCK.now_ns()
        await CLOCK.sleep_until_ns(asked_ns + round(TURN_MS * 1e6))
        arrived_ns = first_ns = CLOCK.now_ns()
        seen = 0
        async for out in self._live.tokens(prompt, tokens):
            first_ns = first_ns if seen else CLOCK.now_ns()
            self._counters[GENERATED] += out - seen
            seen = out
        if self._prefills:
            self._counters[f"{PREFILL}_sum"] += (first_ns - arrived_ns) / 1e9
            self._counters[f"{PREFILL}_count"] += 1
        lasted_s = (CLOCK.now_ns() - first_ns) / 1e9
        per_s = (tokens - 1) / lasted_s if lasted_s else None
        return Reply((first_ns - asked_ns) / 1e6, per_s, prompt if count else None)

    async def metrics(self) -> Metrics:
        self._counters[STEPS] = float(self._live.steps)
        return dict(self._counters)


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vllm_calibration, "PREFILLS", 2)
    # Long beside a step of the planted server, which is slow.
    monkeypatch.setattr(vllm_calibration, "DECODE_S", 2.0)
    monkeypatch.setattr(vllm_calibration, "BOTH_S", 5.0)
    monkeypatch.setattr(vllm_calibration, "DECODES", 1)
    monkeypatch.setattr(simulate_vllm, "WARM_STREAMS", 2)
    monkeypatch.setattr(simulate_vllm, "PREDICTED_S", 20.0)
    yield


def measured(*, prefills: bool = True, rounds: int = 1, seconds: float = 1.0) -> Found:
    """All of it, of the planted server, in virtual time."""

    async def all_of_it() -> Found:
        server = SimulatedVllm(prefills=prefills)
        return await measure(server, 9.0, rounds=rounds, seconds=seconds)  # type: ignore[arg-type]

    return in_virtual_time(all_of_it())


def test_a_server_is_found_out_at_some_loads_and_predicted_at_others() -> None:
    found = measured(rounds=2, seconds=3.0)
    assert not {*BATCHES, *(streams for streams, _ in BOTH)} & set(STREAMS)
    assert len(found.calibrations) == 3
    fitted = found.fit(MODEL)
    part = fitted.server.accelerator
    assert fitted.unknown == ()
    assert part.step_us == pytest.approx(CPU.step_us, rel=0.03)
    assert part.sequence_us == pytest.approx(CPU.sequence_us, rel=0.03)
    assert part.prompt_us == pytest.approx(CPU.prompt_us, rel=0.1)
    assert part.tflops["bf16"] == pytest.approx(CPU.tflops["bf16"], rel=0.03)
    assert middle(found.calibrations).turn_ms == pytest.approx(TURN_MS, rel=0.01)
    loads = found.judged(fitted)
    assert [load.row.streams for load in loads] == list(STREAMS)
    for load in loads:
        assert len(load.row.per_user) == len(load.row.total) == 2
        assert load.row.replies >= 8
        assert abs(load.per_user_error) < 0.05
        assert abs(load.total_error) < 0.05
        assert load.within


def test_noisy_steps_predict_loads_that_were_not_seen() -> None:
    random = Random(1)

    def noisy(step: Measured) -> Measured:
        return replace(step, ms=predicted_ms(PLANTED, step) * random.uniform(0.9, 1.1))

    steps = [Measured(1, sequences=n, context=100) for n in BATCHES]
    steps += [Measured(1, prefill=29), Measured(1, prefill=LONG_TOKENS)]
    steps += [Measured(1, sequences=7, context=40, prefill=29, prompts=0.45)]
    noisy_ones = [Calibration(9.0, tuple(map(noisy, steps)), TURN_MS) for _ in range(7)]
    fitted = middle(noisy_ones).fit(MODEL)
    for streams in STREAMS:
        row = Row(streams)
        row.add(replay(PLANTED, POLICY, ASKS, streams, turn_ms=TURN_MS, seconds=20))
        load = predicted(fitted, TURN_MS, ASKS, row)
        assert abs(load.per_user_error) < 0.08
        assert abs(load.total_error) < 0.08


def test_a_calibration_in_the_middle_is_not_moved_by_a_bad_one() -> None:
    def found(ms: float, turn_ms: float) -> Calibration:
        return Calibration(9.0, (Measured(ms, 2, 50), Measured(2 * ms, prefill=29)), turn_ms)

    typical = middle([found(3, 6), found(40, 90), found(2, 5)])
    assert typical == found(3, 6)


def test_one_stream_gets_what_its_steps_allow() -> None:
    asks = [Ask("x", 40, 60)]
    rates = replay(PLANTED, POLICY, asks, 1, turn_ms=TURN_MS, seconds=20)
    # 59 steps of one sequence after the prefill, whose caches are 41 to 99 tokens long.
    spoken_ms = sum(
        predicted_ms(PLANTED, Measured(1, sequences=1, context=c)) for c in range(41, 100)
    )
    cycle_ms = TURN_MS + predicted_ms(PLANTED, Measured(1, prefill=40)) + spoken_ms
    assert rates.middle == pytest.approx(59 / spoken_ms * 1000, rel=1e-6)
    assert rates.total == pytest.approx(60 / cycle_ms * 1000, rel=0.02)


def test_streams_that_find_no_room_wait_for_one() -> None:
    alone = replay(PLANTED, Policy("immediate", 1), ASKS, 1, turn_ms=0, seconds=20)
    four = replay(PLANTED, Policy("immediate", 1), ASKS, 4, turn_ms=0, seconds=20)
    assert four.middle == pytest.approx(alone.middle, rel=0.02)
    assert four.total == pytest.approx(alone.total, rel=0.02)


def test_a_step_is_the_time_by_the_tokens_that_each_sequence_got() -> None:
    readings = ({GENERATED: 100.0}, {GENERATED: 116.0}, {GENERATED: 516.0})
    step = decode_step(4, [30, 34, 30, 34], 2.0, readings)
    assert step == Measured(ms=20.0, sequences=4, context=32 + (4 + 104) / 2)


def test_a_step_that_does_both_is_counted_by_the_server() -> None:
    before = {STEPS: 10.0, GENERATED: 100.0, f"{PREFILL}_count": 3.0}
    after = {STEPS: 210.0, GENERATED: 1700.0, f"{PREFILL}_count": 103.0}
    step = mixed_step([Ask("x", 28, 9), Ask("y", 32, 9)], 16, 1.2, before, after)
    # 1600 tokens in 200 steps, 100 of them the first of a reply.
    assert step == Measured(ms=6.0, sequences=8, context=38, prefill=30, prompts=0.5)


def test_replies_that_were_over_before_they_were_counted_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_calibration, "DECODE_S", 60.0)

    async def late() -> Measured:
        return await decoding(SimulatedVllm(), ASKS, 2)  # type: ignore[arg-type]

    with pytest.raises(InconclusiveError, match="the replies of 2 sequences were over"):
        in_virtual_time(late())


class StandsStill(SimulatedVllm):
    """Its counters stop where one of them has come so far, as a stalled server's do."""

    def __init__(self, name: str, at: float) -> None:
        super().__init__()
        self._name, self._at = name, at
        self._still: Metrics | None = None

    async def metrics(self) -> Metrics:
        seen = await super().metrics()
        if self._still is None and seen[self._name] >= self._at:
            self._still = seen
        return self._still or seen


def test_a_server_that_stands_still_is_no_measurement() -> None:
    async def of_decodes() -> Measured:
        return await decoding(StandsStill(GENERATED, 8), ASKS, 2)  # type: ignore[arg-type]

    async def of_both() -> Measured:
        return await doing_both(StandsStill(ENDED, 8), ASKS, 8, 16)  # type: ignore[arg-type]

    with pytest.raises(InconclusiveError, match="none of them had a token more"):
        in_virtual_time(of_decodes())
    with pytest.raises(InconclusiveError, match=r"made no step for 8 streams in 5\.0 s"):
        in_virtual_time(of_both())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--rounds", "0"), "--rounds: 1 or more"),
        (("--seconds", "0"), "--seconds: more than 0"),
        (("--model", "nowhere"), "simulate_vllm: nowhere/config.json: No such file or directory"),
    ],
)
def test_bad_input_is_said_before_a_server_is_started(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate_vllm.py", "--command", "/nowhere/vllm", *flags])
    with pytest.raises(SystemExit) as ended:
        simulate_vllm.main()
    assert ended.value.code == ExitCode.BAD_INPUT
    assert said in capsys.readouterr().err


def test_the_long_prompt_is_as_long_as_the_server_says() -> None:
    async def made() -> str:
        return await long_text(SimulatedVllm(), ASKS)  # type: ignore[arg-type]

    tokens = 20 + 2 * len(in_virtual_time(made()).split())
    assert LONG_TOKENS <= tokens < LONG_TOKENS + 10


def test_a_server_that_does_not_say_how_long_it_read_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="did not say how long"):
        measured(prefills=False)


def test_a_load_without_a_rate_is_said_to_be_none() -> None:
    # A token every few seconds: not one reply ends.
    slow = replace(PLANTED, accelerator=replace(CPU, step_us=4e6))

    async def held() -> Rates:
        server = SimulatedVllm(slow)
        return await loaded(server, [Ask("x", 22, 1)], 1, 1.0)  # type: ignore[arg-type]

    with pytest.raises(InconclusiveError, match="no reply of 1 streams"):
        in_virtual_time(held())


def loads() -> list[Judged]:
    near = Row(1, 30, [90.0, 100.0, 101.0], [97.0, 99.0, 130.0])
    far = Row(64, 200, [20.0, 21.0, 20.5], [1000.0, 1010.0, 900.0])
    return [Judged(near, 105.0, 98.0), Judged(far, 24.0, 1300.0)]


def test_each_load_says_how_far_off_it_is() -> None:
    near, far = loads()
    assert near.per_user_error == pytest.approx(0.05)
    assert near.total_error == pytest.approx(98 / 99 - 1)
    assert (near.within, far.within) == (True, False)
    lines = table([near, far]).splitlines()
    assert lines[2] == (
        "| 1 | 30 | 100 (90 to 101) | 105.0 | +5% | 99.0 (97.0 to 130.0) | 98 | -1% | yes |"
    )
    assert lines[3].endswith("| 24.0 | +17% | 1000 (900 to 1010) | 1300 | +30% | **no** |")


def test_the_page_says_what_the_prediction_rests_on() -> None:
    steps = tuple(
        replace(s, ms=predicted_ms(PLANTED, s))
        for s in (*(Measured(1, n, 99) for n in BATCHES), Measured(1, prefill=30),
                  Measured(1, prefill=400), Measured(1, 7, 40, 30, 0.45))
    )  # fmt: skip
    found = Found(ASKS, [Calibration(9.0, steps, TURN_MS)], [])
    fitted = found.fit(MODEL)
    context = {"vllm": "0.0", "model": "m", "cpu": "c", "commit": "abc", "rounds": 3, "seconds": 6}
    text = page(found, fitted, loads(), context)
    assert "Medians of 3 rounds" in text
    assert "a step 4.50 ms, 0.500 ms for each sequence in it and 1.50 ms for each prompt" in text
    assert "- a step of 32 sequences:" in text
    assert "- a step of 7 sequences and, in the mean, 0.45 prompts: " in text
    stored = json.loads(json.dumps(document(found, fitted, loads(), context)))
    assert stored["loads"][1]["within"] is False
    assert stored["fitted"]["prompt_us"] == pytest.approx(1500, rel=0.01)


def test_a_model_is_as_large_as_its_weights_say() -> None:
    # Tied embeddings of 1024 x 256; four layers of attention, a gated MLP of 704 and two norms.
    layer = 4 * 256 * 256 + 3 * 256 * 704 + 2 * 256
    assert round(MODEL.params_b * 1e9) == 1024 * 256 + 4 * layer + 256
    assert (MODEL.layers, MODEL.heads, MODEL.kv_heads, MODEL.head_dim) == (4, 4, 4, 64)


async def test_the_wire_is_read_as_vllm_writes_it() -> None:
    fake, app = FakeVllm(), web.Application()
    app.router.add_post("/v1/chat/completions", fake.chat)
    app.router.add_get("/metrics", fake.metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = Running(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "m")
        async with aiohttp.ClientSession() as client:
            asking = Asking(client, server)
            counted, plain = await asyncio.gather(
                asking.reply("x", 5, count=True), asking.reply("x", 5)
            )
            counters = await asking.metrics()
    finally:
        await runner.cleanup()
    assert (counted.prompt, plain.prompt) == (PROMPT_TOKENS, None)
    assert counters[GENERATED] == 10
    assert (counters[STEPS], counters[ENDED]) == (1, 1)
    assert not any(name.endswith("_bucket") for name in counters)
    assert counted.first_ms is not None
    assert counted.first_ms >= 0


def test_the_page_has_a_place_for_the_table() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert END in text.partition(BEGIN)[2]
