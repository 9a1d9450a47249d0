"""Settings of this deployment: of ``celery -A celery_sched beat | worker | flower | sched``.

Nothing here is needed. As it stands, SQLite and a broker of files under ``.celery_sched/`` serve one machine
without any server, and environment variables override that: CELERY_BROKER_URL, CELERY_RESULT_BACKEND and
CELERY_SCHED_DATABASE_URL, CELERY_SCHED_REDIS_URL, ... (every ``sched_*`` setting in capitals).

Any Celery setting may stand here. A value that stands here wins over CELERY_SCHED_*; Celery lets
CELERY_BROKER_URL and CELERY_RESULT_BACKEND win over what stands here.
"""

# For production: a database that several machines share, and a broker.
# sched_database_url = "postgresql+psycopg://scheduler@db.example/scheduler"
# broker_url = "redis://redis.example:6379/0"
# result_backend = "redis://redis.example:6379/1"

# In-flight counters in Redis; without it the database counts.
# sched_redis_url = "redis://redis.example:6379/2"

# How many jobs may run at once when the pool `default` is first made (later: sched pools resize).
# sched_max_concurrent_jobs = 5

# How soon a dead worker is noticed, and how long a job may run that says nothing.
# sched_lease = "60s"
# sched_max_runtime = "10m"

# The folder of the embedded default.
# sched_home = ".celery_sched"

# Jobs are imported from `tasks` beside this file; more modules:
# imports = ("billing.jobs",)
