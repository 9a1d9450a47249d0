"""The sensor ``files``: every new content once, nothing half-written, nothing lost by a restart."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import files
from celery_sched.jobtypes.files import FilesConfig, TooManyFiles, look
from celery_sched.store.sensors import SeenElsewhere
from tests.jobtypes.sensing import Watch, make_bench
from tests.store.world import Bench

SETTLE = 300
"""Longer than a run waits, so that these tests decide when time passes."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = make_bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def watch(bench: Bench, inbox: Path) -> Watch:
    """A sensor that has looked once at the empty folder."""
    made = Watch(bench, "files", folder=str(inbox), settle=SETTLE)
    assert {"published": 0, "files": 0, "first": True} == made.look()
    return made


def write(path: Path, text: str, at: int = 1_000_000_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(at * 10**9, at * 10**9 + 123_456_000))
    return path


def settled(watch: Watch) -> list[Any]:
    """The news after what is there has settled."""
    watch.look()
    assert [] == watch.news()
    watch.bench.clock.advance(SETTLE)
    watch.look()
    return watch.news()


def test_new_and_changed(watch: Watch, inbox: Path) -> None:
    """A new file is published when it has settled, and again when it has changed; not more."""
    write(inbox / "a.csv", "one")
    assert [
        {
            "path": str(inbox / "a.csv"),
            "name": "a.csv",
            "size": 3,
            "modified_at": "2001-09-09T01:46:40.123456+00:00",
            "change": "new",
        }
    ] == settled(watch)
    assert [] == settled(watch)
    write(inbox / "a.csv", "two!", 1_000_000_001)
    (changed,) = settled(watch)
    assert ("a.csv", 4, "changed") == (changed["name"], changed["size"], changed["change"])
    assert [] == settled(watch)


def test_half_written_file(watch: Watch, inbox: Path) -> None:
    """A file that grows between looks is not published, however long it takes."""
    path = inbox / "big"
    for size in range(1, 6):
        write(path, "x" * size)
        watch.look()
        watch.bench.clock.advance(SETTLE)
    assert [] == watch.news()
    watch.look()
    assert [5] == [one["size"] for one in watch.news()]


def test_old_times_are_no_proof(watch: Watch, inbox: Path) -> None:
    """A file that is copied with its old times is not taken as settled for that."""
    write(inbox / "old", "x", at=1)
    watch.look()
    assert [] == watch.news()


def test_what_is_there_at_first(bench: Bench, inbox: Path) -> None:
    """With ``start: beginning`` the files of the first look are new; without they are known."""
    write(inbox / "a", "x")
    watch = Watch(bench, "files", folder=str(inbox), settle=SETTLE, start="beginning")
    assert ["a"] == [one["name"] for one in settled(watch)]


def test_nothing_changes_nothing_is_written(watch: Watch, inbox: Path) -> None:
    """A look that finds nothing new writes nothing."""
    write(inbox / "a", "x")
    settled(watch)
    before = watch.version()
    watch.look()
    assert before == watch.version()


def test_bounded_events(watch: Watch, inbox: Path) -> None:
    """One run publishes so many at most, the oldest first; the rest comes with the next, once each."""
    for number in range(5):
        write(inbox / f"f{number}", "x", at=1_000_000_000 - number)
    watch.look()
    watch.bench.clock.advance(SETTLE)
    assert (2, 3) == ((first := watch.look(most=2))["published"], first["left"])
    assert ["f4", "f3"] == [one["name"] for one in watch.news()]
    watch.look(most=2), watch.look(most=2), watch.look(most=2)
    assert ["f2", "f1", "f0"] == [one["name"] for one in watch.news()]


def test_folder_that_is_away(watch: Watch, inbox: Path, tmp_path: Path) -> None:
    """A folder that cannot be read fails the run; when it is back, nothing is published twice."""
    write(inbox / "a", "x")
    assert 1 == len(settled(watch))
    inbox.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        watch.look()
    inbox.mkdir()  # where a disk is not mounted there is an empty folder
    watch.look()
    shutil.rmtree(inbox)
    (tmp_path / "away").rename(inbox)
    assert [] == settled(watch)


def test_unchanged_only_new(watch: Watch, inbox: Path) -> None:
    """With ``changed: false`` a file is published once, whatever becomes of it."""
    watch.kwargs["changed"] = False
    write(inbox / "a", "x")
    assert 1 == len(settled(watch))
    write(inbox / "a", "xy", at=1_000_000_005)
    assert [] == settled(watch)


def test_another_folder_begins_anew(watch: Watch, inbox: Path) -> None:
    """What was seen belongs to the folder; a pattern may be changed without that."""
    write(inbox / "a.csv", "x")
    write(inbox / "sub" / "b.csv", "x")
    assert 1 == len(settled(watch))
    watch.kwargs["pattern"] = "**/*.csv"
    assert ["sub/b.csv"] == [one["name"] for one in settled(watch)]
    assert watch.look(folder=str(inbox / "sub"))["first"] is True


def test_stale_run_publishes_nothing(watch: Watch, inbox: Path) -> None:
    """A run that has lost its lease while it looked publishes nothing; the next one does."""
    write(inbox / "a", "x")
    watch.look()
    watch.bench.clock.advance(SETTLE)
    run = watch.begun()
    watch.bench.clock.advance(watch.bench.config.lease.total_seconds() + 1)
    assert 1 == len(watch.bench.sweep().settled)
    with pytest.raises(SeenElsewhere):
        watch.sensed(run)
    assert [] == watch.news()
    watch.look()
    assert ["a"] == [one["name"] for one in watch.news()]


def test_waits_for_a_short_settling_time(tmp_path: Path, inbox: Path) -> None:
    """A run that finds a new file waits until it has settled: one run is enough, whatever the schedule."""
    bench = make_bench(tmp_path, real=True)
    try:
        watch = Watch(bench, "files", folder=str(inbox), settle="300ms", start="beginning")
        write(inbox / "a", "x")
        assert {"published": 1, "files": 1, "unsettled": 0, "left": 0} == watch.look()
        assert {"published": 0, "files": 1, "unsettled": 0, "left": 0} == watch.look()
    finally:
        bench.close()


def test_writer_that_does_not_stop(tmp_path: Path, inbox: Path) -> None:
    """A file that is being written all the time is neither published nor waited for without an end."""
    bench, stop = make_bench(tmp_path, real=True), threading.Event()

    def write_on() -> None:
        with open(inbox / "log", "w") as file:
            while not stop.wait(0.001):
                file.write("x")
                file.flush()

    writer = threading.Thread(target=write_on)
    try:
        watch = Watch(bench, "files", folder=str(inbox), settle="5s", start="beginning")
        writer.start()
        assert {"published": 0, "files": 1, "unsettled": 1, "left": 0} == watch.look()
    finally:
        stop.set()
        writer.join()
        bench.close()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", {"a.csv", "b.txt"}),
        ("*.csv", {"a.csv"}),
        ("**", {"a.csv", "b.txt", "d/c.csv", "d/e/f.csv"}),
        ("**/*.csv", {"a.csv", "d/c.csv", "d/e/f.csv"}),
        ("d/*.csv", {"d/c.csv"}),
        ("d/**", {"d/c.csv", "d/e/f.csv"}),
        ("*/*/f.csv", {"d/e/f.csv"}),
        ("[ab].*", {"a.csv", "b.txt"}),
    ],
)
def test_pattern(inbox: Path, pattern: str, expected: set[str]) -> None:
    """What a pattern finds; a star stays within a folder."""
    names = ("a.csv", "b.txt", "d/c.csv", "d/e/f.csv", ".hidden", ".git/x.csv", "a.csv.part", "x~", "d/g.tmp")
    for name in names:
        write(inbox / name, "x")
    config = FilesConfig(topic="t", folder=str(inbox), pattern=pattern)
    assert expected == set(look(config, lambda: None))


def test_what_is_no_file(inbox: Path) -> None:
    """Folders, pipes, links that lead nowhere or in circles and names that are no text are left out."""
    os.mkfifo(inbox / "pipe")
    (inbox / "nowhere").symlink_to(inbox / "missing")
    (inbox / "circle").symlink_to(inbox / "circle")
    (inbox / "up").symlink_to(inbox)
    Path(os.fsdecode(os.fsencode(inbox) + b"/caf\xe9")).write_text("x")
    write(inbox / "file", "x")
    (inbox / "link").symlink_to(inbox / "file")
    assert {"file", "link"} == set(
        look(FilesConfig(topic="t", folder=str(inbox), pattern="**"), lambda: None)
    )


def test_too_many_files(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than can be remembered fail the run, which says what to do."""
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for number in range(4):
        write(inbox / str(number), "x")
    with pytest.raises(TooManyFiles, match="more than 3 files"):
        look(FilesConfig(topic="t", folder=str(inbox)), lambda: None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"folder": "relative"}, "absolute path"),
        ({"topic": "orders.*"}, "subscribe"),
        ({"topic": None}, "topic"),
        ({"pattern": "../*"}, "within the folder"),
        ({"settle": "-1s"}, "settle"),
        ({"most": 0}, "most"),
        ({"start": "later"}, "start"),
        ({"foldr": "/x"}, "folder"),
    ],
)
def test_refused_when_defined(bench: Bench, given: dict[str, Any], named: str) -> None:
    """A sensor that cannot work is not defined; the message names the field."""
    with pytest.raises(InvalidValue, match=named):
        Watch(bench, "files", **{"folder": "/inbox", **given})
