"""The first schema: jobs, runs, gaps, pools, nodes, apps, audit.

Every statement says IF NOT EXISTS: MariaDB commits each one by itself, so a migration that was cut off
in the middle must be able to start again.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = (
    sa.DateTime(timezone=True)
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    .with_variant(sa.DateTime(), "sqlite")
)
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
# bin: names that differ in case are different names, as they are on the other databases
OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def counter(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def check(table: str, name: str, text: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(text, name=op.f(f"ck_{table}_{name}"))


def primary(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=op.f(f"pk_{table}"))


def unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns), if_not_exists=True)


def upgrade() -> None:
    op.create_table(
        "sched_job",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("task", sa.String(255), nullable=False),
        sa.Column("schedule", sa.String(1000), nullable=False),
        sa.Column("timezone", sa.String(64), nullable=False),
        sa.Column("args", sa.JSON(), nullable=False),
        sa.Column("kwargs", sa.JSON(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("overlap", sa.String(20), nullable=False),
        sa.Column("max_queued", sa.Integer(), nullable=False),
        sa.Column("misfire", sa.String(20), nullable=False),
        sa.Column("misfire_grace", sa.Double()),
        sa.Column("catchup_window", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double()),
        sa.Column("max_runtime", sa.Double()),
        sa.Column("time_limit", sa.Double()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pool", sa.String(100), nullable=False),
        sa.Column("run_immediately", sa.Boolean(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("source", sa.String(20), nullable=False),
        sa.Column("code_definition", sa.JSON()),
        sa.Column("anchor", INSTANT, nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("status_reason", sa.Text()),
        sa.Column("version", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("next_run_at", INSTANT),
        sa.Column("last_scheduled_for", INSTANT),
        sa.Column("lock_token", sa.String(36)),
        sa.Column("locked_by", sa.String(36)),
        sa.Column("locked_at", INSTANT),
        counter("fence"),
        counter("run_count"),
        counter("success_count"),
        counter("failure_count"),
        counter("skipped_count"),
        sa.Column("last_run_at", INSTANT),
        sa.Column("last_status", sa.String(20)),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        primary("sched_job", "id"),
        unique("sched_job", "app", "name"),
        check("sched_job", "lock_whole", "(lock_token IS NULL) = (locked_by IS NULL)"),
        check("sched_job", "priority_range", "priority BETWEEN 0 AND 9"),
        if_not_exists=True,
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    index("sched_job", "app", "status", "next_run_at")

    op.create_table(
        "sched_run",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("task", sa.String(255), nullable=False),
        sa.Column("trigger_kind", sa.String(20), nullable=False),
        sa.Column("scheduled_for", INSTANT, nullable=False),
        sa.Column("occurrence_key", sa.String(64)),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(1000)),
        sa.Column("args", sa.JSON()),
        sa.Column("kwargs", sa.JSON()),
        sa.Column("pool", sa.String(100), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False, server_default="1"),
        sa.Column("queued_at", INSTANT, nullable=False),
        sa.Column("ready_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("at_capacity_at", INSTANT),
        sa.Column("token", sa.String(36)),
        sa.Column("fence", sa.BigInteger()),
        sa.Column("holds_job", sa.BigInteger()),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("dispatched_at", INSTANT),
        sa.Column("published_at", INSTANT),
        sa.Column("publish_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("received_by", sa.String(36)),
        sa.Column("received_at", INSTANT),
        sa.Column("worker", sa.String(36)),
        sa.Column("worker_name", sa.String(255)),
        sa.Column("started_at", INSTANT),
        sa.Column("deadline_at", INSTANT),
        sa.Column("eta", INSTANT),
        sa.Column("retries", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("finished_at", INSTANT),
        sa.Column("stop_requested_at", INSTANT),
        sa.Column("stop_requested_by", sa.String(255)),
        sa.Column("stop_reason", sa.String(1000)),
        sa.Column("error", LONG_TEXT),
        sa.Column("result", LONG_TEXT),
        primary("sched_run", "id"),
        unique("sched_run", "occurrence_key"),
        unique("sched_run", "holds_job"),
        check(
            "sched_run",
            "finished_iff_terminal",
            "(finished_at IS NOT NULL) = (status IN"
            " ('cancelled', 'failed', 'lost', 'skipped', 'succeeded', 'timed_out'))",
        ),
        check(
            "sched_run",
            "lease_iff_held",
            "(token IS NOT NULL) = (status IN ('dispatched', 'running'))"
            " AND (lease_expires_at IS NOT NULL) = (status IN ('dispatched', 'running'))",
        ),
        check("sched_run", "holder_has_token", "holds_job IS NULL OR token IS NOT NULL"),
        if_not_exists=True,
        **OPTIONS,
    )
    index("sched_run", "app", "status", "ready_at", "expires_at")
    index("sched_run", "app", "status", "lease_expires_at")
    index("sched_run", "job_id", "status")
    index("sched_run", "app", "queued_at", "scheduled_for")
    index("sched_run", "app", "job", "queued_at", "scheduled_for")
    index("sched_run", "app", "finished_at")

    op.create_table(
        "sched_gap",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("from_at", INSTANT, nullable=False),
        sa.Column("to_at", INSTANT, nullable=False),
        sa.Column("reason", sa.String(1000), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        primary("sched_gap", "id"),
        if_not_exists=True,
        **OPTIONS,
    )
    index("sched_gap", "job_id", "from_at")

    op.create_table(
        "sched_pool",
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        primary("sched_pool", "app", "name"),
        check("sched_pool", "slots_not_negative", "slots >= 0"),
        if_not_exists=True,
        **OPTIONS,
    )

    op.create_table(
        "sched_node",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("version", sa.String(50), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("started_at", INSTANT, nullable=False),
        sa.Column("last_seen", INSTANT, nullable=False),
        sa.Column("stop_requested_at", INSTANT),
        primary("sched_node", "id"),
        if_not_exists=True,
        **OPTIONS,
    )
    index("sched_node", "app", "kind", "last_seen")

    op.create_table(
        "sched_app",
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("last_pass_at", INSTANT),
        sa.Column("sweep_not_before", INSTANT),
        counter("swept"),
        counter("dispatched"),
        counter("at_capacity"),
        counter("lock_lost"),
        counter("late_settlers"),
        primary("sched_app", "app"),
        if_not_exists=True,
        **OPTIONS,
    )

    op.create_table(
        "sched_audit",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(50), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        primary("sched_audit", "id"),
        if_not_exists=True,
        **OPTIONS,
    )
    index("sched_audit", "app", "at")


def downgrade() -> None:
    for name in ("audit", "app", "node", "pool", "gap", "run", "job"):
        op.drop_table(f"sched_{name}", if_exists=True)
