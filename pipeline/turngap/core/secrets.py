"""What must never be stored or shown: keys, tokens, passwords.

A secret is told by the name that it stands under (`api_key`, `--api-key`, `X-Amz-Signature`), by
its shape (`sk-…`, `AKIA…`, a JWT), or because a setting of that name held it before: an agent that
repeats its key in an error gives it away no more than its settings do. `${NAME}`, which stands for
an environment variable, gives nothing away and stays.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

REMOVED = "(removed)"

# What people and agents say to each other, by the name that it is stored under. Of "your secret:
# rainbow" nothing is taken away there.
_SPOKEN = {"say", "transcript", "reply", "heard", "text"}

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
_NAME = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)(?P<equals>\\*[\"']?\s{0,4}(?P<sign>[=:])\s{0,4})"
)
_VALUE = re.compile(
    r"(?P<opening>\\*\"|\\*'|)(?P<given>(?<=\")[^\"\\\n]*|(?<=')[^'\\\n]*"
    r"|(?:\$\{[A-Za-z_]\w*\}|[^\s,;&\"'{}\[\]()<>\\])[^\s,;&\"'{}\[\]<>\\]*)"
)
_VARIABLE = re.compile(r"\$\{[A-Za-z_]\w*\}")
_VARIABLE_IN_HEADER = re.compile(r"(?:[\w-]+\s+)?\$\{[A-Za-z_]\w*")
# Where a caller keeps no query, the token is the end of the path.
_PATH_TOKEN = re.compile(r"(?<=/twilio/)(?!\$\{\w+\}(?:/|$))[^/]+")
_HOST = re.compile(r"(?:[a-z0-9-]+\.)+[a-z]{2,24}\.?(?::\d+)?", re.IGNORECASE)
_VALUES = re.compile(r"[\s;,=:&\"'\\]+")
# Another name and its secret may stand in a value of this length that is none itself.
_MOST_NESTED = 64
_MIXED = re.compile(r"\d[A-Za-z]|[A-Za-z]\d")
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
    r"|(?<=insecure-api-key\.)(?!\$\{|\(removed)[^\s\"',]+"
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
    text = _without_assigned(text)
    text = _FLAG.sub(_clean_flag, text)
    text = _SCHEME.sub(_clean_scheme, text)
    return _SHAPES.sub(REMOVED, text)


def header_without_secret(header: str) -> str:
    """Remove the value of an HTTP header, `Name: value`, if it is a secret."""
    name, _, value = header.partition(":")
    if _VARIABLE.fullmatch(value.strip().rpartition(" ")[2]):
        return header
    return f"{name}: {without_secrets({name: value.strip()})[name]}"


def spoken_without_secrets(text: str) -> str:
    """Remove the secrets in what was spoken: none that may be a word.

    In speech a name before a word tells nothing: "the password: it is reset". What is long and
    mixed is removed there, too.
    """
    text = _URL.sub(lambda found: _clean_url(found.group()), without_known_secrets(text))
    if any(map(_is_its_own_kind, _VALUES.split(text))):
        text = _HEADER.sub(lambda found: _clean_header(found, _is_its_own_kind), text)
        text = _without_assigned(text, spoken=True)
    return _SHAPES.sub(REMOVED, _SCHEME.sub(_clean_scheme, text))


def without_known_secrets(text: str) -> str:
    """Remove the secrets that a setting held; it changes nothing else, so markup stays whole."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    return text


def texts_without_secrets(value: Any) -> Any:
    """Clean every text in a JSON value.

    The names in it tell no secret, but those of a tool's arguments, and what was spoken.
    """
    if isinstance(value, str):
        return text_without_secrets(value)
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return {key: _named_text(key, item) for key, item in named.items()}
    if isinstance(value, list | tuple):
        items = [texts_without_secrets(item) for item in cast("Sequence[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def _named_text(key: str, value: Any) -> Any:
    if key in _SPOKEN and isinstance(value, str):
        return spoken_without_secrets(value)
    if key == "arguments" and isinstance(value, Mapping):
        return without_secrets(cast("Mapping[str, Any]", value))
    return texts_without_secrets(value)


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
    for found in _assigned(value):
        _remember(found["given"])
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
    """Keep a secret in mind, unless it may be any word, a host's name or a path."""
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, Any]", value).values())
    if isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            _remember(item)
    if not isinstance(value, str):
        return
    secret = value.strip().rpartition(" ")[2]
    if "://" in secret:
        text_without_secrets(secret)  # learns what is in it
    elif _is_its_own_kind(secret):
        _known.update((secret, quote(secret, safe="")))


def _is_secret(key: str, value: Any) -> bool:
    """Tell by the name, of which the words may be in snake_case, kebab-case or camelCase."""
    if isinstance(value, str) and (value.lower() in _NO_VALUES or _VARIABLE.fullmatch(value)):
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


def _is_no_word(text: str) -> bool:
    """Whether a text is rather a secret than a word of a sentence."""
    return len(text) >= 16 or "=" in text or (len(text) >= 6 and bool(re.search(r"\d", text)))


def _is_its_own_kind(text: str) -> bool:
    """Whether a text is so long and mixed that nothing else that is stored is likely to hold it."""
    if len(text) < 8 or text.startswith(("/", "./", "../", "~")) or _HOST.fullmatch(text):
        return False
    pieces = re.split(r"[^A-Za-z0-9]", text)
    return any(
        (len(p) >= 6 and _MIXED.search(p)) or (len(p) >= 16 and not p.isdigit()) for p in pieces
    )


def _assigned(text: str, *, spoken: bool = False) -> Iterator[re.Match[str]]:
    """Each value in a text that stands behind a secret's name.

    A value behind another name is searched itself: `error: password=…`.
    """
    end = 0
    for named in _NAME.finditer(text):
        # The value is looked at only behind such a name, for a time that is linear in the text.
        name = _last(named["name"])
        if named.start() < end or not _is_secret(name, "a1b2c3d4"):
            continue
        if (found := _VALUE.match(text, named.end())) is None:
            continue
        if _gives_away(name, named["equals"], found) and not (
            spoken and not _is_its_own_kind(found["given"])
        ):
            yield found
        elif len(found["given"]) < _MOST_NESTED:
            continue
        end = found.end()


def _gives_away(name: str, equals: str, found: re.Match[str]) -> bool:
    given = found["given"]
    if REMOVED in given or not _is_secret(name, given):
        return False
    # In prose, `unexpected token: end` and `your secret: rainbow` give nothing away.
    prose = ":" in equals and not found["opening"]
    return not prose or _is_no_word(given)


def _without_assigned(text: str, *, spoken: bool = False) -> str:
    pieces: list[str] = []
    end = 0
    for found in _assigned(text, spoken=spoken):
        pieces += (text[end : found.start("given")], REMOVED)
        end = found.end()
    return "".join((*pieces, text[end:]))


def _clean_header(found: re.Match[str], told: Callable[[str], bool] | None = None) -> str:
    given = found[3].strip()
    if told is None and found[1].lower().endswith("cookie"):
        told = _is_no_word
    if _VARIABLE_IN_HEADER.fullmatch(given) and found.string.startswith("}", found.end()):
        return found.group()
    if given == REMOVED or (told and not any(map(told, _VALUES.split(given)))):
        return found.group()  # "Cookie: chocolate chip, two dozen"
    return f"{found[1]}{found[2]}{REMOVED}"


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
    password = user.rpartition(":")[2]
    if _VARIABLE.fullmatch(password):
        user, host = "", parts.netloc
    _remember(unquote(password))
    path = _PATH_TOKEN.sub(_clean_path, parts.path)
    signed = any(_signs(key, value) for key, value in (*query, *fragment))
    if not user and not signed and path == parts.path:
        return url
    named = bool(fragment) and any(_signs(key, value) for key, value in fragment)
    return urlunsplit(
        parts._replace(
            netloc=host,
            path=path,
            query=_cleaned(query),
            fragment=_cleaned(fragment) if named else parts.fragment,
        )
    )


def _clean_path(found: re.Match[str]) -> str:
    segment = unquote(found[0])
    if not _is_its_own_kind(segment):
        return found[0]  # a path like any other, as /twilio/media
    _remember(segment)
    return REMOVED


def _signs(key: str, value: str) -> bool:
    if _VARIABLE.fullmatch(value):
        return False
    words = set(re.findall(r"[a-z]+", key.lower()))
    maybe = words & (_SIGNING_WORDS | _MAYBE_SECRET_WORDS) and value
    return bool(maybe) or _is_secret(key, value)


def _cleaned(pairs: Sequence[tuple[str, str]]) -> str:
    for key, value in pairs:
        if _signs(key, value):
            _remember(value)
    return "&".join(
        f"{quote(key)}={REMOVED if _signs(key, value) else quote(value, safe='/${}')}"
        for key, value in pairs
    )
