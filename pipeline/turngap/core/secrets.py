"""Secrets that are never stored or shown: keys, tokens, passwords.

A value is a secret if a secret's name has it: the name of a setting, a header, a flag or a
parameter of a URL. The user's own secrets, and the values of `${NAME}`, are remembered and removed
from every later text. A secret named by an agent or a stored document is removed only there.
`${NAME}` itself reveals nothing and stays.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast
from urllib.parse import quote, unquote_plus

REMOVED = "(removed)"

# Words of a secret's name. Under the second ones a number is a setting (`first_token_ms`).
_WORDS = {
    *("apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "jwt"),
    *("passphrase", "passwd", "password", "pwd", "secret", "secrets", "signature"),
}
# Of the header `Authorization`, before its secret.
_SCHEMES = {"bearer", "digest", "negotiate"}
_MAYBE = {"key", "keys", "token"}
# Alone these are names of much else, but not in a URL's query.
_IN_URLS = {"key", "sig", "policy", "expires"}
# Texts come from agents, so a name is tried where it begins, which takes a time in proportion to
# the text. It is given a value by a flag, by `=`, in JSON, or as a header.
_NAME = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?P<sign>\s?=\s?|\\*[\"']\s?:\s?|:\s?|\s)")
_VALUE = re.compile(
    r"(?P<open>\\*[\"'])?"
    r"(?P<given>(?(open)[^\"'\\\n]{1,2000}|(?:\$\{\w+\})?[^\s,;&\"'{}<>\\]{0,2000}))"
)
_LINE = re.compile(r"(?P<given>[^\r\n\"'\\}]{1,8000})")
_URL = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]++://[^\s\"'<>\\]+", re.IGNORECASE)
_USER = re.compile(r"(?<=://)(?![^/?#@]*\$\{)[^/?#]*@")
_PARAMETER = re.compile(r"(?<=[?&#])([^=&#]+)=([^&#]*)")
# Where a protocol has no other place for a token: a phone bot's path, a browser's subprotocol.
_PLACE = re.compile(
    r"(?:(?<=/twilio/)|(?<=Bearer ))(?=[A-Za-z_.~+-]{0,64}\d)[\w.~+-]{8,}"
    r"|(?<=insecure-api-key\.)[^$(\s\"',][^\s\"',]*"
)
# No secret: a word for nothing, `${NAME}`, `$NAME`, or another flag.
_NONE = re.compile(
    r"(?i:true|false|none|null)|(?:\w+ )?\$(?:\{\w*\}?|[A-Z][A-Z0-9_]*)|.*\(removed.*|…"
    r"|-\w|--[a-z-]+|"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
# What is long and mixed, and so no word of anything else.
_OWN_KIND = re.compile(r"(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{6,}|[a-z]{16,}", re.IGNORECASE)
_HOST_OR_PATH = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,24}\.?(?::\d+)?|[.~]*/.*", re.IGNORECASE)

_CALLED = "arguments"  # of a tool

_Clean = Callable[[str], str]
_Learn = Callable[[Any], None]

_known: tuple[str, ...] = ()  # the longest first


def _forget(value: Any) -> None:
    """Remember nothing, because the cleaned text is not the user's own."""


def remember(secret: str) -> None:
    """Remove this value from every text from now on; skip short values, which words may contain."""
    global _known  # noqa: PLW0603 - what a process was given
    secret = secret.strip()
    if len(secret) >= 6 and REMOVED not in secret and secret not in _known:
        forms = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], *_known}
        _known = tuple(sorted(forms, key=len, reverse=True))


def remember_arguments(words: Sequence[str]) -> None:
    """Remember the secrets in a user's flags, headers and URLs by their names, even plain words."""
    for before, word in pairwise(("", *words)):
        given = [(before, word)] if before[:1] == "-" else []
        for name, value in (*given, *(word.partition(sign)[::2] for sign in "=:")):
            last = name.rpartition(".")[2]
            if re.fullmatch(r"[\w-]+", last) and _is_secret(last, value.strip()):
                _remember_given(value)
        text_without_secrets(word, learn=_remember_given)


def remember_secrets(settings: Mapping[str, Any]) -> None:
    """Remember the secrets among a user's settings or environment variables, by their names."""
    clean = partial(text_without_secrets, learn=_remember_set)
    _masked(settings, clean, "", _remember_set)


def without_known_secrets(text: str) -> str:
    """Remove the remembered values; nothing else changes, so markup stays whole."""
    for secret in _known:
        text = text.replace(secret, REMOVED)
    return text


def cut_without_secrets(text: str, most: int) -> str:
    """Cut a text after `most` characters, and leave no first part of a remembered value."""
    return without_known_secrets(text[: most + max(map(len, _known[:1]), default=0)])[:most]


def pieces_without_secrets(pieces: Sequence[str]) -> list[str]:
    """Clean the pieces of one text; if a secret spans several, put all text into the first."""
    cleaned, whole = [*map(text_without_secrets, pieces)], text_without_secrets("".join(pieces))
    first = iter([whole])
    if "".join(cleaned) == whole:
        return cleaned
    return [next(first, "…") if piece.strip() else piece for piece in pieces]


def shown_without_secrets(value: Any) -> Any:
    """Remove the remembered values from a JSON value's texts and numbers, not from its names."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value).items()
        return {key: shown_without_secrets(each) for key, each in named}
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        return type(items)(map(shown_without_secrets, items))
    if isinstance(value, str):
        return without_known_secrets(value)
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    return REMOVED if str(number) in _known else value


def text_without_secrets(text: str, *, learn: _Learn = _forget) -> str:
    """Remove remembered values and named secrets from a text or URL; pass the latter to `learn`."""
    text = _URL.sub(partial(_clean_url, learn), without_known_secrets(text))
    pieces: list[str] = []
    end = looked_at = 0
    for named in _NAME.finditer(text):
        name, sign = named["name"], named["sign"]
        header = sign[0] == ":" and ("-" in name or name.lower() == "authorization")
        colon = sign[0] == ":" and not header  # a word may follow it in prose, a secret in a log
        gives = header or sign.strip(" ") or name.startswith("--")
        last = name.rpartition(".")[2]
        if named.start() < looked_at or not gives or not _is_secret(last, "a1b2c3d4"):
            continue
        value = (_LINE if header else _VALUE).match(text, named.end())
        placeholder = value and sign == " " and value[0].isalpha() and value[0].isupper()
        if value and colon and not _OWN_KIND.search(value["given"]):
            placeholder = True
            looked_at = looked_at if "=" in value["given"] else value.end("given")
        if value and _is_secret(last, value["given"]) and not placeholder:
            learn(value["given"])
            pieces += (text[end : value.start("given")], REMOVED)
            end = looked_at = value.end("given")
    return _PLACE.sub(REMOVED, "".join((*pieces, text[end:])))


def header_without_secret(header: str) -> str:
    """Remove the value of an HTTP header, `Name: value`, if it is a secret."""
    name, _, value = header.partition(":")
    return f"{name}: {_masked(value.strip(), text_without_secrets, name)}"


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without secrets, at any depth."""
    return shown_without_secrets(_masked(settings, text_without_secrets, ""))


def texts_without_secrets(value: Any, own: Collection[str] = ()) -> Any:
    """Clean all texts and names in a JSON value except turngap's `own`; arguments are settings."""
    return _masked(value, lambda text: text if text in own else text_without_secrets(text))


def _masked(value: Any, clean: _Clean, name: str | None = None, learn: _Learn = _forget) -> Any:
    """Clean the texts and names of a JSON value; its names mark secrets unless `name` is None."""
    tells = name is not None
    if tells and _is_secret(name, value):
        learn(value)
        return REMOVED
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value).items()
        return {
            clean(key): _masked(each, clean, key if tells or key == _CALLED else None, learn)
            for key, each in named
        }
    if isinstance(value, list | tuple):
        # An argument, or the first of a pair, may name the next one.
        items = cast("list[Any] | tuple[Any, ...]", value)
        flags = [str(item) if len(items) == 2 or str(item)[:1] == "-" else "" for item in items]
        before = zip(items, ["", *flags], strict=False)
        return type(items)(
            _masked(item, clean, flag if tells else None, learn) for item, flag in before
        )
    return clean(value) if isinstance(value, str) else value


def _remember(may_be: Callable[[str], object], value: Any) -> None:
    """Remember each part of the user's secret that may be one: a cookie, say, has several."""
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, Any]", value).values())
    if isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            _remember(may_be, inner)
    elif isinstance(value, str):
        words = re.split(r"[\s;,&]+", value)
        for part in (value.strip(), *words, *(word.partition("=")[2] for word in words)):
            if may_be(part):
                remember(part)


# Of a setting or an environment variable: not any word, a host or a path.
_remember_set = partial(
    _remember,
    lambda part: len(part) >= 8 and _OWN_KIND.search(part) and not _HOST_OR_PATH.fullmatch(part),
)
_remember_given = partial(_remember, lambda part: "${" not in part and part.lower() not in _SCHEMES)


def _is_secret(name: str, value: Any) -> bool:
    """Return whether a name is a secret's, in snake_case, kebab-case or camelCase."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())
    variable = words[-1:] == ["env"] and _VARIABLE.fullmatch(str(value))
    if variable or _NONE.fullmatch(str(value)):
        return False
    if words in (["key"], ["keys"]):  # of a song, a table or a lock
        return isinstance(value, str) and len(value) >= 8 and bool(_OWN_KIND.search(value))
    number = re.fullmatch(r"[-+\d.]+(?:e[-+]?\d+)?(?:ms|s)?", str(value)) is not None
    ends = any(word.endswith(("apikey", "password", "secret", "token")) for word in words)
    return bool(_WORDS & {*words}) or (not number and (ends or bool(_MAYBE & {*words})))


def _clean_url(learn: _Learn, url: re.Match[str]) -> str:
    """Remove the user name and password, and the secret parameters, from a URL."""

    def clean(found: re.Match[str]) -> str:
        name, value = map(unquote_plus, found.groups())
        if _NONE.fullmatch(value) or not (name.lower() in _IN_URLS or _is_secret(name, value)):
            return found[0]
        learn(value)
        return f"{found[1]}={REMOVED}"

    if user := _USER.search(url[0]):
        learn(unquote_plus(user[0][:-1].rpartition(":")[2]))
    return _PARAMETER.sub(clean, _USER.sub("", url[0]))
