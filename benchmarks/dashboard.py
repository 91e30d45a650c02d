"""Ask a real Prometheus every query of examples/grafana.json, and say which panels stay empty.

    apt-get install prometheus
    python benchmarks/dashboard.py

It serves what `turngap serve`, `turngap report --prometheus` and turngap's telemetry tell (made-up
turns), lets promtool check each page, has Prometheus scrape them for some seconds, and then asks.
The telemetry's metrics have the names that OpenTelemetry's rules give them in Prometheus; no
collector is between. It exits with 1 if a query fails or finds nothing.
"""

import argparse
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import grafana_dashboard as dashboard
from made_records import make_run, make_turn, scaled
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from turngap.agent.metrics import ENGINES, REASONS, Metrics
from turngap.core.budget import GAP_BUCKETS_S, OUTCOMES, REPLIED
from turngap.core.stages import USUAL_MARKS
from turngap.marks.turn import AgentTurn
from turngap.report.prometheus import prometheus_text
from turngap.telemetry.names import METRIC_ATTRIBUTES, STAGES
from turngap.telemetry.names import METRICS as TOLD
from turngap.testing import ManualClock

MS = 1_000_000
SCRAPES_S = 12.0


class Pages:
    """The pages that are scraped; a little happens between two scrapes."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._served = Metrics(ManualClock())
        self._served.seats(4)
        self._registry = CollectorRegistry()
        self._told = {name: self._made(name) for name in TOLD}
        self._runs = prometheus_text(make_run([*self._turns(200)], name="replay"))

    def _made(self, name: str) -> Any:
        unit, kind, about = TOLD[name]
        named = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        labels = [label.replace(".", "_") for label in METRIC_ATTRIBUTES]
        if kind == "histogram":
            return Histogram(named, about, labels, registry=self._registry, buckets=GAP_BUCKETS_S)
        return Counter(named, about, labels, registry=self._registry)

    def _turns(self, n: int) -> Iterator[Any]:
        for turn in range(n):
            factor = self._random.lognormvariate(0, 0.4)
            yield make_turn(turn=turn + 1, marks_ms=scaled(factor))

    def page(self, path: str) -> bytes | None:
        """A page as it is now, after something more has happened."""
        match path:
            case "/serve":
                self._happen()
                return self._served.page()
            case "/told":
                self._tell()
                return generate_latest(self._registry)
            case "/run":
                return self._runs
        return None

    def _happen(self) -> None:
        silent = 1_000_000 * MS
        at = {"endpoint": 200, "transcript": 210, "llm_request": 215, "llm_first_token": 330}
        at |= {"tts_request": 335, "tts_first_audio": 360, "tts_first_audible": 361, "sent": 365}
        factor = self._random.lognormvariate(0, 0.3)
        marks = {name: silent + round(ms * factor * MS) for name, ms in at.items()}
        turn = AgentTurn(number=1, marks=marks)
        turn.silent_ns = silent
        self._served.turn_over(turn)
        self._served.refused(self._random.choice(REASONS))
        self._served.engine_failed(self._random.choice(ENGINES))
        self._served._lag.observe(self._random.expovariate(500))

    def _tell(self) -> None:
        for name, metric in self._told.items():
            if name == STAGES:
                for stage in USUAL_MARKS[1:]:
                    metric.labels("bot", "answered", stage).observe(self._random.expovariate(20))
            elif isinstance(metric, Counter):
                for outcome in OUTCOMES:
                    metric.labels("bot", outcome, "").inc(10 if outcome == "answered" else 1)
            else:
                for outcome in REPLIED:
                    gap_s = self._random.lognormvariate(-0.9, 0.3)
                    metric.labels("bot", outcome, "").observe(gap_s)


@contextmanager
def serving(pages: Pages) -> Iterator[int]:
    """Serve the pages on this machine; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.page(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prometheus(scraped: int, port: int, folder: Path) -> Iterator[str]:
    """Run Prometheus on what is served; yields its URL once it is ready.

    Raises:
        SystemExit: it ended, or was not ready within half a minute.
    """
    jobs = [
        {
            "job_name": name,
            "metrics_path": f"/{name}",
            "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}],
        }
        for name in ("serve", "told", "run")
    ]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            if process.poll() is not None:
                break
            try:
                with urlopen(f"{url}/-/ready", timeout=1):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit("Prometheus was not ready in time")
        if process.poll() is not None:
            raise SystemExit((folder / "log").read_text(encoding="utf-8"))
        yield url
    finally:
        process.terminate()
        process.wait(10)


def asked(url: str, path: str, **parameters: str) -> Any:
    """What Prometheus answers; an error is a text."""
    try:
        with urlopen(f"{url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError as e:
        return getattr(e, "reason", None) or str(e)


def checked(pages: Pages) -> bool:
    """Whether promtool finds nothing in any page; prints what it finds."""
    right = True
    for path in ("/serve", "/told", "/run"):
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=pages.page(path),
            capture_output=True,
            check=False,
        )
        said = (done.stdout + done.stderr).decode().strip()
        print(f"promtool {path}: {said or 'nothing to say'}")
        right = right and done.returncode == 0
    return right


def main() -> int:
    """Ask every query, and every variable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=19090, help="Prometheus listens here.")
    port = parser.parse_args().port
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        raise SystemExit("prometheus and promtool are not installed: apt-get install prometheus")
    made, pages = dashboard.dashboard(), Pages()
    empty = 0 if checked(pages) else 1
    with (
        tempfile.TemporaryDirectory(prefix="turngap-dashboard-") as folder,
        serving(pages) as scraped,
        prometheus(scraped, port, Path(folder)) as url,
    ):
        time.sleep(SCRAPES_S)
        for panel in made["panels"]:
            for target in panel.get("targets", ()):
                query = dashboard.substituted(target["expr"])
                answer = asked(url, "query", query=query)
                found = answer["result"] if isinstance(answer, dict) else []
                values = [float(one["value"][1]) for one in found]
                empty += not any(not math.isnan(value) for value in values)
                shown = ", ".join(f"{value:.4g}" for value in values[:4]) or f"EMPTY: {answer}"
                print(f"{panel['title']} {target['refId']}: {len(values)} series: {shown}")
        for variable in made["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = variable["query"]["query"][13:-1].split(", ")
                found = asked(url, f"label/{label}/values", **{"match[]": metric})
                empty += not found
                print(f"${variable['name']}: {found}")
    print(f"{empty} empty or failed")
    return 1 if empty else 0


if __name__ == "__main__":
    sys.exit(main())
