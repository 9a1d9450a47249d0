"""Tables, constraints and the naming convention. ``migrations/`` makes the same tables; a test compares."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

from celery_sched.rules.transitions import HELD, TERMINAL
from celery_sched.store.columns import BigId, Instant, LongText

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _quoted(values: Any) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


job = Table(
    "sched_job",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app", String(100), nullable=False),
    Column("name", String(200), nullable=False),
    # definition
    Column("task", String(255), nullable=False),
    Column("schedule", String(1000), nullable=False),
    Column("timezone", String(64), nullable=False),
    Column("dst", String(20), nullable=False, server_default="vixie"),
    Column("day_mode", String(20), nullable=False, server_default="or"),
    Column("start_at", Instant),
    Column("end_at", Instant),
    Column("max_runs", Integer),
    Column("jitter", Double),
    Column("exclude", JSON, nullable=False, server_default=text("'[]'")),
    Column("on_excluded", String(20), nullable=False, server_default="skip"),
    Column("args", JSON, nullable=False),
    Column("kwargs", JSON, nullable=False),
    Column("options", JSON, nullable=False),
    Column("overlap", String(20), nullable=False),
    Column("max_queued", Integer, nullable=False),
    Column("misfire", String(20), nullable=False),
    # seconds, to the microsecond: MariaDB's FLOAT keeps six digits
    Column("misfire_grace", Double),
    Column("catchup_window", Double, nullable=False),
    Column("expires", Double),
    Column("max_runtime", Double),
    Column("time_limit", Double),
    Column("soft_time_limit", Double),
    Column("heartbeat_timeout", Double),
    Column("retries", Integer, nullable=False, server_default="0"),
    Column("backoff", String(20), nullable=False, server_default="exponential"),
    Column("retry_delay", Double, nullable=False, server_default="10"),
    Column("retry_max_delay", Double, nullable=False, server_default="3600"),
    Column("retry_jitter", Boolean(create_constraint=False), nullable=False, server_default=true()),
    Column("retry_on", JSON, nullable=False, server_default=text("'[]'")),
    Column("give_up_on", JSON, nullable=False, server_default=text("'[]'")),
    Column("requeue", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("pause_on_failure", Integer),
    Column("exclusive", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("on_lost", String(255)),
    Column("must_succeed_by", String(50)),
    Column("on", JSON(none_as_null=True)),  # what it subscribes to; a reserved word, quoted
    Column("publishes", String(200)),
    Column("notify", JSON(none_as_null=True)),  # NULL: as the settings say
    Column("priority", Integer, nullable=False),
    Column("pool", String(100), nullable=False),
    Column("weight", Integer, nullable=False, server_default="1"),
    Column("concurrency_key", String(255)),
    Column("key_limit", Integer, nullable=False, server_default="1"),
    Column("run_immediately", Boolean(create_constraint=False), nullable=False),
    Column("description", Text, nullable=False),
    Column("source", String(20), nullable=False),
    Column("code_definition", JSON),  # as code last gave it: tells an operator's edit from code's
    Column("anchor", Instant, nullable=False),  # what `every` counts from; a restart never moves it
    # where it stands
    Column("enabled", Boolean(create_constraint=False), nullable=False),
    Column("status", String(20), nullable=False),
    Column("status_reason", Text),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("next_run_at", Instant),
    Column("last_scheduled_for", Instant),
    Column("planned_count", BigInteger, nullable=False, server_default="0"),  # what `max_runs` looks at
    Column("inactive_since", Instant),  # NULL while it is active
    Column("timing_since", Instant),  # when its times were last defined; NULL: since it was made
    # the lock
    Column("lock_token", String(36)),
    Column("locked_by", String(36)),
    Column("locked_at", Instant),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    # statistics
    Column("run_count", BigInteger, nullable=False, server_default="0"),
    Column("success_count", BigInteger, nullable=False, server_default="0"),
    Column("failure_count", BigInteger, nullable=False, server_default="0"),
    Column("skipped_count", BigInteger, nullable=False, server_default="0"),
    Column("failures_in_row", Integer, nullable=False, server_default="0"),
    Column("last_run_at", Instant),
    Column("last_status", String(20)),
    Column("last_success_at", Instant),
    Column("watched_since", Instant),  # `must_succeed_by` judges what came after; NULL: since it was made
    Column("overdue_since", Instant),  # the `must_succeed_by` that passed without a success
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    UniqueConstraint("app", "name"),
    Index(None, "app", "status", "next_run_at"),
    CheckConstraint("(lock_token IS NULL) = (locked_by IS NULL)", name="lock_whole"),
    CheckConstraint("priority BETWEEN 0 AND 9", name="priority_range"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    sqlite_autoincrement=True,  # an id is never used again: occurrence keys are made of it
)

run = Table(
    "sched_run",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("app", String(100), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("job", String(200), nullable=False),
    Column("task", String(255), nullable=False),
    Column("trigger_kind", String(20), nullable=False),
    Column("scheduled_for", Instant, nullable=False),
    Column("occurrence_key", String(64)),
    Column("backfill_id", String(36)),
    Column("parent_id", String(36)),  # the run it was made for
    Column("hops", Integer, nullable=False, server_default="0"),  # events on the way to it
    Column("status", String(20), nullable=False),
    Column("reason", String(1000)),
    Column("args", JSON),  # NULL: the job's, read when the run is claimed
    Column("kwargs", JSON),
    Column("options", JSON(none_as_null=True)),  # its message's; NULL: the job's
    Column("pool", String(100), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("weight", Integer, nullable=False, server_default="1"),  # slots it takes; its job's when claimed
    Column("concurrency_key", String(255)),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("queued_at", Instant, nullable=False),
    Column("ready_at", Instant, nullable=False),
    Column("start_by", Instant),  # who is claimed first; NULL: its `ready_at`
    Column("expires_at", Instant),
    Column("at_capacity_at", Instant),  # when it first found no slot
    # the claim
    Column("token", String(36)),
    Column("fence", BigInteger),
    Column("holds_job", BigInteger),
    Column("lease_expires_at", Instant),
    Column("dispatched_at", Instant),
    Column("published_at", Instant),
    Column("publish_count", Integer, nullable=False, server_default="0"),
    Column("received_by", String(36)),
    Column("received_at", Instant),
    Column("worker", String(36)),
    Column("worker_name", String(255)),
    Column("started_at", Instant),
    Column("deadline_at", Instant),
    Column("eta", Instant),  # Celery's own retry: when, and with what
    Column("retries", Integer, nullable=False, server_default="0"),
    Column("retried", Integer, nullable=False, server_default="0"),  # by the job's own `retries`
    Column("requeued", Integer, nullable=False, server_default="0"),  # lost attempts in a row, not counted
    Column("beat_at", Instant),  # the last heartbeat; NULL: it never sent one
    Column("finished_at", Instant),
    Column("stop_requested_at", Instant),
    Column("stop_requested_by", String(255)),
    Column("stop_reason", String(1000)),
    Column("error", LongText),
    Column("result", LongText),
    UniqueConstraint("occurrence_key"),
    # two holders of one job are impossible here, whatever the code does
    UniqueConstraint("holds_job"),
    Index(None, "app", "status", "ready_at", "expires_at"),  # what is outdated too, from the index alone
    Index(None, "app", "status", "lease_expires_at"),
    Index(None, "job_id", "status"),
    Index(None, "backfill_id", "status"),
    # the newest runs, of one job too, however rare it is; the whole order: MariaDB would sort all history
    Index(None, "app", "queued_at", "scheduled_for"),
    Index(None, "app", "job", "queued_at", "scheduled_for"),
    Index(None, "app", "finished_at"),
    CheckConstraint(
        f"(finished_at IS NOT NULL) = (status IN ({_quoted(TERMINAL)}))", name="finished_iff_terminal"
    ),
    CheckConstraint(
        f"(token IS NOT NULL) = (status IN ({_quoted(HELD)}))"
        f" AND (lease_expires_at IS NOT NULL) = (status IN ({_quoted(HELD)}))",
        name="lease_iff_held",
    ),
    CheckConstraint("holds_job IS NULL OR token IS NOT NULL", name="holder_has_token"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

attempt = Table(
    "sched_attempt",
    metadata,
    Column("run_id", String(36), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("app", String(100), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(1000)),
    Column("worker_name", String(255)),
    Column("started_at", Instant),
    Column("ended_at", Instant, nullable=False),
    Column("error", LongText),
    Index(None, "app", "ended_at"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

gap = Table(
    "sched_gap",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app", String(100), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("job", String(200), nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("to_at", Instant, nullable=False),
    Column("reason", String(1000), nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index(None, "job_id", "from_at"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

pool = Table(
    "sched_pool",
    metadata,
    Column("app", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("slots", Integer, nullable=False),
    CheckConstraint("slots >= 0", name="slots_not_negative"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

node = Table(
    "sched_node",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("app", String(100), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("name", String(255), nullable=False),
    Column("version", String(50), nullable=False),
    Column("facts", JSON, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("last_seen", Instant, nullable=False),
    Column("stop_requested_at", Instant),
    Index(None, "app", "kind", "last_seen"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

app = Table(
    "sched_app",
    metadata,
    Column("app", String(100), primary_key=True),
    Column("last_pass_at", Instant),
    Column("sweep_not_before", Instant),
    Column("down_from", Instant),  # the last time that no scheduler passed: from its last pass
    Column("back_at", Instant),  # to the first one after
    Column("swept", BigInteger, nullable=False, server_default="0"),
    Column("dispatched", BigInteger, nullable=False, server_default="0"),
    Column("at_capacity", BigInteger, nullable=False, server_default="0"),
    Column("lock_lost", BigInteger, nullable=False, server_default="0"),
    Column("late_settlers", BigInteger, nullable=False, server_default="0"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

backfill = Table(
    "sched_backfill",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("app", String(100), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("job", String(200), nullable=False),
    Column("from_at", Instant, nullable=False),
    Column("to_at", Instant, nullable=False),
    Column("at", Instant, nullable=False),  # everything up to here is dealt with
    Column("max_concurrent", Integer, nullable=False),
    Column("reprocess", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", Text),
    Column("total", BigInteger, nullable=False),
    Column("created_count", BigInteger, nullable=False, server_default="0"),
    Column("again_count", BigInteger, nullable=False, server_default="0"),
    Column("left_count", BigInteger, nullable=False, server_default="0"),
    Column("created_at", Instant, nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("finished_at", Instant),
    Index(None, "app", "status"),
    CheckConstraint("max_concurrent >= 1", name="one_or_more"),
    CheckConstraint("(finished_at IS NULL) = (status = 'running')", name="finished_iff_ended"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

event = Table(
    "sched_event",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app", String(100), nullable=False),
    Column("topic", String(200), nullable=False),
    Column("payload", JSON, nullable=False),
    # anybody may insert a row with plain SQL: what follows need not be given
    Column("key", String(200)),
    Column("dedupe_key", String(200)),
    Column("hops", Integer, nullable=False, server_default="0"),
    Column("run_id", String(36)),  # the run that published it
    Column("published_at", Instant),  # NULL: when it was fanned out, as far as is known
    Column("fanned_out_at", Instant),  # NULL: not yet. The queue; there is no cursor
    UniqueConstraint("app", "topic", "dedupe_key"),
    Index(None, "app", "fanned_out_at"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
    sqlite_autoincrement=True,  # an id is never used again: delivery ids are made of it
)

subscription = Table(
    "sched_subscription",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("app", String(100), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("replay_after", BigInteger),  # events older than it are still to come, after this id; NULL: none
    UniqueConstraint("job_id"),
    Index(None, "app"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

delivery = Table(
    "sched_delivery",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("app", String(100), nullable=False),
    Column("subscription_id", String(36), nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("event_id", BigInteger, nullable=False),
    Column("topic", String(200), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(1000)),
    Column("run_id", String(36)),  # the run that carries it, with others when batched
    Column("created_at", Instant, nullable=False),
    Column("finished_at", Instant),
    UniqueConstraint("subscription_id", "event_id"),
    Index(None, "app", "status", "created_at"),
    Index(None, "subscription_id", "status", "event_id"),  # what waits, oldest first
    Index(None, "run_id"),
    Index(None, "event_id"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

sensor = Table(
    "sched_sensor",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("app", String(100), nullable=False),
    Column("seen", JSON, nullable=False),  # how far it has looked
    Column("version", BigInteger, nullable=False),  # one more with each move: a compare-and-set
    Column("updated_at", Instant, nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

notification = Table(
    "sched_notification",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app", String(100), nullable=False),
    Column("kind", String(30), nullable=False),
    Column("job_id", BigInteger),
    Column("job", String(200)),
    Column("about_run", String(36)),
    Column("title", String(255), nullable=False),
    Column("text", LongText, nullable=False),
    Column("targets", JSON, nullable=False),
    Column("dedupe_key", String(255), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reason", String(1000)),
    Column("run_id", String(36)),  # the run that sends it
    Column("created_at", Instant, nullable=False),
    Column("seen_at", Instant),  # by somebody in the list
    Index(None, "app", "status", "created_at"),
    Index(None, "app", "dedupe_key", "created_at"),
    Index(None, "app", "created_at"),
    Index(None, "app", "seen_at", "status"),  # how many nobody has seen
    Index(None, "job_id", "id"),  # what was told last of a job: the next success may be a recovery
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)

audit = Table(
    "sched_audit",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("app", String(100), nullable=False),
    Column("at", Instant, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("action", String(50), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("detail", JSON, nullable=False),
    Index(None, "app", "at"),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)
