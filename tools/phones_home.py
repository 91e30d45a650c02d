"""Run a command and show every address that it, or anything that it starts, talks to.

    python tools/phones_home.py ./run
    python tools/phones_home.py --cut ./run test
    python tools/phones_home.py --cut --seconds 20 ./run talk

It needs Linux and strace. `--cut` also takes the network away: the command sees only loopback
(unshare, with the user's own namespaces, which some machines forbid). Ends with 1 if the command
tried to reach anything but this machine, with 0 otherwise, whatever the command itself ended with.
"""

import argparse
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# How a socket is sent anywhere. Others (write, io_uring on a connected one) need a connect before.
CALLS = "connect,sendto,sendmsg,sendmmsg"
ADDRESS = re.compile(
    r"(?P<call>connect|sendto|sendmsg|sendmmsg)\(.*?"
    r"(?:sin6?_port=htons\((?P<port>\d+)\).*?"
    r'(?:inet_addr\("(?P<v4>[^"]+)"\)|inet_pton\(AF_INET6, "(?P<v6>[^"]+)")'
    r'|sa_family=AF_UNIX, sun_path=@?"(?P<unix>[^"]*)")'
)
LOOPBACK = re.compile(r"127\.|::1$|::ffff:127\.")
# Chromium asks the kernel for a route to IPv6 by connecting a UDP socket to this address. It sends
# nothing there, and no flag stops it. A packet to it would be another call, and is counted.
ROUTE_ASKED = ("connect", "2001:4860:4860::8888", "443")


def addresses(trace: Iterable[str]) -> Counter[tuple[str, str, str]]:
    """Count the calls to each host and port in strace's lines; unix sockets by path."""
    found: Counter[tuple[str, str, str]] = Counter()
    for line in trace:
        for match in ADDRESS.finditer(line):
            host = match["v4"] or match["v6"] or "unix"
            found[match["call"], host, match["port"] or match["unix"] or ""] += 1
    return found


def is_here(host: str) -> bool:
    """Return whether a host, as strace writes it, is this machine."""
    return host == "unix" or LOOPBACK.match(host) is not None


def traced(command: list[str], *, cut: bool, seconds: float | None, trace: Path) -> int:
    """Run the command to its end, or for so long, and have strace write to `trace`."""
    # With --seccomp-bpf nothing but these calls is slowed down.
    tracer = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", f"trace={CALLS}", "-o", str(trace)]
    if cut:
        inside = f"ip link set lo up && exec {shlex.join([*tracer, *command])}"
        tracer, command = ["unshare", "--map-root-user", "--net", "sh", "-c", inside], []
    process = subprocess.Popen([*tracer, *command], start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        subprocess.run(["kill", "-INT", "--", f"-{process.pid}"], check=False)
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False)
            return process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--cut", action="store_true", help="take the network away, but loopback")
    parser.add_argument("--seconds", type=float, help="interrupt the command after so long")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    needed = ["strace", *(["unshare", "ip"] if arguments.cut else [])]
    if missing := [tool for tool in needed if shutil.which(tool) is None]:
        parser.error(f"needs {' and '.join(missing)} (on Debian or Ubuntu: strace, iproute2)")
    if not arguments.command:
        parser.error("which command?")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace")
        code = traced(arguments.command, cut=arguments.cut, seconds=arguments.seconds, trace=trace)
        if not trace.is_file():
            parser.error("strace or unshare did not start (is ptrace forbidden here?)")
        with trace.open(encoding="utf-8", errors="replace") as lines:
            found = addresses(lines)
    here, away, asked = Counter[str](), Counter[str](), Counter[str]()
    for (call, host, where), n in found.items():
        if (call, host, where) == ROUTE_ASKED:
            asked["by Chromium, of the kernel, for a route to IPv6"] += n
        elif is_here(host):
            here[f"{call} {'unix sockets' if host == 'unix' else 'loopback'}"] += n
        else:
            away[f"{call} {host} port {where}"] += n
    print(f"\nthe command ended with {code}")
    for title, counted in (("to this machine", here), ("nothing sent", asked), ("to others", away)):
        print(f"{title}: {sum(counted.values())}")
        for what, n in counted.most_common():
            print(f"  {n:6d}  {what}")
    return 1 if away else 0


if __name__ == "__main__":
    sys.exit(main())
