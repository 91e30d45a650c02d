"""Labels: the user's names for measurements."""

from turngap.core.errors import InputError
from turngap.core.untrusted import printable

# One short line, which has to fit into a list.
MOST_LABEL = 100


def checked_label(label: str) -> str:
    """Return a label as it is stored: without spaces around it.

    Raises:
        InputError: it is longer than `MOST_LABEL`, or holds what cannot be printed.
    """
    label = label.strip()
    if len(label) > MOST_LABEL or not label.isprintable():
        wrong = f"{len(label)} characters" if label.isprintable() else "what cannot be printed"
        raise InputError(
            "label.invalid",
            f"the label {printable(label, 40)!r} has {wrong}",
            hint=f"give one line of at most {MOST_LABEL} characters",
        )
    return label
