"""The levels that a search may choose from."""

ONE_BY_ONE = 16
STEP = 1.06


def levels(lowest: int, highest: int) -> list[int]:
    """All levels from the lowest to the highest: each up to 16, above them about 6 % apart."""
    found, level = [lowest], lowest
    while level < highest:
        level = level + 1 if level < ONE_BY_ONE else max(level + 1, round(level * STEP))
        found.append(min(level, highest))
    return found
