"""`turngap history trend`, and the page of the history."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turngap.cli import options
from turngap.cli.next_steps import say_next
from turngap.cli.remembering import Last, Since, Where, entries_in
from turngap.cli.shared import print_block, print_json, say

if TYPE_CHECKING:
    from turngap.history.trend import Trend


def trend(
    roots: options.RunsFolders = None,
    where: Where = None,
    since: Since = None,
    last: Last = None,
    html: Annotated[
        Path | None,
        options.for_output(help="Also write a page with the plots and the list to this file."),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Show where the gap changed from run to run, at which commit, and how sure that is.

    A series holds replays of one agent, played the same scenarios on the same machine.

    Exit: 0 whether or not there is a change, 2 bad input.
    """
    from turngap.history.filters import Wanted
    from turngap.history.page import trends_block, write_page
    from turngap.history.trend import trends, trends_json

    wanted = Wanted.of(where or (), since=since, last=last)
    shown = wanted.among(entries_in(roots))
    found = trends(shown)
    if html is not None:
        say(f"written: {write_page(html, shown, found)}")
    if json_:
        print_json(trends_json(found))
        return
    if not found:
        say(f"no replay among {len(shown)} that are stored")
        say_next("measure something: turngap replay")
        return
    print_block(lambda width: trends_block(found, width))
    _say_next(found)


def _say_next(found: "list[Trend]") -> None:
    """The newest change is the one to look into: the runs beside it, turn by turn."""
    for series in reversed(found):
        if series.moves:
            at = series.moves[-1].change.at
            before, after = (series.points[i].entry.path for i in (at - 1, at))
            say_next(f"see what moved: turngap history diff {before} {after}")
            return
