"""The conversational budget and its named bands."""

from typing import Literal

# What a caller accepts before the silence is noticed.
DEFAULT_BUDGET_MS = 800.0
# The LLM's share of it: what its tokens have to begin in (400 to 500 ms; its middle).
LLM_WINDOW_MS = 450.0
# What people take among themselves (Stivers et al. 2009 find means of 0 to 500 ms over ten
# languages; 200 to 400 ms holds the bulk).
NATURAL_MS = (200.0, 400.0)

# Where the buckets of a histogram of gaps end, in s: at every named band, so that the share within
# each of them can be read off.
GAP_BUCKETS_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 6.0)

Outcome = Literal["answered", "late", "no_reply", "cut_in", "abandoned", "error"]
OUTCOMES: tuple[Outcome, ...] = ("answered", "late", "no_reply", "cut_in", "abandoned", "error")
# The agent spoke after the person had ended, within the budget or not.
REPLIED: tuple[Outcome, ...] = ("answered", "late")
# A reply was due and none came, or none while the person waited: slower than any that did.
SILENT: tuple[Outcome, ...] = ("no_reply", "error", "abandoned")
# An agent that cut in was not quick.
WITHOUT_GAP: tuple[Outcome, ...] = ("cut_in",)

# Why a turn came to its end, as the caller saw it. `hung_up`: the agent ended the call in due form.
TurnEnd = Literal["reply_done", "timeout", "interrupted", "line_lost", "hung_up"]

# How far off the label of the person's end may be (20 ms in the median, 51 at p90), and people
# overlap by as much among themselves: an onset this little before it is no cut-in.
LABEL_ERROR_MS = 60.0


def outcome_of(
    gap_ms: float | None, budget_ms: float, ended: TurnEnd, *, failed: bool = False
) -> Outcome:
    """Classify the turn; `failed` means that the agent reported that it could not answer.

    A lost connection is an error even if the reply had begun. A reply that failed on the way is one
    too, because the person did not hear all of it. An agent that hangs up had finished speaking.
    """
    if failed or ended == "line_lost" or (ended == "hung_up" and gap_ms is None):
        return "error"
    if gap_ms is None:
        return "abandoned" if ended == "interrupted" else "no_reply"
    if gap_ms < -LABEL_ERROR_MS:
        return "cut_in"
    return "answered" if gap_ms <= budget_ms else "late"


# How long the caller waits for a reply, and the silence that ends one that nothing else ends.
NO_REPLY_MS, QUIET_MS = 6000.0, 1500.0


# How late the caller may be, in sending packets or in waking up, before a turn is not believed.

# Twice the error that the instrument may have at p99 on an idle machine (5 ms): a figure that may
# be off by more is not one to compare with others. A run that accepts more says so.
STARVED_MS = 10.0
# Later than a whole budget there is no measurement left to speak of.
MAX_STARVED_MS = 1000.0
# Rounds of a run, and turns of its calibration: more were never stored.
MOST_PLAYED = 1_000_000

# Known gaps of a loopback agent that show the instrument's own error before a run, about a second
# each.
CALIBRATION_TURNS = 8
