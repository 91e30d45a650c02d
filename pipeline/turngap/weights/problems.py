"""Why weights cannot be had, each as an error that says what to do."""

from collections.abc import Iterable
from pathlib import Path

from turngap.backends import Weights
from turngap.core.errors import AgentError
from turngap.core.sizes import bytes_words


def problem(kind: str, message: str, remedy: str) -> AgentError:
    """An error of that kind."""
    return AgentError(f"weights.{kind}", message, hint=remedy)


def with_folder(error: AgentError, wanted: Iterable[Weights]) -> AgentError:
    """The same error that also tells the way for machines without a network.

    A copy of the folder may turn links into files, which does no harm.
    """
    what = " ".join(dict.fromkeys(weights.fetched_as or "STACK" for weights in wanted))
    way = (
        f"to take weights from a folder, run `HF_HUB_CACHE=weights turngap fetch {what}` where "
        "there is a network, copy the folder `weights` here, and set HF_HUB_CACHE to it"
    )
    return AgentError(error.kind, error.message, hint=f"{error.hint}; {way}")


def offline(names: str) -> AgentError:
    """Fetching is forbidden."""
    return problem(
        "offline",
        f"{names}: not on this machine, and HF_HUB_OFFLINE forbids to fetch it",
        "unset HF_HUB_OFFLINE",
    )


def not_reached(host: str, why: str) -> AgentError:
    """There is no network, or no such host."""
    return problem(
        "network",
        f"{host} cannot be reached: {why}",
        "check the network, and HTTPS_PROXY if you need a proxy",
    )


def by_proxy(host: str, why: str) -> AgentError:
    """A proxy stands between, and refuses."""
    return problem(
        "proxy",
        f"the proxy does not let {host} be reached: {why}",
        "check HTTPS_PROXY and HTTP_PROXY",
    )


def stalled(host: str, file: str, times: int, wait_s: float, got: int) -> AgentError:
    """The connection is too bad to get on."""
    return problem(
        "stalled",
        f"the download of {file} broke off {times} times in a row: {host} sent nothing more within "
        f"{wait_s:g} s, or closed the connection ({bytes_words(got)} of it are kept)",
        "start it again to go on from there; HF_HUB_DOWNLOAD_TIMEOUT sets the seconds",
    )


def denied(weights: Weights, status: int) -> AgentError:
    """HTTP 401 or 403."""
    return problem(
        "denied",
        f"{weights.repository}: the hub refuses it (HTTP {status}): it is private, its terms have "
        "to be accepted first, or there is no such repository",
        "accept its terms on its page, and set HF_TOKEN to a token that may read it",
    )


def unknown(weights: Weights, what: str) -> AgentError:
    """HTTP 404."""
    return problem(
        "unknown",
        f"{weights.repository}: the hub has no {what} at revision {weights.revision}",
        "check the name",
    )


def not_a_hub(host: str) -> AgentError:
    """Something else answers, as the login page of a hotel's network does."""
    return problem(
        "not_a_hub",
        f"{host} does not answer as the Hugging Face hub does: a login page or a proxy may stand "
        "before it",
        "open it in a browser; HF_ENDPOINT, where it is set, has to name a hub",
    )


def hub_fails(host: str, status: int) -> AgentError:
    """Any other HTTP status."""
    return problem("hub", f"{host} answers with HTTP {status}", "try again later")


def wrong_digest(weights: Weights, file: str, removed: bool) -> AgentError:
    """It is another file than the pinned one."""
    what = "what came was removed" if removed else "nothing was fetched"
    by = f"in {weights.pins}" if weights.pins else "that turngap knows"
    return problem(
        "digest",
        f"{file} of {weights.repository} is not the file {by} (another size or SHA-256); {what}",
        "try once more; if it stays, somebody has changed the file on the way or on the hub",
    )


def no_room(cache: Path, need: int | None, free: int | None) -> AgentError:
    """The disk is full, or would be."""
    wanted = "the download" if need is None else f"{bytes_words(need)}"
    there = "" if free is None else f" ({bytes_words(free)} are free)"
    return problem(
        "no_room",
        f"there is no room for {wanted} in {cache}{there}",
        "free some, or set HF_HUB_CACHE to a folder on another disk",
    )


def not_writable(cache: Path, why: str) -> AgentError:
    """The cache is not ours to write to, or the disk is broken."""
    return problem(
        "cache",
        f"{cache} cannot be written to: {why}",
        "set HF_HUB_CACHE to a folder that you may write to",
    )
