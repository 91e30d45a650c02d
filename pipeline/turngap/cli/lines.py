"""`turngap line`."""

import asyncio
import signal
from typing import Any
from urllib.parse import urlsplit

import typer

from turngap.caller.line.proxy import Place, Proxy, shown
from turngap.caller.line.spec import EXAMPLE, LineSpec, parse_line, profiles
from turngap.cli.shared import print_json, print_text, say
from turngap.core.errors import InputError
from turngap.play.options import Asked


def line(_: typer.Context, asked: Asked) -> None:
    """List the lines that have a name, or put a line between any client and a server.

    With --to, every connection to --listen goes to the server over a line of its own, which has the
    same faults each time. TLS passes through. When a connection ends, stderr says what crossed it.

    Exit: 0 listed, or when you end it; 2 bad input; 4 no server, or no port.
    """
    spec = parse_line(asked.line) if asked.line else None
    if not asked.to:
        _list([spec] if spec else list(profiles().values()), as_json=asked.json_)
        return
    if spec is None:
        raise InputError("line.missing", "which line? None is given", hint=EXAMPLE)
    listen, to = _place(asked.listen, "--listen"), _place(asked.to, "--to")
    asyncio.run(_serve(spec, listen, to, as_json=asked.json_))


def _place(text: str, flag: str) -> Place:
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.port is not None and parts.netloc == text:
            return parts.hostname, parts.port
    except ValueError:
        pass
    hint = f"for example {flag} 127.0.0.1:8765"
    if "://" in text:
        hint += ", without ws:// and the path: your client gives these as ever"
    raise InputError("line.place", f"{flag} {text!r}: expected HOST:PORT", hint=hint)


async def _serve(spec: LineSpec, listen: Place, to: Place, *, as_json: bool) -> None:
    proxy, over = Proxy(spec, to, say), asyncio.Event()
    at = await proxy.listen(listen)
    try:
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(each, over.set)
        if as_json:
            print_json({"listen": shown(at), "to": shown(to), **_document(spec)})
        else:
            say(f"{shown(at)} leads to {shown(to)} over {spec.text} (Ctrl-C ends it)")
        await over.wait()
    finally:
        await proxy.close()


def _list(specs: list[LineSpec], *, as_json: bool) -> None:
    if as_json:
        print_json([_document(spec) for spec in specs])
        return
    wide = max(len(spec.text) for spec in specs) + 2
    for spec in specs:
        about = [text for text in (spec.about, spec.faults, spec.source) if text]
        print_text(f"{spec.text:<{wide}}" + f"\n{'':<{wide}}".join(about))


def _document(spec: LineSpec) -> dict[str, Any]:
    about = {"about": spec.about, "faults": spec.faults, "source": spec.source}
    return {"line": spec.text, **about, **spec.numbers()}
