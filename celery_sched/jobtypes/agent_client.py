"""Asks the models of a list for one answer: fail-over and retries that are bounded in attempts and in time.

Whatever the servers do, a call of :func:`ask` ends at its deadline: each wait ends there (see
``wire``), pauses too, and no pause is begun that would pass it.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_sched.errors import SchedulerError
from celery_sched.jobtypes import agent_answers as answers
from celery_sched.jobtypes import wire, wire_http
from celery_sched.jobtypes.agent_answers import Completion
from celery_sched.jobtypes.agent_errors import Failed, Next, of_error

LONGEST_PAUSE = 30.0
"""Seconds between two tries, unless a server asks for more."""
FROM_SERVER = "text/event-stream"


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently. Seconds."""

    base_url: str
    models: Sequence[str]
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any]
    """What is sent besides model and messages."""
    stream: bool = True
    attempts_per_model: int = 2
    max_attempts: int = 6
    connect_timeout: float = 10.0
    idle_timeout: float = 60.0
    request_timeout: float = 300.0
    pause: float = 1.0
    """Before a model is asked again; doubled each time."""
    resolve: wire.Resolve = wire.addresses
    tls: ssl.SSLContext | None = None
    """For https; None: what the system trusts."""


@dataclass(frozen=True)
class Attempt:
    """One request: its HTTP status (None: none came), what went wrong (None: nothing), how long it took."""

    model: str
    status: int | None
    error: str | None
    seconds: float


class GivenUp(SchedulerError):
    """No answer: attempts or time are used up. The text lists every attempt."""

    def __init__(self, why: str, attempts: Sequence[Attempt]) -> None:
        self.why, self.attempts = why, tuple(attempts)
        lines = [
            f"  {n}. {a.model}, {a.seconds:.1f} s: {a.error}" for n, a in enumerate(attempts, 1) if a.error
        ]
        super().__init__("\n".join([f"no answer from the models: {why}", *lines]))


class Refused(GivenUp):
    """No answer: the servers refuse the request itself. Making it again changes nothing."""


@dataclass
class Budget:
    """What all questions of one run share: the deadline, the attempts, and what each model may still do."""

    endpoint: Endpoint
    deadline: float
    """An instant of :func:`time.monotonic`."""
    alive: Callable[[], None]
    """Called now and then while it waits; what it raises ends the call."""
    attempts: list[Attempt] = field(default_factory=list)
    since: int = 0
    """Attempts that belong to earlier questions."""
    tries: dict[str, int] = field(default_factory=dict)
    """Of this question, by model."""
    ready_at: dict[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    jitter: float = field(default_factory=lambda: random.uniform(0.5, 1.0))
    """One for the whole run: runs that met a busy server come back apart, and models keep their order."""

    def ask(self, messages: Sequence[Mapping[str, Any]]) -> Completion:
        """An answer to this conversation, from the first model that has one.

        Models are asked in their order; a model that was asked already comes after those that were asked less
        often, so that a busy one is waited for only when no other is left.

        :raises GivenUp: attempts or time are used up.
        :raises Refused: the request itself is refused, or no model is known there.
        """
        self.tries, self.since = {}, len(self.attempts)
        while True:
            model = self._wait_for(self._model())
            began = time.monotonic()
            self.alive()
            try:
                completion = self._try(model, messages)
            except Failed as error:
                self._note(model, error.status, str(error), began)
                if error.next is Next.GIVE_UP:
                    raise Refused("the request is refused", self.attempts) from error
                if error.next is Next.OTHER_MODEL:
                    self.gone.add(model)
                self._pause(model, error.retry_after)
            except wire.Unreachable as error:
                self._note(model, None, str(error), began)
                self._pause(model, 0.0)
            else:
                self._note(model, 200, None, began)
                return completion

    def _model(self) -> str:
        """Which model is asked next."""
        endpoint = self.endpoint
        if len(self.attempts) - self.since >= endpoint.max_attempts:
            raise self._given_up(f"all {endpoint.max_attempts} attempts are used up (max_attempts)")
        left = [
            model
            for model in endpoint.models
            if model not in self.gone and self.tries.get(model, 0) < endpoint.attempts_per_model
        ]
        if not left:
            if self.gone >= set(endpoint.models):
                raise Refused("no model is known there", self.attempts)
            raise self._given_up(
                f"all models had {endpoint.attempts_per_model} attempts (attempts_per_model)"
            )
        now = time.monotonic()
        return min(left, key=lambda m: (max(now, self.ready_at.get(m, now)), self.tries.get(m, 0)))

    def _wait_for(self, model: str) -> str:
        ready_at = self.ready_at.get(model, 0.0)
        if max(ready_at, time.monotonic()) >= self.deadline:
            wait = ready_at - time.monotonic()
            asked = f", and the next may begin in {wait:.1f} s only" if wait > 0 else ""
            raise self._given_up(f"the deadline allows no further attempt{asked}")
        while (left := ready_at - time.monotonic()) > 0:
            self.alive()
            time.sleep(min(left, wire.SLICE))
        return model

    def _try(self, model: str, messages: Sequence[Mapping[str, Any]]) -> Completion:
        endpoint = self.endpoint
        limits = wire.Limits(
            min(self.deadline, time.monotonic() + endpoint.request_timeout),
            endpoint.connect_timeout,
            endpoint.idle_timeout,
        )
        body = {**endpoint.body, "model": model, "messages": list(messages), "stream": endpoint.stream}
        accept = FROM_SERVER if endpoint.stream else "application/json"
        headers = {"Content-Type": "application/json", "Accept": accept, **endpoint.headers}
        url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        answer = wire_http.request(
            "POST",
            url,
            headers,
            json.dumps(body).encode(),
            limits,
            self.alive,
            resolve=endpoint.resolve,
            tls=endpoint.tls,
        )
        try:
            if answer.status != 200:
                raise of_error(answer.status, answer.body(), answer.headers)
            # what it is, not what was asked for: some servers know no streams
            if answer.headers.get("content-type", "").startswith(FROM_SERVER):
                return answers.of_stream(answer.lines(), wire.Unreachable)
            return answers.of_json(answer.body())
        finally:
            answer.close()

    def _note(self, model: str, status: int | None, error: str | None, began: float) -> None:
        self.attempts.append(Attempt(model, status, error, round(time.monotonic() - began, 3)))
        self.tries[model] = self.tries.get(model, 0) + 1

    def _pause(self, model: str, asked: float) -> None:
        own = min(LONGEST_PAUSE, self.endpoint.pause * 2 ** (self.tries[model] - 1)) * self.jitter
        self.ready_at[model] = time.monotonic() + max(asked, own)

    def _given_up(self, why: str) -> GivenUp:
        return GivenUp(why, self.attempts)
