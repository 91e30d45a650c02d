"""How much audio each way of resampling a stream holds back, in chunks of 10 ms.

    python benchmarks/resampling.py

Held back at most: what has come, less what has gone. Until: how much had come when the first sample
went. soxr's are those of pipecat (VHQ by default). Needs no clock: the figures are exact.
"""

from collections.abc import Callable

import numpy as np
import soxr

from turngap.agent.resampling import Resampling
from turngap.core.audio import Pcm

PAIRS = [(22_050, 24_000), (22_050, 8_000), (24_000, 8_000), (24_000, 16_000), (8_000, 16_000)]
QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")


def held_ms(add: Callable[[Pcm], Pcm], in_rate: int, out_rate: int) -> tuple[float, float | None]:
    """Return the most that was held back, and how much had come before anything went."""
    chunk = np.zeros(in_rate // 100, np.int16)
    came = went = most = 0.0
    first: float | None = None
    for _ in range(200):
        came += len(chunk) / in_rate * 1000
        went += len(add(chunk)) / out_rate * 1000
        first = came if went and first is None else first
        most = max(most, came - went)
    return most, first


def main() -> None:
    print("from     to       by            held back at most   until")
    for in_rate, out_rate in PAIRS:
        ways: dict[str, Callable[[Pcm], Pcm]] = {"turngap": Resampling(in_rate, out_rate).add}
        for quality in QUALITIES:
            stream = soxr.ResampleStream(in_rate, out_rate, 1, dtype="int16", quality=quality)
            ways[f"soxr {quality}"] = stream.resample_chunk
        for name, add in ways.items():
            most, first = held_ms(add, in_rate, out_rate)
            print(f"{in_rate:6} {out_rate:6}    {name:12} {most:12.1f} ms {first or 0:12.0f} ms")


if __name__ == "__main__":
    main()
