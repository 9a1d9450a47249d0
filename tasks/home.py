"""Where the sample jobs keep their files."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The embedded folder (`CELERY_SCHED_HOME`, default `.celery_sched`), created where it is missing."""
    folder = Path(os.environ.get("CELERY_SCHED_HOME") or ".celery_sched").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
