# One image for all roles; docker-compose.yml says which command each one runs.
FROM python:3.12-slim

RUN useradd --create-home --home-dir /srv celery_sched
WORKDIR /srv

COPY setup.cfg pyproject.toml README.md /src/
COPY celery_sched /src/celery_sched
COPY migrations /src/migrations
RUN pip install --no-cache-dir "/src[all]" && rm -r /src

# This deployment's own jobs and settings: not part of what is installed.
COPY tasks /srv/tasks
COPY celeryconfig.py /srv/

USER celery_sched
ENV PYTHONUNBUFFERED=1
CMD ["celery", "-A", "celery_sched", "beat", "--loglevel", "INFO"]
