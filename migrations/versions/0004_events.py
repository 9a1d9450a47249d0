"""Events, the subscriptions of jobs, deliveries, what sensors have seen, notifications."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INSTANT = (
    sa.DateTime(timezone=True)
    .with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    .with_variant(sa.DateTime(), "sqlite")
)
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
OPTIONS = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def add_columns(table: str, *columns: sa.Column) -> None:
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns(table)}
    for column in columns:
        if column.name not in there:
            op.add_column(table, column)


def add_index(table: str, *columns: str) -> None:
    op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, list(columns), if_not_exists=True)


def upgrade() -> None:
    add_columns(
        "sched_job",
        sa.Column("on", sa.JSON()),
        sa.Column("publishes", sa.String(200)),
        sa.Column("notify", sa.JSON()),
    )
    add_columns("sched_run", sa.Column("hops", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "sched_event",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("topic", sa.String(200), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(200)),
        sa.Column("dedupe_key", sa.String(200)),
        sa.Column("hops", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("run_id", sa.String(36)),
        sa.Column("published_at", INSTANT),
        sa.Column("fanned_out_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sched_event")),
        sa.UniqueConstraint("app", "topic", "dedupe_key", name=op.f("uq_sched_event_app_topic_dedupe_key")),
        if_not_exists=True,
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    add_index("sched_event", "app", "fanned_out_at")
    op.create_table(
        "sched_subscription",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("replay_after", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sched_subscription")),
        sa.UniqueConstraint("job_id", name=op.f("uq_sched_subscription_job_id")),
        if_not_exists=True,
        **OPTIONS,
    )
    add_index("sched_subscription", "app")
    op.create_table(
        "sched_delivery",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("subscription_id", sa.String(36), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("topic", sa.String(200), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(1000)),
        sa.Column("run_id", sa.String(36)),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("finished_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sched_delivery")),
        sa.UniqueConstraint(
            "subscription_id", "event_id", name=op.f("uq_sched_delivery_subscription_id_event_id")
        ),
        if_not_exists=True,
        **OPTIONS,
    )
    add_index("sched_delivery", "app", "status", "created_at")
    add_index("sched_delivery", "subscription_id", "status", "event_id")
    add_index("sched_delivery", "run_id")
    add_index("sched_delivery", "event_id")
    op.create_table(
        "sched_sensor",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("seen", sa.JSON(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_sched_sensor")),
        if_not_exists=True,
        **OPTIONS,
    )
    op.create_table(
        "sched_notification",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("app", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("job_id", sa.BigInteger()),
        sa.Column("job", sa.String(200)),
        sa.Column("about_run", sa.String(36)),
        sa.Column("title", sa.String(255), nullable=False),
        sa.Column("text", LONG_TEXT, nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("dedupe_key", sa.String(255), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.String(1000)),
        sa.Column("run_id", sa.String(36)),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("seen_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sched_notification")),
        if_not_exists=True,
        **OPTIONS,
    )
    add_index("sched_notification", "app", "status", "created_at")
    add_index("sched_notification", "app", "dedupe_key", "created_at")
    add_index("sched_notification", "app", "created_at")
    add_index("sched_notification", "app", "seen_at", "status")
    add_index("sched_notification", "job_id", "id")


def downgrade() -> None:
    for table in (
        "sched_notification",
        "sched_sensor",
        "sched_delivery",
        "sched_subscription",
        "sched_event",
    ):
        op.drop_table(table)
    op.drop_column("sched_run", "hops")
    for name in ("on", "publishes", "notify"):
        op.drop_column("sched_job", name)
