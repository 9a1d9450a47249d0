"""What retries, heartbeats and the pause after failures need; earlier attempts stay visible."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INSTANT = (
    sa.DateTime(timezone=True)
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    .with_variant(sa.DateTime(), "sqlite")
)
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")


def needed(kind: sa.types.TypeEngine, name: str, default: str) -> sa.Column:
    return sa.Column(name, kind, nullable=False, server_default=default)


def add_columns(table: str, *columns: sa.Column) -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in there:
            op.add_column(table, column)


def upgrade() -> None:
    no_names = sa.text("'[]'")
    add_columns(
        "sched_job",
        sa.Column("soft_time_limit", sa.Double()),
        sa.Column("heartbeat_timeout", sa.Double()),
        needed(sa.Integer(), "retries", "0"),
        needed(sa.String(20), "backoff", "exponential"),
        needed(sa.Double(), "retry_delay", "10"),
        needed(sa.Double(), "retry_max_delay", "3600"),
        needed(sa.Boolean(), "retry_jitter", sa.true()),
        needed(sa.JSON(), "retry_on", no_names),
        needed(sa.JSON(), "give_up_on", no_names),
        needed(sa.Boolean(), "requeue", sa.false()),
        sa.Column("pause_on_failure", sa.Integer()),
        needed(sa.Integer(), "failures_in_row", "0"),
        needed(sa.Boolean(), "exclusive", sa.false()),
        sa.Column("on_lost", sa.String(255)),
        sa.Column("must_succeed_by", sa.String(50)),
        needed(sa.Integer(), "weight", "1"),
        sa.Column("concurrency_key", sa.String(255)),
        needed(sa.Integer(), "key_limit", "1"),
        sa.Column("last_success_at", INSTANT),
        sa.Column("watched_since", INSTANT),
        sa.Column("overdue_since", INSTANT),
    )
    add_columns(
        "sched_run",
        needed(sa.Integer(), "retried", "0"),
        needed(sa.Integer(), "requeued", "0"),
        sa.Column("beat_at", INSTANT),
        sa.Column("start_by", INSTANT),
        sa.Column("parent_id", sa.String(36)),
        sa.Column("options", sa.JSON()),
        needed(sa.Integer(), "weight", "1"),
        sa.Column("concurrency_key", sa.String(255)),
    )
    op.create_table(
        "sched_attempt",
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(1000)),
        sa.Column("worker_name", sa.String(255)),
        sa.Column("started_at", INSTANT),
        sa.Column("ended_at", INSTANT, nullable=False),
        sa.Column("error", LONG_TEXT),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("pk_sched_attempt")),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
    op.create_index(
        op.f("ix_sched_attempt_app_ended_at"), "sched_attempt", ["app", "ended_at"], if_not_exists=True
    )


def downgrade() -> None:
    op.drop_table("sched_attempt")
    columns = {
        "sched_job": (
            *("soft_time_limit", "heartbeat_timeout", "retries", "backoff", "retry_delay", "retry_max_delay"),
            *("retry_jitter", "retry_on", "give_up_on", "requeue", "pause_on_failure", "failures_in_row"),
            *("exclusive", "on_lost", "must_succeed_by", "weight", "concurrency_key", "key_limit"),
            *("last_success_at", "watched_since", "overdue_since"),
        ),
        "sched_run": (
            *("retried", "requeued", "beat_at", "start_by", "parent_id", "options"),
            *("weight", "concurrency_key"),
        ),
    }
    for table, names in columns.items():
        for name in names:
            op.drop_column(table, name)
