"""Regular expressions that are searched in linear time, whatever the pattern and the text.

Python's `re` goes back and tries again, for years with some patterns, and cannot be interrupted.
These are matched by the engine of pydantic's core, Rust's `regex`, which never goes back. It has no
look-around and no backreferences; otherwise its syntax is `re`'s.
"""

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

# A pattern for every way of saying a time of day has some 200 characters.
MOST_PATTERN = 1_000
# Twenty minutes of speech, at fifteen characters a second.
MOST_SEARCHED = 20_000


def check(pattern: str) -> None:
    """Refuse a pattern that cannot be searched for.

    Raises:
        ValueError: it is too long, no regular expression, or one that needs to go back.
    """
    if len(pattern) > MOST_PATTERN:
        raise ValueError(f"{len(pattern)} characters, expected at most {MOST_PATTERN}")
    try:
        _engine(pattern)
    except SchemaError as e:
        why = str(e).strip().splitlines()[-1].strip().removeprefix("SchemaError: ")
        raise ValueError(f"not a regular expression: {why.removeprefix('error: ')}") from e


def found(pattern: str, text: str) -> bool:
    """Search a text of at most `MOST_SEARCHED` characters, without regard to case."""
    return _engine(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def _engine(pattern: str) -> SchemaValidator:
    # Twice: a pattern such as "a)(b" must be one by itself.
    for expression in (pattern, f"(?i){pattern}"):
        engine = SchemaValidator(
            core_schema.str_schema(pattern=expression, regex_engine="rust-regex")
        )
    return engine
