"""What several runs of pytest came to, as one: python tools/outcomes.py RESULT.xml RESULT.xml ...

Each is what `--junitxml` wrote. Says again what failed and why what was skipped, since the first
run's own summary has gone by when the last one ends, and then how many there were of each.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def cases(result: Path) -> Iterator[ElementTree.Element]:
    """The tests of one run.

    Raises:
        SystemExit: it left no result, or a broken one: it was ended before its end.
    """
    try:
        yield from ElementTree.parse(result).iter("testcase")
    except (OSError, ElementTree.ParseError) as e:
        raise SystemExit(f"outcomes: pytest was ended before it wrote {result.name}: {e}") from e


def main(results: list[Path]) -> None:
    passed, failed, skipped = 0, list[str](), Counter[str]()
    for case in (case for result in results for case in cases(result)):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        wrong = [each for kind in ("error", "failure") for each in case.iter(kind)]
        if wrong:
            said = (wrong[0].get("message") or "no reason").strip().splitlines()
            failed.append(f"{name}: {said[0] if said else 'no reason'}")
        elif (skip := case.find("skipped")) is not None:
            skipped[skip.get("message") or "no reason"] += 1
        else:
            passed += 1
    for reason, count in skipped.items():
        print(f"skipped: {count} × {reason}")
    for line in failed:
        print(f"failed: {line}")
    print(f"{passed} passed, {len(failed)} failed, {skipped.total()} skipped")


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
