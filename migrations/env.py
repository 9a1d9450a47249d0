"""What Alembic runs around the versions, for ``sched migrate`` and for ``alembic -c setup.cfg upgrade head``.

The database is the one that the commands use too: settings, ``celeryconfig.py``, CELERY_SCHED_DATABASE_URL.
"""

from alembic import context
from sqlalchemy import Connection

from celery_sched.store import schema
from celery_sched.store.tables import metadata


def database_url() -> str:
    """The URL that ``schema.upgrade`` was given, else that of the stand-alone app's settings."""
    given = context.config.attributes.get("database_url")
    if given is not None:
        return str(given)
    from celery_sched import config
    from celery_sched.app import standalone

    app = standalone()
    return config.load(app.conf, app.main).database_url


def run(connection: Connection) -> None:
    """Run what Alembic was asked for on this connection, which holds the migration lock."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=schema.VERSION_TABLE,
        compare_type=schema.compare_type,
        include_object=schema.include_object,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    context.configure(url=database_url(), literal_binds=True, version_table=schema.VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()
else:
    schema.exclusively(database_url(), run)
