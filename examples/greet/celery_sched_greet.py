"""A job type of one's own: ``greet``. Install it beside celery_sched; ``sched jobtypes`` lists it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_sched.config import Config
from celery_sched.errors import InvalidValue
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import FILLED, count, option


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What people write in a job's ``kwargs``. Each field says how it is read, and what it is for."""

    name: str = option(FILLED, "whom to greet")
    times: int = option(count(1, 10), "how often", 1)
    password: str | None = option(FILLED, "what opens the door: `secret:NAME`", None)


class Greet(JobType[Greeting]):
    """Greets somebody."""

    name = "greet"
    description = "greets somebody"
    config = Greeting

    def check(self, config: Greeting) -> None:
        """What the fields say together; asked when a job is defined, and again on the worker."""
        if config.name == "nobody" and config.times > 1:
            raise InvalidValue("greet: times", config.times, "nobody is greeted once at most")

    def warnings(self, config: Greeting, settings: Config) -> list[str]:
        """What people are told when they define such a job, and is no error."""
        return ["nobody will hear it"] if config.name == "nobody" else []

    def run(self, config: Greeting, ctx: JobContext) -> Any:
        """Runs on a worker. Secrets have been looked up; what is returned stands in the history."""
        ctx.log.info("run %s greets %s, attempt %d", ctx.run_id, config.name, ctx.attempt)
        return {"said": ["Hello " + config.name] * config.times, "opened_with": config.password}
