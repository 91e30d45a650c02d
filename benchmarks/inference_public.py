"""The inference engine beside public figures: what it predicts, and how far off that is.

    python benchmarks/inference_public.py

The figures are those of TensorRT-LLM 1.0 (NVIDIA/TensorRT-LLM, docs/source/performance/
perf-overview.md): total output tokens/s with all requests there from the beginning. The
efficiencies of `turngap.inference.server` were fitted to them: this is no independent check.
"""

from dataclasses import dataclass
from statistics import fmean

from turngap.inference.engine import FOREVER_PS, Engine, Policy, Request
from turngap.inference.server import PS_PER_S, Precision, Server, find_accelerator, find_model

# Prompt and reply in tokens, and how many requests that benchmark makes of them.
LENGTHS = (
    (128, 128, 30_000), (128, 2048, 3000), (128, 4096, 1500), (500, 2000, 3000),
    (1000, 1000, 3000), (1000, 2000, 1500), (2048, 128, 3000), (2048, 2048, 1500),
    (5000, 500, 1500), (20_000, 2000, 1000),
)  # fmt: skip
# Its server's defaults: sequences at once, tokens a step.
MAX_BATCH, CHUNK_TOKENS = 2048, 8192


@dataclass(frozen=True, slots=True)
class Published:
    """One column of its tables: output tokens/s in the order of `LENGTHS`."""

    hardware: str
    parts: int
    model: str
    weights: Precision
    tokens_per_s: tuple[int, ...]


PUBLISHED = (
    Published(
        "h100",
        1,
        "llama-3.1-8b",
        "fp8",
        (28312, 22714, 14325, 17660, 15220, 13899, 3450, 9305, 3459, 1351),
    ),
    Published(
        "h200",
        1,
        "llama-3.1-8b",
        "fp8",
        (27911, 26221, 18027, 20770, 17744, 16828, 3538, 12194, 3902, 1804),
    ),
    Published(
        "h100", 2, "llama-3.3-70b", "fp8", (6378, 6651, 4199, 5222, 4205, 4146, 762, 3082, 898, 437)
    ),
    Published(
        "h200", 1, "llama-3.3-70b", "fp8", (3803, 4336, 2872, 3666, 2909, 2994, 442, 2003, 566, 283)
    ),
    Published(
        "gb200",
        1,
        "llama-3.3-70b",
        "fp4",
        (12189, 11309, 7849, 9028, 7326, 6513, 1450, 5646, 1602, 755),
    ),
    Published(
        "h100",
        8,
        "llama-3.1-405b",
        "fp8",
        (3627, 4340, 3116, 3994, 2919, 2895, 453, 2296, 610, 345),
    ),
    Published(
        "h200",
        8,
        "llama-3.1-405b",
        "fp8",
        (3814, 5348, 4741, 4724, 3330, 3722, 456, 2948, 650, 505),
    ),
    Published(
        "gb200",
        4,
        "llama-3.1-405b",
        "fp4",
        (6740, 8151, 6608, 6540, 5389, 5135, 797, 4407, 1112, 739),
    ),
)


def predicted(column: Published, prompt: int, reply: int, requests: int) -> float:
    """Output tokens/s of the engine for the same requests."""
    server = Server(
        find_accelerator(column.hardware),
        find_model(column.model),
        column.parts,
        column.weights,
        "fp8",
        context=prompt + reply,
    )
    engine = Engine(server, Policy("continuous", MAX_BATCH, CHUNK_TOKENS))
    asked = [Request(prompt, reply) for _ in range(requests)]
    for request in asked:
        engine.submit(request, 0)
    engine.advance(FOREVER_PS)
    return requests * reply * PS_PER_S / max(request.done_ps for request in asked)


def main() -> None:
    off: dict[str, list[float]] = {}
    print("| server | model | figures | off in the mean | off at most |")
    print("| --- | --- | --- | --- | --- |")
    for column in PUBLISHED:
        errors: list[float] = []
        for lengths, published in zip(LENGTHS, column.tokens_per_s, strict=True):
            found = predicted(column, *lengths)
            errors.append(abs(found / published - 1))
        off.setdefault("gb200" if column.hardware == "gb200" else "h100, h200", []).extend(errors)
        print(
            f"| {column.parts} x {column.hardware} | {column.model} {column.weights} | "
            f"{len(errors)} | {fmean(errors):.0%} | {max(errors):.0%} |"
        )
    for name, errors in off.items():
        print(f"| **{name}** | | {len(errors)} | {fmean(errors):.0%} | {max(errors):.0%} |")


if __name__ == "__main__":
    main()
