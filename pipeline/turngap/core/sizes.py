"""Sizes of files and counts of things, for people."""


def bytes_words(number: int) -> str:
    """Format a size in decimal units, as the hub and disk makers count."""
    if number < 1_000_000:
        return f"{max(1, round(number / 1000)) if number else 0} kB"
    return f"{number / 1e6:.0f} MB" if number < 999_500_000 else f"{number / 1e9:.1f} GB"


def several(n: int, what: str) -> str:
    """Count things: `1 run`, `1,200 runs`."""
    return f"{n:,} {what}{'s' * (n != 1)}"
