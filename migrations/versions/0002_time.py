"""What the times of jobs need: windows, calendars, jitter, spans of inactivity, outages, backfills.

Columns are added where they are missing: MariaDB commits each statement by itself, so a migration that was
cut off in the middle must be able to start again.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INSTANT = (
    sa.DateTime(timezone=True)
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    .with_variant(sa.DateTime(), "sqlite")
)


def counter(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")


def add_columns(table: str, *columns: sa.Column) -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in there:
            op.add_column(table, column)


def upgrade() -> None:
    add_columns(
        "sched_job",
        sa.Column("dst", sa.String(20), nullable=False, server_default="vixie"),
        sa.Column("day_mode", sa.String(20), nullable=False, server_default="or"),
        sa.Column("start_at", INSTANT),
        sa.Column("end_at", INSTANT),
        sa.Column("max_runs", sa.Integer()),
        sa.Column("jitter", sa.Double()),
        sa.Column("exclude", sa.JSON(), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("on_excluded", sa.String(20), nullable=False, server_default="skip"),
        counter("planned_count"),
        sa.Column("inactive_since", INSTANT),
        sa.Column("timing_since", INSTANT),
    )
    add_columns("sched_run", sa.Column("backfill_id", sa.String(36)))
    op.create_index(
        op.f("ix_sched_run_backfill_id_status"), "sched_run", ["backfill_id", "status"], if_not_exists=True
    )
    add_columns("sched_app", sa.Column("down_from", INSTANT), sa.Column("back_at", INSTANT))
    op.create_table(
        "sched_backfill",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("from_at", INSTANT, nullable=False),
        sa.Column("to_at", INSTANT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("max_concurrent", sa.Integer(), nullable=False),
        sa.Column("reprocess", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("total", sa.BigInteger(), nullable=False),
        counter("created_count"),
        counter("again_count"),
        counter("left_count"),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("created_by", sa.String(255), nullable=False),
        sa.Column("finished_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sched_backfill")),
        sa.CheckConstraint("max_concurrent >= 1", name=op.f("ck_sched_backfill_one_or_more")),
        sa.CheckConstraint(
            "(finished_at IS NULL) = (status = 'running')", name=op.f("ck_sched_backfill_finished_iff_ended")
        ),
        if_not_exists=True,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )
    op.create_index(
        op.f("ix_sched_backfill_app_status"), "sched_backfill", ["app", "status"], if_not_exists=True
    )


def downgrade() -> None:
    op.drop_table("sched_backfill")
    op.drop_index(op.f("ix_sched_run_backfill_id_status"), "sched_run")
    columns = {
        "sched_job": (
            *("dst", "day_mode", "start_at", "end_at", "max_runs", "jitter", "exclude", "on_excluded"),
            *("planned_count", "inactive_since", "timing_since"),
        ),
        "sched_run": ("backfill_id",),
        "sched_app": ("down_from", "back_at"),
    }
    for table, names in columns.items():
        for name in names:
            op.drop_column(table, name)
