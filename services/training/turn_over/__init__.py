"""How the probability that a turn is over is fitted, and judged on recordings it never saw."""
