from dataclasses import replace

import pytest

from turngap.core.errors import InputError
from turngap.inference.engine import FOREVER_PS, Engine, Policy, Request
from turngap.inference.server import (
    ACCELERATORS,
    GB200,
    H100,
    H200,
    MODELS,
    PS_PER_MS,
    PS_PER_S,
    WAFER,
    Accelerator,
    Model,
    Server,
    Speculation,
    StepCosts,
    dense,
    find_accelerator,
    find_model,
)

PLAIN = Accelerator(
    "plain",
    memory_gb=10,
    bandwidth_gb_s=1000,
    tflops={"bf16": 100, "fp8": 200},
    usable=1,
    memory_efficiency=0.5,
    compute_efficiency=0.5,
    step_us=1000,
    split_us=10,
    link_gb_s=100,
)
TINY = Model("tiny", params_b=1.0, layers=10, heads=10, kv_heads=5, head_dim=100)


def per_second(server: Server, looked_back: int = 1000) -> float:
    return PS_PER_S / StepCosts(server).step_ps(1, looked_back)


def test_a_step_takes_the_longer_of_moving_and_computing_and_its_overhead() -> None:
    costs = StepCosts(Server(PLAIN, TINY))
    # 2 GB at 500 GB/s and 20 kB a token of context; 2 GFLOP a token at 50 TFLOPS.
    assert costs.weights_ps == 4 * PS_PER_MS
    assert costs.kv_ps == 40_000
    assert costs.token_ps == 40_000_000
    assert costs.step_ps(1, 1000) == 4 * PS_PER_MS + 1000 * 40_000 + PS_PER_MS
    busy = costs.token_ps * 200 + costs.attention_ps * 1000
    assert costs.step_ps(200, 1000) == busy + PS_PER_MS
    assert busy > 4 * PS_PER_MS + 1000 * 40_000


def test_a_prompt_is_bound_by_arithmetic_and_attends_to_all_before_it() -> None:
    costs = StepCosts(Server(PLAIN, TINY, context=8192))
    short = costs.step_ps(0, 0, 1000, 0, 1000 * 1001 // 2) - costs.overhead_ps
    long = costs.step_ps(0, 0, 2000, 0, 2000 * 2001 // 2) - costs.overhead_ps
    assert short == costs.token_ps * 1000 + costs.attention_ps * 500_500
    assert 2 * short < long < 2.2 * short


def test_parts_share_the_work_and_talk_about_it() -> None:
    one, four = StepCosts(Server(PLAIN, TINY)), StepCosts(Server(PLAIN, TINY, 4))
    assert four.weights_ps == one.weights_ps // 4
    assert four.token_ps == one.token_ps // 4
    assert one.link_ps == 0
    assert four.overhead_ps - one.overhead_ps == 10 * 10 * 10**6
    # 2 all-reduces x 10 layers x 1000 numbers of 2 bytes x 2 x 3/4, at 100 GB/s.
    assert four.link_ps == 2 * 10 * 1000 * 2 * 1.5 / 100e9 * PS_PER_S


def test_fewer_bits_move_less_and_compute_more_where_the_part_can() -> None:
    assert StepCosts(Server(PLAIN, TINY, weights="fp8")).weights_ps == 2 * PS_PER_MS
    assert StepCosts(Server(PLAIN, TINY, weights="fp8")).token_ps == 20_000_000
    # Four bits are unpacked to sixteen here.
    assert StepCosts(Server(PLAIN, TINY, weights="int4")).weights_ps == PS_PER_MS
    assert StepCosts(Server(PLAIN, TINY, weights="int4")).token_ps == 40_000_000


def test_a_mixture_reads_more_of_its_experts_the_more_tokens_there_are() -> None:
    model = MODELS["gpt-oss-120b"]
    sizes = [model.moved_bytes("fp8", tokens) / 1e9 for tokens in (1, 8, 64, 4096)]
    assert sizes[0] == pytest.approx(5.13)
    assert sizes == sorted(sizes)
    assert sizes[-1] == pytest.approx(116.83)


@pytest.mark.parametrize(
    ("part", "memory", "tb_s"),
    [(H100, 80, 3.35), (H200, 141, 4.8), (GB200, 186, 2.4 * 3.35), (WAFER, 44, 21_000)],
    ids=lambda v: getattr(v, "name", ""),
)
def test_presets_are_those_of_their_data_sheets(
    part: Accelerator, memory: float, tb_s: float
) -> None:
    assert part.memory_gb == memory
    assert part.bandwidth_gb_s == pytest.approx(1000 * tb_s)
    assert ACCELERATORS[part.name] is part


@pytest.mark.parametrize(
    ("model", "parts", "public", "within"),
    [("llama-3.1-8b", 1, 1800, 0.02), ("llama-3.1-405b", 22, 969, 0.02)],
)
def test_the_wafer_gives_the_public_rates_it_was_fitted_to(
    model: str, parts: int, public: float, within: float
) -> None:
    server = Server(WAFER, find_model(model), parts, weights="fp16")
    assert per_second(server) == pytest.approx(public, rel=within)


def test_in_44_gb_fit_about_20b_at_fp16_and_40b_at_int8() -> None:
    assert Server(WAFER, dense(20), weights="fp16").kv_tokens > 4096
    assert Server(WAFER, dense(40), weights="int8", kv="fp8").kv_tokens > 4096
    with pytest.raises(InputError, match=r"70b at fp16 does not fit: 141\.1 GB") as refused:
        Server(WAFER, find_model("llama-3.3-70b"), weights="fp16")
    assert refused.value.kind == "inference.no_fit"
    assert "44 GB hold about 20B at fp16, about 40B at int8" in refused.value.hint
    assert "needs 4 × wafer" in refused.value.hint
    assert Server(WAFER, find_model("llama-3.3-70b"), 4, weights="fp16").kv_tokens > 4096


def test_weights_alone_are_not_enough_where_no_conversation_fits_beside_them() -> None:
    model = dense(20)
    room = Server(WAFER, model, weights="fp16").kv_tokens
    assert Server(WAFER, model, weights="fp16", context=room).kv_tokens == room
    with pytest.raises(InputError, match=f"one conversation of {room + 1} tokens"):
        Server(WAFER, model, weights="fp16", context=room + 1)


@pytest.mark.parametrize("size", [8.0, 70.0, 405.0])
def test_a_dense_model_of_a_size_is_like_the_llama_of_that_size(size: float) -> None:
    known = {8.0: "llama-3.1-8b", 70.0: "llama-3.3-70b", 405.0: "llama-3.1-405b"}[size]
    made, real = dense(size), MODELS[known]
    assert made.kv_bytes("bf16") == pytest.approx(real.kv_bytes("bf16"), rel=0.15)
    assert made.width == pytest.approx(real.width, rel=0.15)


def test_speculation_trades_arithmetic_for_steps() -> None:
    plain = Server(H100, find_model("llama-3.1-8b"), weights="fp8")
    good = replace(plain, speculation=Speculation(0.8, 4, 0.05))
    useless = replace(plain, speculation=Speculation(0.0, 4, 0.05))

    def seconds(server: Server) -> float:
        engine = Engine(server, Policy("immediate", 1))
        request = Request(100, 1000)
        engine.submit(request, 0)
        engine.advance(FOREVER_PS)
        return (request.done_ps - request.first_ps) / PS_PER_S

    # 3.4 tokens a step, of a step that takes 1.2 times as long and checks five tokens.
    assert seconds(plain) / seconds(good) == pytest.approx(3.36 / 1.2, rel=0.1)
    assert seconds(useless) > 1.15 * seconds(plain)
    assert Speculation(0.8, 4).tokens_per_step == pytest.approx(3.3616)
    assert Speculation(1.0, 4).tokens_per_step == 5


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: replace(H100, memory_gb=0), "inference.hardware", "memory_gb is 0"),
        (lambda: replace(H100, usable=1.1), "inference.hardware", "usable is 1.1"),
        (lambda: replace(H100, bandwidth_gb_s=float("nan")), "inference.hardware", "bandwidth"),
        (lambda: replace(H100, step_us=-1), "inference.hardware", "step_us"),
        (lambda: replace(H100, link_gb_s=0), "inference.hardware", "link_gb_s"),
        (lambda: replace(H100, tflops={"fp8": 1}), "inference.hardware", "at least bf16"),
        (lambda: replace(H100, tflops={"bf16": -1}), "inference.hardware", "tflops.bf16"),
        (lambda: find_accelerator("h300"), "inference.hardware", "h300"),
        (lambda: find_model("llama-9"), "inference.model", "llama-9"),
        (lambda: find_model("0b"), "inference.model", "0b"),
        (lambda: replace(TINY, layers=0), "inference.model", "layers is 0"),
        (lambda: replace(TINY, active_b=2.0), "inference.model", "active_b"),
        (lambda: replace(TINY, experts=8), "inference.model", "active_b"),
        (lambda: Server(H100, TINY, 0), "inference.parts", "0 accelerators"),
        (lambda: Server(H100, TINY, context=0), "inference.context", "context 0"),
        (lambda: Policy("static", 0), "inference.policy", "max_batch is 0"),
        (lambda: Policy("eager"), "inference.policy", "'eager'"),  # type: ignore[arg-type]
        (lambda: Policy("continuous", 8, chunk_tokens=8), "inference.policy", "chunk_tokens"),
        (lambda: Policy("continuous", 8, max_wait_ms=5), "inference.policy", "only `static`"),
        (lambda: Policy("static", 8, max_wait_ms=-5), "inference.policy", "max_wait_ms"),
        (lambda: Speculation(1.2), "inference.speculation", "acceptance"),
        (lambda: Speculation(0.5, 0), "inference.speculation", "draft_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: object, kind: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        make()  # type: ignore[operator]
    assert refused.value.kind == kind


def test_a_conversation_that_never_fits_is_refused_and_a_request_is_sent_once() -> None:
    engine = Engine(Server(WAFER, dense(20), weights="fp16"), Policy())
    with pytest.raises(InputError, match="room for"):
        engine.submit(Request(engine.room, 1), 0)
    request = Request(10, 10)
    engine.submit(request, 0)
    with pytest.raises(ValueError, match="once"):
        engine.submit(request, 0)
    for bad in (Request(0, 1), Request(1, 0), Request(1, 1, 2), Request(1, 5, 0)):
        with pytest.raises(ValueError, match="prompt"):
            engine.submit(bad, 0)


def test_the_prefix_cache_spares_what_is_known_and_forgets_what_was_used_least() -> None:
    server = Server(H100, find_model("35.7b"), context=2048)  # room for 2,482 tokens
    engine = Engine(server, Policy("immediate", 1), prefix_cache=True)

    def ask(prompt: int, session: int | None, engine: Engine = engine) -> Request:
        request = Request(prompt, 10, session=session)
        engine.submit(request, engine.now_ps)
        engine.advance(FOREVER_PS)
        return request

    assert ask(500, 1).hit == 0
    assert ask(600, 1).hit == 510  # the prompt and its reply
    assert ask(500, 2).hit == 0
    assert ask(300, None).hit == 0
    assert ask(700, 1).hit == 610
    # 710 and 510 tokens are held; 1,400 more fit only without the one used least recently.
    assert ask(1400, 3).hit == 0
    assert ask(520, 2).hit == 0
    # What all prompts begin with is computed once.
    sharing = Engine(server, Policy("immediate", 1), prefix_cache=True, shared=300)
    assert ask(400, 4, sharing).hit == 300
    assert ask(300, 5, sharing).hit == 299
    assert ask(900, 4, sharing).hit == 410
