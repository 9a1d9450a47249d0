"""The versions of the schema. They import nothing of celery_sched, so that they stay what they were."""
