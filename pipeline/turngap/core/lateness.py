"""How late the caller may be, in sending packets or in waking up, before a turn is not believed."""

# Twice the error that the instrument may have at p99 on an idle machine (5 ms): a figure that may
# be off by more is not one to compare with others. Whoever accepts more says so, and the run does.
STARVED_MS = 10.0
# Later than a whole budget there is no measurement left to speak of.
MAX_STARVED_MS = 1000.0
