"""What ``sched next`` says about times, and the timeline of ``sched jobs --calendar``, as people see them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched.cli import drawing, preview, timeline
from celery_sched.model import DayMode, JobDefinition, OnExcluded
from celery_sched.rules.clocks import LAST, changes, peculiarity
from celery_sched.rules.schedules import Schedule, between, parse
from celery_sched.rules.schedules.zones import EPOCH
from celery_sched.rules.upcoming import jitter_for, schedule_for

INSTANT = timedelta(microseconds=1)


def at(text: str) -> datetime:
    """An instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def schedule(text: str, zone: str, **fields: object) -> Schedule:
    """The whole schedule of a job."""
    definition = JobDefinition(name="j", task="t", schedule=text, timezone=zone, **fields)  # type: ignore[arg-type]
    return schedule_for(definition, EPOCH)


@pytest.mark.parametrize(
    ("zone", "after", "until", "expected"),
    [
        (
            *("Europe/Berlin", "2026-03-01", "2026-11-01"),
            [
                "clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
                "clocks go back 1 h at 2026-10-25 03:00 CEST -> 02:00 CET",
            ],
        ),
        (
            *("Australia/Lord_Howe", "2026-10-01", "2026-10-31"),
            ["clocks go forward 30 min at 2026-10-04 02:00 +1030 -> 02:30 +11"],
        ),
        (
            *("Europe/Dublin", "2026-10-01", "2026-10-31"),
            ["clocks go back 1 h at 2026-10-25 02:00 IST -> 01:00 GMT"],
        ),
        (
            *("Pacific/Apia", "2011-12-20", "2012-01-10"),
            ["clocks go forward 24 h at 2011-12-30 00:00 -10 -> 2011-12-31 00:00 +14"],
        ),
        (
            *("America/Caracas", "2016-04-01", "2016-06-01"),
            ["clocks go forward 30 min at 2016-05-01 02:30 -0430 -> 03:00 -04"],
        ),
        (
            *("Europe/Berlin", "1890-01-01", "1900-01-01"),
            ["clocks go forward 6 min 32 s at 1893-04-01 00:00 LMT -> 00:06:32 CET"],
        ),
        # the change itself: after is exclusive, until inclusive
        ("Europe/Berlin", "2026-03-29T01:00", "2026-04-01", []),
        ("Europe/Berlin", "2026-03-01", "2026-03-29T00:59:59", []),
        (
            *("Europe/Berlin", "2026-03-01", "2026-03-29T01:00"),
            ["clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST"],
        ),
        ("Europe/Berlin", "2026-04-02", "2026-03-01", []),
        ("Asia/Tokyo", "2026-01-01", "2030-01-01", []),
    ],
)
def test_changes_of_the_clocks(zone: str, after: str, until: str, expected: list[str]) -> None:
    """Each change of the zone's offset in (after, until] is told with its length and what the clocks show."""
    assert expected == [str(change) for change in changes(ZoneInfo(zone), at(after), at(until))]


@pytest.mark.parametrize(
    ("text", "zone", "occurrence", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", "02:30 does not exist"),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", "02:00 and 02:30 do not exist"),
        ("*/10,1 2 * * *", "Europe/Berlin", "2026-03-30T00:00", None),
        ("0-20 2 * * *", "Europe/Berlin", "2026-03-29T01:00", "02:00 and 20 more times do not exist"),
        ("30 2 * * * 15", "Europe/Berlin", "2026-03-29T01:00:15", "02:30:15 does not exist"),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T15:30", "02:15 does not exist"),
        ("30 0 * * *", "America/Asuncion", "2023-10-01T04:00", "00:30 does not exist"),
        # due for its own sake, or in the new time as in the old
        ("0 3 * * *", "Europe/Berlin", "2026-03-29T01:00", None),
        ("*/10 * * * *", "Europe/Berlin", "2026-03-29T01:00", None),
        ("every 1h", "Europe/Berlin", "2026-03-29T01:00", None),
        ("0 12 * * *", "Europe/Berlin", "2026-03-29T10:00", None),
        # only the member that has it
        ("*/7 * * * * | 30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", "02:30 does not exist"),
        ("every 1h | 30 4 * * *", "Europe/Berlin", "2026-03-29T01:00", None),
        ("once 2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00", "02:30 does not exist"),
        ("once 2026-03-29T01:00Z", "Europe/Berlin", "2026-03-29T01:00", None),
        ("once 2026-03-29T03:00", "Europe/Berlin", "2026-03-29T01:00", None),
        (
            *("rrule:FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0", "Pacific/Apia", "2011-12-30T10:00"),
            "2011-12-30 09:00 does not exist",
        ),
        ("quartz:0 30 2 * * ?", "Europe/Berlin", "2026-03-29T01:00", "02:30 does not exist"),
        # one of two
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "first 02:30 of two"),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:30", "second 02:30 of two"),
        ("every 45s", "Europe/Berlin", "2026-10-25T01:00:45", "second 02:00:45 of two"),
        ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30", "first 01:30 of two"),
        ("*/30 * * * *", "Australia/Lord_Howe", "2026-04-04T15:00", "second 01:30 of two"),
        ("30 3 * * *", "Europe/Berlin", "2026-10-25T02:30", None),
        ("once 9999-12-31T12:00Z", "Asia/Tokyo", "9999-12-31T12:00", None),
    ],
)
def test_what_is_peculiar(text: str, zone: str, occurrence: str, expected: str | None) -> None:
    """An occurrence that stands in for times that do not exist, or whose local time comes twice, says so."""
    asked = schedule(text, zone)
    assert at(occurrence) == asked.next_after(at(occurrence) - INSTANT), "it is no occurrence"
    assert expected == peculiarity(asked, ZoneInfo(zone), at(occurrence))


def seen(text: str, zone: str, start: str, count: int, **fields: object) -> list[str]:
    """The lines that `sched next` prints."""
    definition = JobDefinition(name="j", task="t", schedule=text, timezone=zone, **fields)  # type: ignore[arg-type]
    times, begin = jitter_for(definition, EPOCH), at(start)
    found = preview.upcoming(times.schedule, begin, count)
    known = preview.shown(times.schedule, ZoneInfo(zone), begin, found, times.due)
    rest = preview.Between([], [])
    if len(found) < count:
        rest = preview.Between([], *preview.excluded(times.schedule, found[-1] if found else begin, None))
    return [line for line, _ in preview.lines(ZoneInfo(zone), known, rest)]


def test_a_preview_across_a_change_of_the_clocks() -> None:
    """Local and UTC time, between them what the clocks do, and the reason for a surprising local time."""
    assert [
        "Europe/Berlin                  UTC",
        "Sat 2026-03-28 02:30:00 +0100  2026-03-28T01:30:00Z",
        "  ~ clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
        "Sun 2026-03-29 03:00:00 +0200  2026-03-29T01:00:00Z  02:30 does not exist",
        "Mon 2026-03-30 02:30:00 +0200  2026-03-30T00:30:00Z",
    ] == seen("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3)


def test_a_preview_of_far_instants() -> None:
    """Of many changes between two instants three are told, of the others how many."""
    assert [
        "Europe/Dublin                  UTC",
        "  ~ clocks go forward 1 h at 2027-03-28 01:00 GMT -> 02:00 IST",
        "  ~ clocks go back 1 h at 2027-10-31 02:00 IST -> 01:00 GMT",
        "  ~ clocks go forward 1 h at 2028-03-26 01:00 GMT -> 02:00 IST",
        "  ~ and 3 more changes of the clocks",
        "Tue 2030-01-01 00:00:00 +0000  2030-01-01T00:00:00Z",
    ] == seen("0 0 1 1 * 0 2030", "Europe/Dublin", "2027-01-01", 5)


def test_a_preview_with_calendars() -> None:
    """What is excluded stands between what is not, with the calendar and its reason, sorted by time."""
    assert [
        "Europe/Berlin                  UTC",
        "Thu 2026-04-02 09:00:00 +0200  2026-04-02T07:00:00Z",
        "Fri 2026-04-03 09:00:00 +0200  2026-04-03T07:00:00Z  excluded by holidays:DE (Good Friday)",
        "Sat 2026-04-04 09:00:00 +0200  2026-04-04T07:00:00Z  excluded by weekly:sat,sun",
        "Sun 2026-04-05 09:00:00 +0200  2026-04-05T07:00:00Z  excluded by weekly:sat,sun",
        "Mon 2026-04-06 09:00:00 +0200  2026-04-06T07:00:00Z  excluded by holidays:DE (Easter Monday)",
        "Tue 2026-04-07 09:00:00 +0200  2026-04-07T07:00:00Z",
    ] == seen(*("0 9 * * *", "Europe/Berlin", "2026-04-02", 2), exclude=("holidays:DE", "weekly:sat,sun"))


def test_a_preview_of_much_that_is_excluded() -> None:
    """Five excluded occurrences are shown, of the others the number; a clock change has its place."""
    assert [
        *(
            f"Sat 2026-03-28 0{hour}:00:00 +0100  2026-03-{utc}:00:00Z  excluded by weekly:sat,sun"
            for hour, utc in enumerate(("27T23", "28T00", "28T01", "28T02", "28T03"))
        ),
        "  and 42 more that are excluded",
        "  ~ clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
        "Mon 2026-03-30 00:00:00 +0200  2026-03-29T22:00:00Z",
    ] == seen("0 * * * *", "Europe/Berlin", "2026-03-27T22:30", 1, exclude=("weekly:sat,sun",))[1:]


def test_a_preview_of_what_is_moved() -> None:
    """A moved occurrence says where it goes, and the one it becomes where it comes from."""
    found = seen(
        *("0 9 3 * *", "Europe/Berlin", "2026-04-01", 2),
        exclude=("holidays:DE",),
        on_excluded=OnExcluded.NEXT_BUSINESS_DAY,
    )
    moved = "excluded by holidays:DE (Good Friday), moved to Tue 2026-04-07 09:00:00 +0200"
    assert [
        f"Fri 2026-04-03 09:00:00 +0200  2026-04-03T07:00:00Z  {moved}",
        "Tue 2026-04-07 09:00:00 +0200  2026-04-07T07:00:00Z  moved from an excluded day",
        "Sun 2026-05-03 09:00:00 +0200  2026-05-03T07:00:00Z",
    ] == found[1:]


def test_a_preview_that_ends_excluded() -> None:
    """What is excluded after the last occurrence, up to the end of the job, is shown too."""
    found = seen(
        *("0 9 * * *", "UTC", "2026-03-27", 5),
        exclude=("weekly:sat,sun",),
        end_at=at("2026-03-29T12:00"),
        day_mode=DayMode.OR,
    )
    assert [
        "UTC                            UTC",
        "Fri 2026-03-27 09:00:00 +0000  2026-03-27T09:00:00Z",
        "Sat 2026-03-28 09:00:00 +0000  2026-03-28T09:00:00Z  excluded by weekly:sat,sun",
        "Sun 2026-03-29 09:00:00 +0000  2026-03-29T09:00:00Z  excluded by weekly:sat,sun",
    ] == found


def test_a_preview_with_jitter() -> None:
    """The occurrence stays what it is; beside it stands when its run is due, within the jitter."""
    line = seen("0 9 * * *", "UTC", "2026-03-27", 1, jitter=timedelta(minutes=10))[1]
    assert "Fri 2026-03-27 09:00:00 +0000  2026-03-27T09:00:00Z  runs at 09:0" == line[:-4]


def test_a_preview_at_the_end_of_all_years() -> None:
    """An instant whose local time lies beyond the year 9999 is shown in UTC."""
    assert ["at the end of all years  9999-12-31T23:59:00Z"] == seen(
        "once 9999-12-31T23:59Z", "Asia/Tokyo", "9999-12-01", 1
    )[1:]
    one = preview.Shown(LAST, LAST, preview.Between([], []), None)
    assert (None, "9999-12-30T00:00:00Z") == tuple(
        preview.details(one, ZoneInfo("Asia/Tokyo"))[key] for key in ("local", "utc")
    )


def test_details_for_programs() -> None:
    """All that people see stands in the object, offsets in seconds."""
    zone, begin = ZoneInfo("Europe/Berlin"), at("2026-03-28T12:00")
    asked = schedule("30 2 * * *", zone.key, exclude=("dates:2026-03-30",))
    found = preview.upcoming(asked, begin, 2)
    first, second = (
        preview.details(one, zone) for one in preview.shown(asked, zone, begin, found, lambda at: at)
    )
    assert {
        "utc": "2026-03-29T01:00:00Z",
        "local": "2026-03-29T03:00:00+02:00",
        "abbreviation": "CEST",
        "offset_seconds": 7200,
        "run_at": "2026-03-29T01:00:00Z",
        "dst_change": {
            "at": "2026-03-29T01:00:00Z",
            "before": 3600,
            "after": 7200,
            "abbreviation_before": "CET",
            "abbreviation_after": "CEST",
            "local_before": "2026-03-29T02:00:00",
            "local_after": "2026-03-29T03:00:00",
            "text": "clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
            "changes": 1,
        },
        "excluded": [],
        "excluded_count": 0,
        "note": "02:30 does not exist",
    } == first
    assert ("2026-03-31T00:30:00Z", None, 1) == (
        second["utc"],
        second["dst_change"],
        second["excluded_count"],
    )
    assert ["2026-03-30T00:30:00Z"] == [other["utc"] for other in second["excluded"]]


# The timeline


def drawn(
    zone: str, now: str, hours: int, width: int, jobs: dict[str, str], signs: drawing.Signs = drawing.UNICODE
) -> list[str]:
    """The ruler and the lines of jobs."""
    within = drawing.frame(ZoneInfo(zone), at(now), hours, width, max(map(len, jobs)))
    lines = list(drawing.ruler(within, width, signs))
    for name, text in jobs.items():
        asked = parse(text, tz=zone)
        lines.append(
            drawing.line(name, drawing.counts(asked, asked.next_after(at(now)), within), within, signs)
        )
    return lines


JOBS = {"hourly": "0 * * * *", "every-20m": "*/20 * * * *", "every-5m": "*/5 * * * *", "s": "every 1s"}


def test_a_day_in_80_columns() -> None:
    """Two columns an hour, a mark for what each holds, at the end how many in all."""
    assert [
        "          ▼ now Thu 2026-01-01 09:42   Fri 01-02",
        "job        10  12  14  16  18  20  22  00  02  04  06  08     count",
        "hourly     • • • • • • • • • • • • • • • • • • • • • • • •       24",
        "every-20m  2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•2•      72",
        "every-5m  3666666666666666666666666666666666666666666666663     288",
        "s         #################################################   86399",
    ] == drawn("Europe/Berlin", "2026-01-01T08:42:11", 24, 80, JOBS)


def test_an_hour_that_is_jumped_over() -> None:
    """The change stands above its column; the hour that does not exist has no label."""
    assert [
        "                                   ▲ clocks go forward 1 h at 2026-03-29 02:00 CET -> 03:00 CEST",
        "       ▼ now Sat 2026-03-28 16:42",
        "job        18    20    22    00       04    06    08    10    12    14    16       count",
        "hourly  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •  •        24",
    ] == drawn("Europe/Berlin", "2026-03-28T15:42:11", 24, 100, {"hourly": "0 * * * *"})


def test_an_hour_that_comes_twice() -> None:
    """It has two labels; a job at a fixed time in it is due at the first."""
    found = drawn(
        *("Europe/Berlin", "2026-10-24T20:42:11", 24, 140), {"hourly": "0 * * * *", "nightly": "30 2 * * *"}
    )
    assert [
        "                              ▲ clocks go back 1 h at 2026-10-25 03:00 CEST -> 02:00 CET",
        "        ▼ now Sat 2026-10-24 22:42",
        "job       23   00   01   02   02   03   04   05   06   07   08",
        "hourly    •    •    •    •    •    •    •    •    •    •    •",
        "nightly                    •",
    ] == [line[:62].rstrip() if place > 1 else line for place, line in enumerate(found)]
    assert ["count", "24", "1"] == [line.split()[-1] for line in found[2:]]


def test_half_an_hour_without_the_signs_of_unicode() -> None:
    """Where there is no room beside the sign, the words stand above it; ASCII is enough for all."""
    found = drawn(
        *("Australia/Lord_Howe", "2026-10-03T06:42:11", 24, 80), {"hourly": "0 * * * *"}, drawing.ASCII
    )
    assert [
        "clocks go forward 30 min at 2026-10-04 02:00 +1030 -> 02:30 +11",
        "                         ^",
        "       v now Sat 2026-10-03 17:12",
        "job      18  20  22  00     04  06  08  10  12  14  16     count",
        "hourly   * * * * * * * *  * * * * * * * * * * * * * * *       23",
    ] == found


def test_a_few_hours_and_a_week() -> None:
    """Of a few hours the minutes are on the ruler too; of a week the days are."""
    assert [
        "     ▼ now Thu 2026-01-01 14:27",
        "job    14:30  14:45   15:00  15:15   15:30  15:45   16:00  16:15     count",
    ] == drawn("Asia/Kathmandu", "2026-01-01T08:42:11", 2, 80, {"five": "*/5 * * * *"})[:2]
    week = drawn("Europe/Berlin", "2026-01-01T08:42:11", 168, 100, JOBS)
    assert "Mon 05  Tue 06  Wed 07" == week[0][-22:]
    assert ["168", "504", "2016", "604799"] == [line.split()[-1] for line in week[2:]]


def test_long_and_wide_names() -> None:
    """A name is cut to its column; letters of two cells do not push the chart aside."""
    names = {"每日报告每日报告每日报告": "30 2 * * *", "a-name-that-is-long": "@hourly"}
    found = drawn("Europe/Berlin", "2026-01-01T08:42:11", 24, 40, names)
    assert [
        "job                  12    00      count",
        "每日报告每日报告 …          •          1",
        "a-name-that-is-lo…  222222222222      24",
    ] == found[1:]


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "•"), ("ascii", "*"), ("latin-1", "*"), (None, "*")]
)
def test_signs_that_the_output_can_show(encoding: str | None, expected: str) -> None:
    """Where the encoding lacks a sign, all are ASCII."""
    assert expected == drawing.signs_for(encoding).one


@given(
    text=st.sampled_from(
        [
            "every 1s",
            "*/7 * * * *",
            "30 2 * * *",
            "0 0 * * * */20",
            "every 37m | @daily",
            "once 2026-03-29T04:00Z",
        ]
    ),
    start=st.datetimes(datetime(2026, 3, 28), datetime(2026, 3, 30), timezones=st.just(UTC)),
    hours=st.integers(1, 30),
    width=st.integers(20, 200),
    zone=st.sampled_from(["Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "UTC"]),
)
def test_columns_hold_what_lies_in_them(
    text: str, start: datetime, hours: int, width: int, zone: str
) -> None:
    """Whatever the way they are counted, the columns hold each occurrence of the window, and no other."""
    asked = parse(text, tz="Europe/Berlin")
    within = drawing.frame(ZoneInfo(zone), start, hours, width, 5)
    every = between(asked, start, start + timedelta(hours=hours) - INSTANT, 200_000)
    expected = [0] * within.columns
    for occurrence in every:
        expected[within.column(occurrence)] += 1
    assert expected == drawing.counts(asked, asked.next_after(start), within)
    assert within.columns + within.names + 2 + drawing.LARGEST_COUNT <= max(width, 34)


def test_an_overdue_occurrence_is_due_now() -> None:
    """What is overdue stands in the first column, once, and what lies between it and now does not."""
    asked = parse("every 1h")
    within = drawing.frame(ZoneInfo("UTC"), at("2026-01-01T09:30"), 3, 80, 5)
    found = drawing.counts(asked, at("2025-12-31T09:00"), within)
    assert (1, 4) == (found[0], sum(found))


def test_a_job_that_ends() -> None:
    """No more than its last runs are drawn; a job that is not due in the window has none."""
    asked = parse("every 1s")
    within = drawing.frame(ZoneInfo("UTC"), at("2026-01-01T09:30"), 3, 80, 5)
    assert [100, 0] == drawing.counts(asked, at("2026-01-01T09:30"), within, 100)[:2]
    assert 0 == sum(drawing.counts(asked, at("2026-01-01T12:30"), within))
    assert 0 == sum(drawing.counts(None, None, within))


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("/usr/share/zoneinfo/Asia/Kathmandu", "Asia/Kathmandu"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "UTC"),
    ],
)
def test_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch, zone: str, expected: str) -> None:
    """TZ names the zone of the ruler; a rule in it is not understood: then the ruler says UTC."""
    monkeypatch.setenv("TZ", zone)
    found, name = timeline.machine_zone()
    assert (expected, ZoneInfo(expected)) == (name, found)


def test_equal_schedules_are_asked_once() -> None:
    """A thousand jobs of one schedule cost one question; jobs of another are not taken for them."""
    asked: list[timeline.Outlook] = []
    question = timeline.remembering(lambda one: asked.append(one) or len(asked))  # type: ignore[func-returns-value]
    outlooks = [outlook(text) for text in ("*/5 * * * *", "*/5 * * * *", "every 5m")]
    assert outlooks[0].first == outlooks[2].first
    assert [1, 1, 2] == [question(one) for one in outlooks]


def outlook(text: str) -> timeline.Outlook:
    """When a job would be due of which nothing else is known."""
    asked = parse(text)
    return timeline.Outlook(None, asked.next_after(EPOCH), asked, None)  # type: ignore[arg-type]
