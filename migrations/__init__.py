"""Alembic migrations; in a wheel ``celery_sched.migrations``. Version files are frozen once released."""
