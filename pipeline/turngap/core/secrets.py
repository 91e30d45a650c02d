"""What must never be stored or shown: keys, tokens, passwords.

A secret is told by the name that it stands under (`api_key`, `--api-key`, `X-Amz-Signature`), by
its shape (`sk-…`, `AKIA…`, a JWT), or because a setting of that name held it before: an agent that
repeats its key in an error gives it away no more than its settings do.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

REMOVED = "(removed)"

# Words that make a key's name a secret's, whatever the value's type.
_SECRET_WORDS = {
    "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt",
    "passphrase", "passwd", "password", "pwd", "secret", "secrets",
}  # fmt: skip
_SECRET_ENDS = ("apikey", "password", "secret", "token")
# In these a number is a setting (`first_token_ms`, `max_tokens`), a text may be a secret.
_MAYBE_SECRET_WORDS = {"key", "keys", "token"}
# Besides them in a URL's query: what signs it, and what a signature is good for.
_SIGNING_WORDS = {"sig", "signature", "policy", "expires", "sas"}
_NO_VALUES = {"", "true", "false", "none", "null", REMOVED}

# Texts come from agents, so each pattern takes a time in proportion to the text: a name is tried
# where it begins and nowhere within it.
_URL = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]++://[^\s\"'<>\\]+", re.IGNORECASE)
# A name and what it is given: `a=b`, `a: b`, `"a": "b"`, also within a JSON text (`\"a\": \"b\"`).
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)(?P<equals>\\*[\"']?\s{0,4}(?P<sign>[=:])\s{0,4})"
    r"(?P<value>\\*\"[^\"\\\n]*|\\*'[^'\\\n]*|[^\s,;&\"'{}\[\]()<>\\][^\s,;&\"'{}\[\]<>\\]*)"
)
# Headers whose value has spaces in it.
_HEADER = re.compile(
    r"(\b(?:set-)?cookie|\b(?:proxy-)?authorization)(\\*[\"']?\s{0,4}[=:]\s{0,4}\\*[\"']?)"
    r"([^\r\n\"'\\}]+)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+([\w.~+/=-]{6,})", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w.-])(--?[A-Za-z][\w.-]*+)(\s+[\"']?)([^\s\"'-][^\s\"']*)")
# As their makers document them; the last two are JWTs and private keys.
_SHAPES = re.compile(
    r"\b(?:sk|rk|pk)[-_](?=[\w-]{0,99}\d)[\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{12,}"
    r"|\b(?:gh[pousr]|hf|gsk|npm)_[A-Za-z0-9]{12,}|\bgithub_pat_\w{12,}"
    r"|\b(?:glpat|nvapi|xox[abeoprs]|xapp)-[\w-]{8,}"
    r"|\bAIza[\w-]{20,}|\bya29\.[\w-]{12,}"
    r"|(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)

# What stood under a secret's name so far, in this process.
_known: set[str] = set()


def remember_secrets(settings: Mapping[str, Any]) -> None:
    """Learn the secrets among these settings or environment variables.

    They are removed from every text from now on. The paths of files that hold secrets are none.
    """
    without_secrets({k: v for k, v in settings.items() if not str(v).startswith("/")})


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the values of keys, tokens and passwords, at any depth.

    The name of a key tells a secret (`api_key`, `Authorization`, `hfToken`), and so does the
    argument before it (`--api-key`); numbers under `key` and `token` are settings and stay. Texts
    lose what `text_without_secrets` finds. In doubt a value is removed.
    """
    return {key: _without_secrets(key, value) for key, value in settings.items()}


def text_without_secrets(text: str) -> str:
    """Remove the secrets in a text: in URLs, arguments, assignments, headers, or told by shape.

    A secret that a setting held is removed wherever it stands.
    """
    text = without_known_secrets(text)
    text = _URL.sub(lambda found: _clean_url(found.group()), text)
    text = _HEADER.sub(_clean_header, text)
    text = _ASSIGNED.sub(_clean_assigned, text)
    text = _FLAG.sub(_clean_flag, text)
    text = _SCHEME.sub(_clean_scheme, text)
    return _SHAPES.sub(REMOVED, text)


def without_known_secrets(text: str) -> str:
    """Remove the secrets that a setting held; it changes nothing else, so markup stays whole."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    return text


def texts_without_secrets(value: Any) -> Any:
    """Clean every text in a JSON value; the names in it tell nothing here."""
    if isinstance(value, str):
        return text_without_secrets(value)
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {key: texts_without_secrets(item) for key, item in named.items()}
    if isinstance(value, list | tuple):
        items = [texts_without_secrets(item) for item in cast("Sequence[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _without_secrets(key: str, value: Any) -> Any:
    if value is not None and not isinstance(value, bool) and _is_secret(key, value):
        _remember(value)
        return REMOVED
    if isinstance(value, Mapping):
        return without_secrets(cast("Mapping[str, Any]", value))
    if isinstance(value, list | tuple):
        return _arguments(cast("Sequence[Any]", value))
    if not isinstance(value, str):
        return value
    for found in _ASSIGNED.finditer(value):
        given = found["value"].lstrip("\\\"'")
        if _is_secret(_last(found["name"]), given):
            _remember(given.rpartition(" ")[2])
    return text_without_secrets(value)


def _arguments(values: Sequence[Any]) -> list[Any]:
    """A list, in which an argument or a header's name may tell that the next value is a secret."""
    cleaned: list[Any] = []
    name = ""
    for value in values:
        is_name = isinstance(value, str) and (value.startswith("-") or len(values) == 2)
        cleaned.append(_without_secrets("" if is_name and value[0:1] == "-" else name, value))
        name = value.lstrip("-") if is_name and "=" not in value else ""
    return cleaned


def _remember(value: Any) -> None:
    """Keep a secret in mind, unless it is so short or plain that it may be any word."""
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, Any]", value).values())
    if isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            _remember(item)
    if not isinstance(value, str):
        return
    secret = value.strip().rpartition(" ")[2]
    plain = secret.isalpha() and len(secret) < 16
    if len(secret) >= 6 and not plain and any(c.isalpha() for c in secret):
        _known.update((secret, quote(secret, safe="")))


def _is_secret(key: str, value: Any) -> bool:
    """Tell by the name, of which the words may be in snake_case, kebab-case or camelCase."""
    if isinstance(value, str) and value.lower() in _NO_VALUES:
        return False
    words = re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key).lower())
    if words[-1:] == ["env"] and re.fullmatch(r"[A-Z][A-Z0-9_]*", str(value)):
        return False  # the name of an environment variable
    named = set(words)
    if named & _SECRET_WORDS:
        return True
    if isinstance(value, int | float) or (isinstance(value, str) and _is_number(value)):
        return False
    if words in (["key"], ["keys"]):  # of a table, a song or a lock
        return isinstance(value, str) and _looks_random(value)
    return bool(named & _MAYBE_SECRET_WORDS) or any(word.endswith(_SECRET_ENDS) for word in words)


def _last(name: str) -> str:
    """The setting's own name, without those of its tables."""
    return name.rpartition(".")[2]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?(?:ms|s)?", text) is not None


def _looks_random(text: str) -> bool:
    return len(text) >= 8 and " " not in text and bool(re.search(r"\d", text))


def _clean_assigned(found: re.Match[str]) -> str:
    name, value = _last(found["name"]), found["value"]
    quotes = re.match(r"\\*[\"']?", value)
    opening = quotes.group() if quotes else ""
    given = value.removeprefix(opening)
    if REMOVED in given or not _is_secret(name, given):
        return found.group()
    # In prose, `unexpected token: end` says nothing secret.
    if found["sign"] == ":" and name.lower() == "token" and not _looks_random(given):
        return found.group()
    return f"{found['name']}{found['equals']}{opening}{REMOVED}"


def _clean_header(found: re.Match[str]) -> str:
    return found.group() if found[3].strip() == REMOVED else f"{found[1]}{found[2]}{REMOVED}"


def _clean_flag(found: re.Match[str]) -> str:
    name, space, value = found.groups()
    # `--token TOKEN` and `use --token to …` are help.
    if value.isalpha() and (value.isupper() or len(value) < 6):
        return found.group()
    return f"{name}{space}{REMOVED}" if _is_secret(_last(name), value) else found.group()


def _clean_scheme(found: re.Match[str]) -> str:
    plain = found[2].isalpha() and (found[1].lower() == "basic" or len(found[2]) < 16)
    return found.group() if plain else f"{found[1]} {REMOVED}"


def _clean_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        fragment = parse_qsl(parts.fragment, keep_blank_values=True)
    except ValueError:
        return REMOVED
    user, _, host = parts.netloc.rpartition("@")
    _remember(unquote(user.rpartition(":")[2]))
    if not user and not any(_signs(key, value) for key, value in (*query, *fragment)):
        return url
    named = bool(fragment) and any(_signs(key, value) for key, value in fragment)
    return urlunsplit(
        parts._replace(
            netloc=host,
            query=_cleaned(query),
            fragment=_cleaned(fragment) if named else parts.fragment,
        )
    )


def _signs(key: str, value: str) -> bool:
    words = set(re.findall(r"[a-z]+", key.lower()))
    maybe = words & (_SIGNING_WORDS | _MAYBE_SECRET_WORDS) and value
    return bool(maybe) or _is_secret(key, value)


def _cleaned(pairs: Sequence[tuple[str, str]]) -> str:
    for key, value in pairs:
        if _signs(key, value):
            _remember(value)
    return "&".join(
        f"{quote(key)}={REMOVED if _signs(key, value) else quote(value)}" for key, value in pairs
    )
