"""What must never be stored or shown: keys, tokens, passwords."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

REMOVED = "(removed)"

# Words that make a key's name a secret's, whatever the value's type.
_SECRET_WORDS = {
    "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials",
    "passphrase", "passwd", "password", "pwd", "secret", "secrets",
}  # fmt: skip
# In these a number is a setting (`first_token_ms`, `max_tokens`), a text may be a secret.
_MAYBE_SECRET_WORDS = {"key", "keys", "token"}
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the values of keys, tokens and passwords, at any depth.

    The name of a key tells a secret (`api_key`, `Authorization`, `hfToken`); numbers under `key`
    and `token` are settings and stay. URLs lose their user part and the secrets of their query.
    In doubt a value is removed.
    """
    return {key: _without_secrets(key, value) for key, value in settings.items()}


def without_url_secrets(text: str) -> str:
    """Remove user, password and secret query values from every URL in `text`."""
    return _URL.sub(lambda found: _clean_url(found.group()), text)


def _without_secrets(key: str, value: Any) -> Any:
    if value is not None and not isinstance(value, bool) and _is_secret(key, value):
        return REMOVED
    if isinstance(value, Mapping):
        return without_secrets(cast("Mapping[str, Any]", value))
    if isinstance(value, list | tuple):
        return [_without_secrets("", item) for item in cast("Sequence[Any]", value)]
    return without_url_secrets(value) if isinstance(value, str) else value


def _is_secret(key: str, value: Any) -> bool:
    # Words of snake_case, kebab-case and camelCase alike.
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key).lower()))
    if words & _SECRET_WORDS:
        return True
    return bool(words & _MAYBE_SECRET_WORDS) and not isinstance(value, int | float)


def _clean_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return REMOVED
    host = parts.netloc.rpartition("@")[2]
    if host == parts.netloc and not any(_is_secret(key, value) for key, value in query):
        return url
    cleaned = "&".join(
        f"{quote(key)}={REMOVED if _is_secret(key, value) else quote(value)}"
        for key, value in query
    )
    return urlunsplit(parts._replace(netloc=host, query=cleaned))
