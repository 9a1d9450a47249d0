"""Why a job did or did not run at a time. Pure: facts in, one answer out."""

from __future__ import annotations

from datetime import datetime

from celery_sched.rules.clocks import peculiarity
from celery_sched.rules.why.asked import Asked, exact, has, parts_of, read_asked, within_minute
from celery_sched.rules.why.nothing import of_nothing
from celery_sched.rules.why.runs import of_run
from celery_sched.rules.why.standing import of_now
from celery_sched.rules.why.times import neighbours, pending
from celery_sched.rules.why.words import (
    Act,
    Facts,
    GapSeen,
    Outcome,
    Recorded,
    Slots,
    Why,
    both,
    local,
    sentence,
    utc,
)

_NO_OCCURRENCE = {Outcome.NOT_AN_OCCURRENCE, Outcome.BEFORE_JOB, Outcome.BEFORE_EDIT, Outcome.DELETED}


def answer(facts: Facts) -> Why:
    """The one answer to what happened at ``facts.at``, or why nothing did; to ``now``: how the job stands."""
    recorded = facts.recorded
    if facts.asked.is_now:
        return _standing(facts)
    outcome, said, steps = of_nothing(facts) if recorded is None else of_run(facts, recorded)
    before, after = neighbours(facts)
    occurrence = None if recorded is None and outcome in _NO_OCCURRENCE else facts.at
    return Why(
        job=facts.name,
        at=facts.asked.at,
        outcome=outcome,
        text=" ".join(sentence(one) for one in said),
        about=both(facts.at, facts),
        occurrence=occurrence,
        due_at=_due_at(facts, occurrence),
        run=None if recorded is None else recorded.run,
        gap=facts.gap if recorded is None else None,
        occurrence_before=before,
        occurrence_after=after,
        notes=tuple(sentence(note) for note in _notes(facts, occurrence)),
        next_steps=tuple(steps),
    )


def _standing(facts: Facts) -> Why:
    outcome, said, steps = of_now(facts)
    before, after = neighbours(facts)
    waits = pending(facts)
    return Why(
        job=facts.name,
        at=facts.now,
        outcome=outcome,
        text=" ".join(sentence(one) for one in said),
        about=both(facts.now, facts),
        occurrence=waits,
        due_at=None if waits is None or facts.job is None else facts.job.next_run_at,
        run=facts.active[0] if facts.active else None,
        occurrence_before=before,
        occurrence_after=after,
        next_steps=tuple(steps),
    )


def _due_at(facts: Facts, occurrence: datetime | None) -> datetime | None:
    if occurrence is None or facts.times is None or not has(facts.times.schedule, occurrence):
        return occurrence
    return facts.times.due(occurrence)


def _notes(facts: Facts, occurrence: datetime | None) -> list[str]:
    """How the time that was asked for was read, and what is special about the occurrence."""
    asked, notes = facts.asked, []
    if asked.note is not None:
        notes.append(asked.note)
    if facts.at == asked.second:
        notes.append(f"the second one is meant: {utc(facts.at)}")
    elif facts.at != asked.at:
        notes.append(
            f"{local(asked.at, facts)} itself is none; this is the answer for {local(facts.at, facts)}"
        )
    if occurrence is None or facts.times is None:
        return notes
    parts = parts_of(facts.times.schedule)
    if has(parts.whole, occurrence) and not has(parts.base, occurrence):
        notes.append("it was moved here from an excluded day")
    if facts.zone.key != "UTC" and asked.note is None:
        special = peculiarity(facts.times.schedule, facts.zone, occurrence)
        notes += [special] if special else []
    return notes


__all__ = [
    "Act",
    "Asked",
    "Facts",
    "GapSeen",
    "Outcome",
    "Recorded",
    "Slots",
    "Why",
    "answer",
    "exact",
    "pending",
    "read_asked",
    "within_minute",
]
