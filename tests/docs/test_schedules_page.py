"""docs/schedules.md: every example is a schedule, and means what the page says."""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from celery_sched.calendar_files import read_files
from celery_sched.model import Misfire, OnExcluded, Overlap
from celery_sched.rules.calendars import read_calendar
from celery_sched.rules.calendars.texts import KINDS
from celery_sched.rules.schedules import between, parse
from celery_sched.rules.schedules.cronfields import MACROS
from celery_sched.rules.schedules.solar import EVENTS

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()


def rows(first: str) -> list[list[str]]:
    """The rows of all tables whose first heading is ``first``."""
    found: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        # A bar inside a cell is written \|, as Markdown wants it.
        cells = [line.strip("|").split(" | ") for line in table.splitlines()]
        lines = [[cell.strip().replace("\\|", "|") for cell in row] for row in cells]
        if lines[0][0].strip() == first:
            found += lines[2:]
    return found


EXAMPLES = [row[0].strip("`") for row in rows("schedule")]
CHANGES = [row for row in rows("schedule") if len(row) == 4]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_a_schedule(text: str) -> None:
    """Each text in a first column is parsed and is due some time; ``none`` never is."""
    found = parse(text, tz="Europe/Berlin", name="example").next_after(at("2026-01-01T00:00Z"))
    assert (text == "none") == (found is None)


def test_every_kind_and_event_is_shown() -> None:
    """No kind of schedule, macro of cron or event of the sun is left out."""
    kinds = {parse(text, tz="Europe/Berlin", name="example").kind for text in EXAMPLES}
    assert {"cron", "every", "after", "once", "rrule", "solar", "union", "none"} == kinds
    assert [] == [macro for macro in MACROS if f"`{macro}`" not in PAGE]
    shown = {re.split("[:@]", text)[1] for text in EXAMPLES if text.startswith("solar:")}
    assert set(EVENTS) == shown


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: f"{row[0]} after {row[2]}")
def test_the_instants_around_clock_changes(row: list[str]) -> None:
    """The instants in the table of clock changes are those that are computed."""
    text, tz, after, due = row
    expected = [at(word) for word in due.strip(" |").split()]
    schedule = parse(text.strip("`"), tz=tz)
    assert expected == between(schedule, at(after), expected[-1], 100)


def test_there_are_instants_to_compare() -> None:
    """The tables were found at all."""
    assert 10 == len(CHANGES)
    assert len(EXAMPLES) > 50


def test_every_calendar_is_read(tmp_path: Path) -> None:
    """Each term of the table excludes something in 2026, and no kind is left out."""
    (tmp_path / "PATH").write_text(
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20260105\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    terms = [row[0].strip("`") for row in rows("calendar")]
    assert set(KINDS) == {term.partition(":")[0] for term in terms}
    for term, stored in zip(terms, read_files(terms, tmp_path), strict=True):
        calendar = read_calendar(stored, ZoneInfo("Europe/Berlin"))
        assert term == calendar.text
        assert calendar.spans(date(2026, 1, 1), date(2026, 12, 31)), term


@pytest.mark.parametrize(
    ("heading", "policies"), [("`misfire`", Misfire), ("`overlap`", Overlap), ("`on_excluded`", OnExcluded)]
)
def test_every_policy_is_explained(heading: str, policies: type[StrEnum]) -> None:
    """The tables of policies have a row for each policy and no other."""
    assert {policy.value for policy in policies} == {row[0].split("`")[1] for row in rows(heading)}
