"""What the file says for one agent or choice, and says nothing of another that was given."""

OF_THE_AGENT = (
    "start", "dialect", "header", "subprotocol", "llm", "stt", "tts", "set_", "seed",
)  # fmt: skip
_OF_THE_REFERENCE = ("start_against", "against_dialect", "against_header", "against_set")
# By what was given, in a flag, a variable or a test: what of the file is left out then.
REPLACED: dict[str, tuple[str, ...]] = {
    "agent": OF_THE_AGENT,
    "against": (*_OF_THE_REFERENCE, "baseline"),
    "baseline": ("against", *_OF_THE_REFERENCE),
    "tag": ("scenarios",),
    "scenarios": ("tag",),
    "library": ("scenarios", "tag"),
}
