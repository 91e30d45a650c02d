"""Sum up several runs of pytest: python tools/outcomes.py RESULT.xml RESULT.xml ...

Each file is what `--junitxml` wrote. This repeats what failed and why tests were skipped or not
measured, because the first run's own summary has scrolled away by the end, and then counts them.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from gate.runner import annotate

# How the reason of a skip begins where a test needs a quiet machine (tests/helpers/quiet.py).
NOT_MEASURED = "not measured: "


def cases(result: Path) -> Iterator[ElementTree.Element]:
    """Yield the tests of one run.

    Raises:
        SystemExit: it left no result, or a broken one: it was ended before its end.
    """
    try:
        yield from ElementTree.parse(result).iter("testcase")
    except (OSError, ElementTree.ParseError) as e:
        raise SystemExit(f"outcomes: pytest was ended before it wrote {result.name}: {e}") from e


def tell_github(lines: list[str]) -> None:
    """Warn of what was not measured, since what never is may be broken.

    GitHub shows only some ten annotations of a step, so that all tests are in one.
    """
    names = [line.removeprefix(NOT_MEASURED).partition(": ")[0] for line in lines]
    annotate("warning", f"not measured: {len(lines)}", "\n".join(names))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as out:
            out.write("".join(f"    {line}\n" for line in lines))


def main(results: list[Path]) -> None:
    passed, failed, skipped, busy = 0, list[str](), Counter[str](), list[str]()
    for case in (case for result in results for case in cases(result)):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        wrong = [each for kind in ("error", "failure") for each in case.iter(kind)]
        if wrong:
            said = (wrong[0].get("message") or "no reason").strip().splitlines()
            failed.append(f"{name}: {said[0] if said else 'no reason'}")
        elif (skip := case.find("skipped")) is not None:
            reason = skip.get("message") or "no reason"
            if reason.startswith(NOT_MEASURED):
                busy.append(f"{NOT_MEASURED}{name}: {reason.removeprefix(NOT_MEASURED)}")
            else:
                skipped[reason] += 1
        else:
            passed += 1
    for reason, count in skipped.items():
        print(f"skipped: {count} × {reason}")
    for line in busy:
        print(line)
    if busy and os.environ.get("GITHUB_ACTIONS"):
        tell_github(busy)
    for line in failed:
        print(f"failed: {line}")
    outcomes = f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped"
    print(f"{outcomes}, {len(busy)} not measured")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
