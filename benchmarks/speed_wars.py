"""The two ways of being fast, simulated: tokens a second, and tokens within a voice turn's window.

python benchmarks/speed_wars.py [--asks 200]

Each served profile is asked again and again in virtual time, with a prompt of 300 tokens that its
cache does not know, and listened to for the first second; other people's requests are in its batch,
as its profile says. Between two asks lie four seconds, as between two turns of a conversation.
"""

import argparse
import asyncio
from contextlib import aclosing
from statistics import fmean, median

from turngap.compare.side_by_side import success
from turngap.core.budget import LLM_WINDOW_MS
from turngap.core.clock import NS_PER_S
from turngap_services.llm.sim import PROFILES, Profile
from turngap_services.llm.sim.service import server_of

PROMPT, REPLY = 300, 5000
LISTENED_NS, PAUSE_NS = NS_PER_S, 4 * NS_PER_S


class VirtualClock:
    """Sleeps take no time: the clock is set to the deadline."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Return the deadline of the latest sleep."""
        return self._now_ns

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at once, later."""
        self._now_ns = max(self._now_ns, deadline_ns)


async def asked(profile: Profile, asks: int) -> tuple[list[float], list[float], list[int]]:
    """Time to first token in ms, tokens a second after it, and tokens within the window."""
    clock = VirtualClock()
    server = server_of(profile, None, 1, clock)
    first_ms, rates, within = list[float](), list[float](), list[int]()
    for _ in range(asks):
        asked_ns, at = clock.now_ns(), list[tuple[int, int]]()
        async with aclosing(server.tokens(PROMPT, REPLY)) as tokens:
            async for out in tokens:
                at.append((clock.now_ns() - asked_ns, out))
                if at[-1][0] - at[0][0] >= LISTENED_NS:
                    break
        first_ms.append(at[0][0] / 1e6)
        rates.append((at[-1][1] - at[0][1]) * NS_PER_S / (at[-1][0] - at[0][0]))
        within.append(max((out for ns, out in at if ns <= LLM_WINDOW_MS * 1e6), default=0))
        await clock.sleep_until_ns(clock.now_ns() + PAUSE_NS)
    return first_ms, rates, within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, default=200)
    asks = parser.parse_args().asks
    print(f"n = {asks} requests each; medians, the rate a mean")
    print(
        f"| profile | first token ms | tokens/s | tokens in {LLM_WINDOW_MS:.0f} ms | $/1M in, out |"
    )
    print("| --- | --- | --- | --- | --- |")
    for profile in PROFILES:
        first_ms, rates, within = asyncio.run(asked(profile, asks))
        price = f"{profile.price.input_usd:g}, {profile.price.output_usd:g}"
        figures = f"{median(first_ms):.0f} | {fmean(rates):.0f} | {median(within):.0f}"
        print(f"| `{profile.name}` | {figures} | {price} |")
    print("\n| right a turn | 1 | 5 | 10 | 20 |\n| --- | --- | --- | --- | --- |")
    for right in (0.9, 0.8, 0.773, 0.584):
        shares = " | ".join(f"{100 * success(right, n):.1f} %" for n in (1, 5, 10, 20))
        print(f"| {right} | {shares} |")


if __name__ == "__main__":
    main()
