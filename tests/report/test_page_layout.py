"""Every kind of page in a real browser: nothing is cut off, no label lies over anything."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from made_checks import make_turns, regressed_check, undecided_check
from made_loads import hard_cases
from made_records import every_outcome, make_comparison, make_run, make_turn, scaled
from page_browser import CHROMIUM, FLAGS, needs_chromium
from playwright.async_api import Browser, async_playwright

from turngap.check.report import check_report
from turngap.compare.figures import Side
from turngap.compare.report import comparison_report
from turngap.core.results import AnswerRecord, Turn
from turngap.load.report import load_report
from turngap.report import page
from turngap.report.charts import Chart, Mark
from turngap.report.run import run_report
from turngap.report.sections import Drawing, Report, Section
from turngap.store.runs import Run

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

# Texts of a drawing that lie over one another, over a bar, or beyond the window.
OVER = """() => {
  const bad = [], box = (e) => e.getBoundingClientRect();
  const hit = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 2 && b.top < a.bottom - 2;
  for (const svg of document.querySelectorAll("svg[role=img]")) {
    const texts = [...svg.querySelectorAll("text")], bars = [...svg.querySelectorAll("rect.bar")];
    texts.forEach((text, i) => {
      for (const other of [...texts.slice(i + 1), ...bars])
        if (hit(box(text), box(other))) bad.push([text.textContent, other.textContent || "bar"]);
      if (box(text).left < 0 || box(text).right > document.documentElement.clientWidth + 1)
        bad.push([text.textContent, "the edge"]);
    });
  }
  return bad;
}"""


# Tables and commands of which a part is only seen by scrolling sideways.
HIDDEN = """() => [...document.querySelectorAll(".wide, .command")]
  .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.trim())"""
# The cells of rows that a phone shows as blocks, each with the name of its column before it.
STACKED = """() => [...document.querySelectorAll(".stacked td")].map((cell) => [
  getComputedStyle(cell, "::before").content, cell.textContent])"""


def answered(n: int, wrong_every: int, factor: float) -> list[Turn]:
    counts = {"llm_prompt_tokens": 100.0, "llm_completion_tokens": 10.0}
    events = (
        {"event": "UserSpeech", "start_ns": 0},
        {"event": "AgentSilence", "at_ns": round(2e9 * factor)},
    )
    return [
        make_turn(
            turn=i,
            marks_ms=scaled(factor * (0.8 + i % 7 / 15)),
            answer=AnswerRecord(verdict="right" if i % wrong_every else "wrong"),
            counts=counts,
            events=events,
        )
        for i in range(1, n + 1)
    ]


def two_runs() -> tuple[Run, Run]:
    return make_run(make_turns(60, slower_ms=41)), make_run(make_turns(60))


def compared() -> Report:
    sides = [
        Side("teacher", answered(80, 40, 1.6), (5.0, 25.0)),
        Side("student", answered(80, 3, 0.8), (0.1, 0.4)),
        Side("race,fast=small,full=sim:full", answered(80, 9, 1.0), None),
    ]
    return comparison_report(make_comparison(sides))


# Made where they are looked at: a page takes up to a second, and every worker collects the tests.
PAGES: dict[str, Callable[[], Report]] = {
    "run": lambda: run_report(make_run([*every_outcome(), *make_turns(20)]), with_turns=True),
    "regressed": lambda: check_report(regressed_check(), *two_runs()),
    "undecided": lambda: check_report(undecided_check(), *two_runs()),
    "comparison": compared,
    "load-search": lambda: load_report(hard_cases()["search"]),
    "load-ramp": lambda: load_report(hard_cases()["ramp"]),
    "load-lost": lambda: load_report(hard_cases()["lost"]),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        yield await playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


async def laid_out(
    browser: Browser, report: Report, file: Path, width: int
) -> tuple[int, list[list[str]], list[str], list[list[str]]]:
    page.write(file, page.render(report))
    shown = await browser.new_page(viewport={"width": width, "height": 800})
    await shown.goto(file.as_uri())
    wide = await shown.evaluate("document.documentElement.scrollWidth")
    found = [await shown.evaluate(script) for script in (OVER, HIDDEN, STACKED)]
    await shown.close()
    return wide, *found


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("kind", list(PAGES))
async def test_a_page_fits_its_window_and_no_label_lies_over_anything(
    browser: Browser, tmp_path: Path, kind: str, width: int
) -> None:
    wide, over, hidden, stacked = await laid_out(
        browser, PAGES[kind](), tmp_path / "page.html", width
    )
    assert wide <= width
    assert over == []
    if width == 390:
        assert hidden == []
    columns = {name.strip('"') for name, _ in stacked}
    named = {"verdict", "change", "95 % interval"} if (kind, width) == ("regressed", 390) else set()
    assert columns >= named
    assert not (columns and width == 1200)


async def test_labels_that_do_collide_are_found(browser: Browser, tmp_path: Path) -> None:
    marks = [Mark(20, "one label"), Mark(21, "another label")]
    report = Report("x", "x", "x", [Section("x", [Drawing(Chart("x", 40, x_ticks=marks))])])
    _, over, *_ = await laid_out(browser, report, tmp_path / "page.html", 390)
    assert over == [["one label", "another label"]]


async def test_turns_can_be_filtered_by_outcome_and_sorted_by_slowness(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    page.write(file, page.render(PAGES["run"]()))
    shown = await browser.new_page()
    await shown.goto(file.as_uri())
    await shown.select_option(".tools select", "late")
    outcomes = await shown.eval_on_selector_all(
        "article:not([hidden])", "cards => cards.map((card) => card.dataset.outcome)"
    )
    assert outcomes
    assert set(outcomes) == {"late"}
    await shown.select_option(".tools select", "")
    await shown.check(".tools input")
    waits = await shown.eval_on_selector_all(
        "article:not([hidden])", "cards => cards.map((card) => Number(card.dataset.wait))"
    )
    assert len(waits) == 27
    measured = [wait for wait in waits if wait is not None and abs(wait) < 1e9]
    assert measured == sorted(measured, reverse=True)
    await shown.close()
