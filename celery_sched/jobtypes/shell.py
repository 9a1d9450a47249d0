"""The job type `shell`: one command, in a process group that ends with the run.

Whatever ends the run (its time, a stop, a soft time limit, a lost lease) ends the command and what it
started: SIGTERM to the group, SIGKILL a moment later. What the command leaves behind in its group, or as its
descendant, when it ends by itself is killed too. A process that makes itself a daemon (a new session, its
parent gone) is out of reach.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from celery_sched import secrets
from celery_sched.config import Config
from celery_sched.errors import InvalidValue, SchedulerError
from celery_sched.jobtypes import process_group as group
from celery_sched.jobtypes.base import JobContext, JobType
from celery_sched.jobtypes.options import (
    FILLED,
    TEXT_MAPPING,
    TRUTH,
    Form,
    count,
    duration,
    option,
    texts,
)

PASSED_ON = (
    *("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_NUMERIC"),
    *("LC_TIME", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR"),
)
"""What a command gets of its worker's environment: the rest may hold the worker's own secrets."""
SHELL = "/bin/sh"
DRAIN = 1.0
"""Seconds in which what is still in the pipe is read, once the command has ended."""
LOOK = 0.05
"""Seconds between two looks whether it has ended."""
PIECE = 64 * 1024
SHOWN = 2000
"""Characters of the output that an error shows."""


class ShellRefused(SchedulerError):
    """This worker carries out no commands."""


class CommandFailed(SchedulerError):
    """A command ended with an exit code that is no success, or by a signal."""


def read_codes(value: Any, what: str) -> tuple[int, ...]:
    """Exit codes: one, or a list."""
    codes = value if isinstance(value, list | tuple) else [value]
    for code in codes:
        if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code <= 255:
            raise InvalidValue(what, value, "exit codes from 0 to 255")
    if not codes:
        raise InvalidValue(what, value, "at least one exit code")
    return tuple(codes)


def read_env(value: Any, what: str) -> dict[str, str]:
    """Variables of the environment."""
    env: dict[str, str] = TEXT_MAPPING.read(value, what)
    for name, text in env.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidValue(what, name, "names without =, and no NUL")
    return env


@dataclass(frozen=True, kw_only=True)
class ShellConfig:
    """A command and where it runs."""

    command: tuple[str, ...] = option(
        Form("list of texts", texts),
        "the program and its arguments, a list; with `shell` one text. Anybody on the worker's machine can "
        "see arguments: give secrets in `env`",
    )
    shell: bool = option(TRUTH, f"`command` is one text for `{SHELL} -c`", False)
    env: Mapping[str, str] = option(
        Form("mapping of texts", read_env),
        "variables, beside `SCHED_*` and a few of the worker's own (`PATH`, `HOME`, `LANG`, `TZ`, ...)",
        {},
    )
    cwd: str | None = option(FILLED, "folder on the worker in which it runs (default: the worker's)", None)
    stdin: str | None = option(FILLED, "what it reads from its standard input (default: nothing)", None)
    timeout: timedelta | None = option(
        duration("365d"), "after this it is ended and the run fails (default: the job's limits)", None
    )
    success: tuple[int, ...] = option(Form("exit codes", read_codes), "exit codes that are a success", [0])
    keep: int = option(
        count(0, 32 * 1024), "bytes kept of what it prints (both its outputs, in order): the last ones", 8192
    )


class Shell(JobType[ShellConfig]):
    """One command."""

    name = "shell"
    description = "runs a program on the worker, where sched_allow_shell is on"
    config = ShellConfig

    def check(self, config: ShellConfig) -> None:
        """One text for a shell; a program for a list; no secrets in a shell's own language."""
        command = f"{self.name}: command"
        if not config.command or not config.command[0].strip():
            raise InvalidValue(command, list(config.command), "a program, and its arguments")
        if any("\0" in part for part in config.command):
            raise InvalidValue(command, list(config.command), "no NUL")
        if config.shell and len(config.command) != 1:
            raise InvalidValue(command, list(config.command), "one text, with shell=true")
        if config.shell and secrets.refers(list(config.command)):
            hint = 'Give it in env, and write "$NAME" here: a shell would read the value as its own language.'
            raise InvalidValue(command, config.command[0], "no secret within a shell's text", hint)
        if not config.shell and len(config.command) == 1 and " " in config.command[0].strip():
            hint = 'Write ["program", "argument"], or set shell=true.'
            raise InvalidValue(command, config.command[0], "a list of the program and its arguments", hint)

    def warnings(self, config: ShellConfig, settings: Config) -> list[str]:
        """Commands are off here, and may be on the workers too."""
        if settings.allow_shell:
            return []
        return [
            "sched_allow_shell is off here: runs fail on workers where it is off too (set it to true there, "
            "if whoever may define jobs may run programs)"
        ]

    def run(self, config: ShellConfig, ctx: JobContext) -> Any:
        """Start it, read what it prints, wait for its end."""
        if not ctx.settings.allow_shell:
            raise ShellRefused(
                "this worker carries out no commands: set sched_allow_shell to true in its settings, if "
                "whoever may define jobs may run programs on it"
            )
        began = time.monotonic()
        process = _started(config, ctx)
        output = _Output(config.keep)
        try:
            cut_short = _watch(process, output, config, ctx, began)
        finally:
            ended = group.end(process)
            output.drain(process)
        text, truncated = output.text()
        if cut_short is not None:
            raise TimeoutError(_told(f"{config.command[0]!r} was killed: {cut_short}", text))
        if ended not in config.success:
            raise CommandFailed(_told(_failure(config, ended), text))
        return {
            "exit_code": ended,
            "output": text,
            "truncated": truncated,
            "bytes": output.size,
            "seconds": round(time.monotonic() - began, 3),
        }


def environment(config: ShellConfig, ctx: JobContext) -> dict[str, str]:
    """What the command finds in its environment."""
    found = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    found |= {
        "SCHED_RUN_ID": ctx.run_id,
        "SCHED_JOB": ctx.job,
        "SCHED_APP": ctx.settings.app,
        "SCHED_SCHEDULED_FOR": ctx.scheduled_for.isoformat(),
        "SCHED_ATTEMPT": str(ctx.attempt),
        "SCHED_FENCE": str(ctx.fence),
    }
    if ctx.event is not None:
        found["SCHED_EVENT"] = json.dumps(ctx.event, ensure_ascii=False)
    return {**found, **config.env}


def _started(config: ShellConfig, ctx: JobContext) -> subprocess.Popen[bytes]:
    command = [SHELL, "-c", config.command[0]] if config.shell else list(config.command)
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise InvalidValue("shell: cwd", config.cwd, "a folder on this worker")
    source = _input(config.stdin)
    try:
        return subprocess.Popen(
            command,
            # a group and no session: should this worker's child be killed, its leftovers are found by session
            process_group=0,
            cwd=config.cwd,
            env=environment(config, ctx),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        allowed = f"a program that this worker can start ({error.strerror})"
        raise InvalidValue("shell: command", command[0], allowed) from error
    finally:
        os.close(source)


def _input(text: str | None) -> int:
    """A file descriptor to read ``text`` from; in memory, and no pipe, which somebody would have to fill."""
    if text is None:
        return os.open(os.devnull, os.O_RDONLY)
    made = os.memfd_create("stdin")
    with os.fdopen(os.dup(made), "wb") as file:
        file.write(text.encode())
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _watch(
    process: subprocess.Popen[bytes], output: _Output, config: ShellConfig, ctx: JobContext, began: float
) -> str | None:
    """Read until the command has ended; else say why it must be ended."""
    limit = float("inf") if config.timeout is None else config.timeout.total_seconds()
    while not group.has_ended(process):
        if time.monotonic() - began >= limit:
            return f"it did not end within {limit:g} s"
        if ctx.lost:
            return "the lease of its run was lost"
        output.read(process)
    return None


class _Output:
    """The end of what a command prints; memory is bounded however much that is."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._pieces = b""
        self.size = 0
        self._open = True

    def read(self, process: subprocess.Popen[bytes]) -> bool:
        """Take what comes within a moment; return whether anything did."""
        assert process.stdout is not None
        if not self._open:
            time.sleep(LOOK)  # it closed its output and goes on
            return False
        ready, _, _ = select.select([process.stdout], [], [], LOOK)
        if not ready:
            return False
        piece = os.read(process.stdout.fileno(), PIECE)
        self._open = bool(piece)
        self.size += len(piece)
        # more than what is kept: a secret at the cut must be recognisable
        self._pieces = (self._pieces + piece)[-(self._keep + secrets.LONGEST) :]
        return bool(piece)

    def drain(self, process: subprocess.Popen[bytes]) -> None:
        """Read what is left in the pipe, and close it, whoever still has its other end."""
        assert process.stdout is not None
        until = time.monotonic() + DRAIN
        while self._open and time.monotonic() < until and self.read(process):
            continue
        process.stdout.close()

    def text(self) -> tuple[str, bool]:
        """The last ``keep`` bytes, and whether there were more. Without secrets, also cut ones."""
        cut = len(self._pieces) < self.size
        clean = secrets.redact(self._pieces.decode(errors="replace"), cut_before=cut).encode()
        kept = clean[-self._keep :] if self._keep else b""
        return kept.decode(errors="ignore"), cut or len(kept) < len(clean)


def _failure(config: ShellConfig, code: int) -> str:
    how = f"ended with exit code {code}"
    if code < 0:
        names = {member.value: member.name for member in signal.Signals}
        how = f"was killed by {names.get(-code, f'signal {-code}')}"
    wanted = ", ".join(map(str, config.success))
    return f"{config.command[0]!r} {how}, expected {wanted}"


def _told(said: str, output: str) -> str:
    shown = output[-SHOWN:].strip()
    return said + (f". It printed last:\n{shown}" if shown else ", and printed nothing")
