"""A week of a job with all that can happen to it: every minute asked about has one answer, and it is true."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import update

from celery_sched.model import JobStatus, RunId
from celery_sched.rules.why import Outcome
from celery_sched.store.tables import job as job_table
from tests import invariants
from tests.flow.stage import Stage

MakeStage = Callable[..., Stage]
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
START = datetime(2026, 3, 26, tzinfo=UTC)
"""Three days before the clocks of Berlin go forward."""
BERLIN = ZoneInfo("Europe/Berlin")
STEP = 5
WEEK = 7 * 24 * 60
SCHEDULES: dict[str, Callable[[datetime], bool]] = {
    "*/30 * * * *": lambda wall: wall.minute % 30 == 0,
    "10,40 * * * *": lambda wall: wall.minute in (10, 40),
    "5 */2 * * *": lambda wall: wall.minute == 5 and wall.hour % 2 == 0,
}
"""With what each of them means, read off the clock: none is at fixed times."""


class Story:
    """What a test makes happen to a job, and what it notes of it, without a look at the database."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage, self.dice = stage, random.Random(seed)
        self.schedule = "*/30 * * * *"
        self.status, self.up, self.broken, self.hold = "active", True, False, False
        self.held: RunId | None = None
        self.waiting: list[datetime] = []
        """Came, and no scheduler has looked at them yet."""
        self.notes: dict[datetime, tuple[str, str]] = {}
        """Occurrence -> what became of it, and a word that the answer must have."""
        self.excluded: set[datetime] = set()
        self.reason = ""
        self.edited = START
        self.happened: set[str] = set()
        stage.client.add(
            "job",
            task="t",
            schedule=self.schedule,
            timezone="Europe/Berlin",
            exclude=["weekly:sat,sun 08:00-12:00"],
        )

    def comes(self, at: datetime) -> None:
        """A time comes; is there an occurrence?"""
        wall = at.astimezone(BERLIN)
        if not SCHEDULES[self.schedule](wall):
            return
        if wall.weekday() >= 5 and 8 <= wall.hour < 12:
            self.excluded.add(at)
        elif self.status == "active":
            self.waiting.append(at)
        else:
            self.notes[at] = (self.status, self.reason)

    def pass_by(self) -> None:
        """A scheduler passes, if one is there, and a worker takes what it has for it."""
        if self.held is not None:
            assert [self.held] == list(self.stage.renew(self.stage.key(self.held)).leases)
        if not self.up:
            return
        self.stage.scheduler.poll()
        if self.waiting and self.broken:
            self.status = self.reason = "error"
            self.give_up("error", "Mars/Olympus")
        elif self.waiting:
            *missed, latest = self.waiting
            self.notes |= dict.fromkeys(missed, ("missed", "misfire='once'"))
            self.notes[latest] = ("ran", "succeeded") if self.held is None else ("skipped", self.held)
            self.waiting = []
        for run in self.stage.active():
            if run.id != self.held:
                key = self.stage.key(run.id)
                self.stage.start(key)
                if self.hold and self.held is None:
                    self.held = run.id
                else:
                    self.stage.finish(key)

    def give_up(self, what: str, word: str) -> None:
        self.notes |= dict.fromkeys(self.waiting, (what, word))
        self.waiting = []

    def let_something_happen(self) -> None:
        """One of the things that may happen now."""
        client, name = self.stage.client, "job"
        may = ["outage", "hold"] if self.up else ["outage"] * 6
        if self.broken:
            may += ["repair"] * 3
        else:
            may += ["edit", "break", "pause"] if self.status == "active" else ["edit", *["resume"] * 3]
            may += ["disable"] if self.status == "active" else []
        what = self.dice.choice(may)
        self.happened.add(what)
        match what:
            case "outage":
                self.up = not self.up
            case "hold":
                self.hold = not self.hold
                if self.held is not None:
                    self.stage.finish(self.stage.key(self.held))
                    self.held = None
            case "edit":
                self.schedule = self.dice.choice([text for text in SCHEDULES if text != self.schedule])
                client.edit(name, schedule=self.schedule)
                self.give_up("missed", "late when the job was changed")
                self.edited = self.stage.clock()
            case "break":
                broken = update(job_table).values(timezone="Mars/Olympus")
                self.stage.database.run(lambda tx, now: tx.execute(broken))
                self.broken = True
            case "repair":
                self.repair()
            case "pause":
                self.reason = f"for reason {self.dice.randrange(10**6)}"
                client.pause(name, self.reason)
                self.give_up("missed", "late when the job was paused")
                self.status = "paused"
            case "resume":
                client.resume(name)
                self.status = "active"
            case "disable":
                client.edit(name, enabled=False)
                self.give_up("missed", "late when the job was changed")
                self.status, self.reason = "disabled", "disabled in its definition"

    def repair(self) -> None:
        """The zone is there again: an edit of the times, which wakes a job from its error."""
        self.stage.client.edit("job", timezone="Europe/Berlin")
        self.give_up("missed", "late when the job was changed")
        self.broken, self.edited = False, self.stage.clock()
        self.status = "active" if self.status == "error" else self.status

    def settle(self) -> None:
        """At the end everybody is there again."""
        if self.held is not None:
            self.stage.finish(self.stage.key(self.held))
            self.held, self.hold = None, False
        if self.broken:  # else nobody could say what was an occurrence since the last edit
            self.repair()
        self.up = True
        self.pass_by()


@pytest.mark.parametrize("seed", range(4))
def test_every_minute_has_one_true_answer(make_stage: MakeStage, seed: int) -> None:
    """Outages, pauses, edits, errors, overlap, a calendar, a clock change: `why` against a test's own log."""
    stage = make_stage(START, sched_lease="2h", sched_max_runtime="7d")
    story = Story(stage, seed)
    for minute in range(STEP, WEEK, STEP):
        at = START + minute * MINUTE
        stage.clock.now = at + SECOND
        story.comes(at)
        if story.waiting or minute % 60 == 0:
            story.pass_by()
        stage.clock.now = at + 30 * SECOND
        if story.dice.random() < 0.05:
            story.let_something_happen()
    story.settle()
    assert {"outage", "hold", "edit", "break", "repair", "pause", "resume", "disable"} == story.happened
    assert {"ran", "missed", "skipped", "paused", "disabled", "error"} == {
        what for what, _ in story.notes.values()
    }
    others = [START + minute * MINUTE for minute in range(STEP, WEEK, STEP)]
    others = [at for at in others if at not in story.notes and at not in story.excluded]
    wrong = []
    for at in [*story.notes, *story.excluded, *story.dice.sample(others, 200)]:
        why = stage.client.why("job", at)
        if at in story.notes:
            expected, word = story.notes[at]
        else:
            expected, word = (
                ("excluded", "weekly:") if at in story.excluded else ("not_an_occurrence", "nearest")
            )
            if at <= story.edited:
                expected, word = "before_edit", "weekly:" if at in story.excluded else "not an occurrence"
        ran_for = None if why.run is None else why.run.scheduled_for
        if (expected, True) != (why.outcome, word in why.text) or ran_for not in (None, at):
            wrong.append((at.isoformat(), expected, word, why.outcome.value, why.text))
    assert [] == wrong[:3]
    assert JobStatus(story.status) is stage.client.get("job").status
    assert Outcome.UNRECORDED not in {stage.client.why("job", at).outcome for at in story.excluded}
    invariants.check(stage.database)
