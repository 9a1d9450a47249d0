"""The sample jobs' own work, on this machine's real input."""

from __future__ import annotations

import csv
import gzip
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tasks import metrics, misbehave, reports

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def rows(file: Path) -> list[list[str]]:
    with file.open(newline="") as lines:
        return list(csv.reader(lines))


def test_a_sample_of_this_machine_is_plausible_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's function measures this machine and writes one row that equals what it returns."""
    monkeypatch.setenv("CELERY_SCHED_HOME", str(tmp_path / "home"))
    before = time.time()
    values = metrics.sample()
    after = time.time()
    assert list(metrics.METRICS) == list(values)
    assert all(0 <= values[metric] <= 100 for metric in ("cpu", "memory", "disk"))
    assert 0 < values["memory"] and 0 <= values["load"]
    with sqlite3.connect(tmp_path / "home" / "metrics.sqlite3") as db:
        ((at, *kept),) = db.execute("SELECT at, cpu, load, memory, disk FROM sample")
    db.close()
    assert before <= at <= after
    assert list(values.values()) == kept


def fill(db: sqlite3.Connection, start: datetime, values: list[float], step: timedelta) -> None:
    for number, value in enumerate(values):
        metrics.record(db, start + number * step, dict.fromkeys(metrics.METRICS, value))


def test_hours_that_are_over_are_summarised_once(tmp_path: Path) -> None:
    """Low, mean, high and count of each full hour; the running hour waits; a second call adds nothing."""
    with metrics.opened(tmp_path / "m.sqlite3") as db:
        fill(db, NOON - timedelta(hours=2), [1, 2, 6, 10, 30], timedelta(minutes=20))
        fill(db, NOON, [99], timedelta(0))
        assert 2 == metrics.summarise(db, NOON + timedelta(minutes=59))
        assert 0 == metrics.summarise(db, NOON + timedelta(minutes=59))
        found = db.execute(
            "SELECT hour, low, mean, high, samples FROM hourly WHERE metric = 'cpu' ORDER BY 1"
        )
        ten = int((NOON - timedelta(hours=2)).timestamp())
        assert [(ten, 1, 3, 6, 3), (ten + 3600, 10, 20, 30, 2)] == found.fetchall()
        assert {(name,) for name in metrics.METRICS} == set(db.execute("SELECT DISTINCT metric FROM hourly"))
        assert 1 == metrics.summarise(db, NOON + timedelta(hours=1))


def test_old_samples_go_and_their_summary_stays(tmp_path: Path) -> None:
    """Older than a week and summarised: deleted. Younger, or not summarised yet: kept."""
    with metrics.opened(tmp_path / "m.sqlite3") as db:
        fill(db, NOON - timedelta(days=8), [5, 7], timedelta(seconds=5))
        fill(db, NOON - timedelta(days=6), [5], timedelta(0))
        assert 0 == metrics.forget(db, NOON)
        metrics.summarise(db, NOON)
        assert 2 == metrics.forget(db, NOON)
        assert [(1,)] == db.execute("SELECT COUNT(*) FROM sample").fetchall()
        assert [(2,)] == db.execute("SELECT COUNT(*) FROM hourly WHERE metric = 'disk'").fetchall()
        assert 0 == metrics.summarise(db, NOON)


def test_the_jobs_functions_roll_up_and_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler calls works on the file below the embedded folder."""
    monkeypatch.setenv("CELERY_SCHED_HOME", str(tmp_path))
    with metrics.opened(tmp_path / "metrics.sqlite3") as db:
        fill(db, datetime.now(UTC) - timedelta(days=9), [1, 2, 3], timedelta(seconds=1))
        fill(db, datetime.now(UTC) - timedelta(hours=3), [4], timedelta(0))
    assert metrics.roll_up()["hours"] in (2, 3)  # three seconds may lie in two hours
    assert {"deleted": 3} == metrics.purge()


DPKG = """\
2026-02-03 04:05:06 startup archives unpack
2026-02-03 04:05:07 install jq:amd64 <none> 1.6-2.1
2026-02-03 04:05:07 status half-installed jq:amd64 1.6-2.1
2026-02-03 04:05:08 upgrade tzdata:all 2024a-0 2025b-0
2026-02-03 04:05:09 remove jq:amd64 1.6-2.1 <none>
2026-02-03 04:05:10 purge jq:amd64 1.6-2.1 <none>
2026-02-03 04:05:11 configure tzdata:all 2025b-0 <none>
"""
DNF = """\
2026-02-03T04:05:06+0000 INFO --- logging initialized ---
2026-02-03T04:05:07+0000 SUBDEBUG Installed: jq-1.6-17.fc40.x86_64
2026-02-03T04:05:08+0000 SUBDEBUG Upgrade: python3-pip-wheel-23.3.2-1.fc40.noarch
2026-02-03T04:05:09+0000 SUBDEBUG Erase: jq-1.6-17.fc40.x86_64
"""


def test_package_logs_become_rows(tmp_path: Path) -> None:
    """dpkg's and dnf's changes, plain and compressed, oldest log first; other lines are passed over."""
    (tmp_path / "dnf.rpm.log").write_text(DNF)
    os.utime(tmp_path / "dnf.rpm.log", (2, 2))
    with gzip.open(tmp_path / "dpkg.log.2.gz", "wt") as log:
        log.write(DPKG)
    os.utime(tmp_path / "dpkg.log.2.gz", (1, 1))
    result = reports.build(tmp_path / "reports", NOON, reports.package_logs(tmp_path))
    file = tmp_path / "reports" / "packages-2026-03-01.csv"
    expected = [
        ["at", "action", "package", "before", "after"],
        ["2026-02-03 04:05:07", "install", "jq:amd64", "", "1.6-2.1"],
        ["2026-02-03 04:05:08", "upgrade", "tzdata:all", "2024a-0", "2025b-0"],
        ["2026-02-03 04:05:09", "remove", "jq:amd64", "1.6-2.1", ""],
        ["2026-02-03 04:05:10", "purge", "jq:amd64", "1.6-2.1", ""],
        ["2026-02-03T04:05:07+0000", "install", "jq", "", "1.6-17.fc40.x86_64"],
        ["2026-02-03T04:05:08+0000", "upgrade", "python3-pip-wheel", "", "23.3.2-1.fc40.noarch"],
        ["2026-02-03T04:05:09+0000", "remove", "jq", "1.6-17.fc40.x86_64", ""],
    ]
    assert expected == rows(file)
    assert {"file": str(file), "rows": 7} == {key: result[key] for key in ("file", "rows")}
    assert [file] == list((tmp_path / "reports").iterdir())


def test_the_report_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's function reports this machine's own log, or its processes where it has none."""
    monkeypatch.setenv("CELERY_SCHED_HOME", str(tmp_path))
    result = reports.report()
    header, *found = rows(Path(str(result["file"])))
    assert result["rows"] == len(found)
    assert len({len(row) for row in (header, *found)}) == 1
    if reports.package_logs():
        assert list(reports.CHANGES) == header
        assert {row[1] for row in found} <= {
            "install",
            "upgrade",
            "remove",
            "purge",
            "downgrade",
            "reinstalled",
        }
    else:
        assert list(reports.PROCESSES) == header


def test_without_a_package_log_the_processes_are_reported(tmp_path: Path) -> None:
    """This very process is among them."""
    result = reports.build(tmp_path, NOON, [])
    header, *found = rows(Path(str(result["file"])))
    assert "process list" == result["source"]
    assert list(reports.PROCESSES) == header
    (mine,) = [row for row in found if row[0] == str(os.getpid())]
    assert psutil.Process().name() == mine[1] and int(mine[4]) > 1000


def test_a_report_that_fails_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The old file stays, no draft is left."""
    file = tmp_path / "report.csv"
    file.write_text("old")

    def broken() -> object:
        yield ("a",)
        raise OSError("the source went away")

    with pytest.raises(OSError, match="went away"):
        reports.write(file, ("x",), broken())  # type: ignore[arg-type]
    assert "old" == file.read_text()
    assert [file] == list(tmp_path.iterdir())


def test_slow_takes_the_time_it_is_told() -> None:
    """It returns how long it slept."""
    before = time.monotonic()
    assert {"slept": 0.2} == misbehave.slow(0.2)
    assert time.monotonic() - before >= 0.2


def test_hung_ignores_sigterm_and_has_a_child(tmp_path: Path) -> None:
    """Only SIGKILL of both ends it: SIGTERM changes nothing, neither for it nor for its child."""
    code = "from tasks import misbehave; misbehave.hung()"
    running = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        process = psutil.Process(running.pid)
        deadline = time.monotonic() + 30
        while not (children := process.children()):
            assert time.monotonic() < deadline and running.poll() is None, "it never had its child"
            threading.Event().wait(0.05)
        os.killpg(running.pid, signal.SIGTERM)
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process(children[0].pid).wait(0.5)
        assert running.poll() is None
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
