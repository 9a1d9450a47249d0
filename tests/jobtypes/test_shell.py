"""The job type `shell`: what a command gets, what is kept of it, that nothing of it outlives its run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_sched.errors import InvalidValue
from celery_sched.jobtypes import registry
from celery_sched.jobtypes.base import JobType
from celery_sched.jobtypes.shell import CommandFailed, ShellRefused
from celery_sched.secrets import HIDDEN
from tests.jobtypes.carried import RUN, carry_out, context_of
from tests.private_server import wait_until

PYTHON = sys.executable


def run(*command: str, **kwargs: Any) -> Any:
    """The result of a command."""
    ctx = kwargs.pop("ctx", None)
    return carry_out("shell", {"command": list(command), **kwargs}, allow_shell=True, ctx=ctx)


def is_alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_command() -> None:
    """Program and arguments are used as they are, no shell reads them; both outputs come in their order."""
    code = "import sys; print(sys.argv[1], flush=True); print('error', file=sys.stderr)"
    result = run(PYTHON, "-c", code, "$HOME; `id` *")
    assert (0, "$HOME; `id` *\nerror\n", False) == (
        result["exit_code"],
        result["output"],
        result["truncated"],
    )


def test_a_shell() -> None:
    """With `shell` the text is read by a shell."""
    assert (
        "a\n42\n"
        == carry_out("shell", {"command": "echo a; echo $((6*7))", "shell": True}, allow_shell=True)["output"]
    )


def test_off_unless_switched_on() -> None:
    """A worker carries out no command unless its own settings say so, whoever defined the job."""
    with pytest.raises(ShellRefused, match="set sched_allow_shell to true"):
        carry_out("shell", {"command": ["/bin/true"]})
    kind = registry.find("shell")
    assert isinstance(kind, JobType)
    from celery_sched import config

    assert 1 == len(kind.warnings(kind.read({"command": ["/bin/true"]}), config.load({}, "x", {})))


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is told about its run; of the worker's environment it gets a few variables only."""
    monkeypatch.setenv("CELERY_SCHED_SECRET_TOKEN", "hunter2hunter2")
    monkeypatch.setenv("DATABASE_PASSWORD", "unseen")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    printed = run("/usr/bin/env", env={"MINE": 1, "TOKEN": "secret:TOKEN"})["output"]
    found = dict(line.split("=", 1) for line in printed.splitlines())
    assert {
        "SCHED_RUN_ID": RUN,
        "SCHED_JOB": "job",
        "SCHED_APP": "test",
        "SCHED_SCHEDULED_FOR": "2026-01-31T09:00:00+00:00",
        "SCHED_ATTEMPT": "2",
        "SCHED_FENCE": "7",
        "MINE": "1",
        "TOKEN": HIDDEN,
        "TZ": "Europe/Berlin",
        "PATH": os.environ["PATH"],
    }.items() <= found.items()
    assert [] == [name for name in found if "SECRET" in name or "PASSWORD" in name]


def test_folder_and_input(tmp_path: Path) -> None:
    """It runs in its folder and reads what it is given; nothing, else."""
    text = "line\n" * 12_000
    code = "import os, sys; print(os.getcwd(), len(sys.stdin.read()))"
    assert f"{tmp_path} {len(text)}\n" == run(PYTHON, "-c", code, cwd=str(tmp_path), stdin=text)["output"]
    assert f"{os.getcwd()} 0\n" == run(PYTHON, "-c", code)["output"]


def test_exit_codes() -> None:
    """An exit code that is no success fails the run, with what the command printed last."""
    with pytest.raises(CommandFailed, match=r"ended with exit code 3, expected 0. It printed last:\nwhy$"):
        run("/bin/sh", "-c", "echo why; exit 3")
    assert 3 == run("/bin/sh", "-c", "exit 3", success=[0, 3])["exit_code"]
    with pytest.raises(CommandFailed, match="was killed by SIGSEGV"):
        run("/bin/sh", "-c", "kill -SEGV $$")


def test_output_is_bounded() -> None:
    """Of a long output the end is kept, and that there was more is said."""
    result = run(PYTHON, "-c", "for n in range(500_000): print(n)", keep=1000)
    lines = result["output"].splitlines()
    assert (True, "499999", 1000) == (result["truncated"], lines[-1], len(result["output"]))
    assert 3_388_890 == result["bytes"]


def test_a_secret_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is hidden also where the output is cut within it."""
    monkeypatch.setenv("CELERY_SCHED_SECRET_TOKEN", "0123456789abcdef")
    code = "import os; print('x' * 200_000 + os.environ['T'] * 9000, end='')"
    for keep in range(20, 40, 5):
        shown = run(PYTHON, "-c", code, env={"T": "secret:TOKEN"}, keep=keep)["output"]
        assert set(HIDDEN) == set(shown)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({}, "it must be given"),
        ({"command": []}, "a program, and its arguments"),
        ({"command": "ls -l"}, 'Write ["program", "argument"], or set shell=true'),
        ({"command": ["a", 1]}, "command[1]"),
        ({"command": ["a", "b"], "shell": True}, "one text, with shell=true"),
        ({"command": "echo ${secret:X}", "shell": True}, "no secret within a shell's text"),
        ({"command": ["a"], "success": [300]}, "exit codes from 0 to 255"),
        ({"command": ["a"], "env": {"A=B": "x"}}, "names without ="),
        ({"command": ["a"], "timeout": "soon"}, "a duration is written"),
    ],
)
def test_what_is_refused(kwargs: dict[str, Any], said: str) -> None:
    """A wrong field is named with its value and what is allowed."""
    kind = registry.find("shell")
    assert isinstance(kind, JobType)
    with pytest.raises(InvalidValue, match=re.escape(said)):
        kind.read(kwargs)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": ["/etc/passwd"]}, "Permission denied"),
        ({"command": ["/bin/true"], "cwd": "/no/such/folder"}, "a folder on this worker"),
    ],
)
def test_what_cannot_be_started(kwargs: dict[str, Any], said: str) -> None:
    """A program or a folder that is not there fails the run, by name."""
    with pytest.raises(InvalidValue, match=said):
        carry_out("shell", kwargs, allow_shell=True)


FAMILY = """
import os, signal, subprocess, sys, time
if len(sys.argv) > 3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
started = subprocess.Popen(
    [sys.executable, "-c", "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); time.sleep(600)"],
    start_new_session=sys.argv[2] == "session", stdout=None if sys.argv[2] == "pipe" else subprocess.DEVNULL)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {started.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
print("begun", flush=True)
time.sleep(600)
"""
"""A command with a child of its own that ignores SIGTERM."""


def family(file: Path) -> list[int]:
    """The processes of a family, once they are there."""
    wait_until(file.exists, 30, "the command to begin")
    return [int(pid) for pid in file.read_text().split()]


def test_a_timeout_ends_all_of_it(tmp_path: Path) -> None:
    """After its time a command is killed with all that it started, also what ignores SIGTERM or went away."""
    with pytest.raises(TimeoutError, match=r"was killed: it did not end within 5 s. It printed last:\nbegun"):
        run(PYTHON, "-c", FAMILY, str(tmp_path / "pids"), "session", "stubborn", timeout="5s")
    assert [False, False] == [is_alive(pid) for pid in family(tmp_path / "pids")]


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    """A command that ends and leaves something running in its group leaves nothing running."""
    script = f"sleep 600 & echo $! > {tmp_path / 'pid'}; echo done"
    began = time.monotonic()
    assert "done\n" == run("/bin/sh", "-c", script)["output"]
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert time.monotonic() - began < 60  # it did not wait for the sleep, which has the pipe too


@pytest.mark.parametrize("kind", ["group", "pipe"])
def test_a_lost_lease_ends_it(tmp_path: Path, kind: str) -> None:
    """A command whose run has lost its lease is killed, also where nobody can kill the worker's thread."""
    lost = threading.Event()
    file = tmp_path / "pids"
    threading.Thread(target=lambda: (family(file), lost.set()), daemon=True).start()
    with pytest.raises(Exception, match="was killed: the lease of its run was lost"):
        run(PYTHON, "-c", FAMILY, str(file), kind, ctx=context_of(is_lost=lost.is_set))
    assert [False, False] == [is_alive(pid) for pid in family(file)]


BODY = """
import signal, sys
from tests.jobtypes.carried import carry_out
class Told(BaseException): pass
def told(number, frame): raise Told() if number == signal.SIGUSR1 else SystemExit(7)
signal.signal(signal.SIGTERM, told)
signal.signal(signal.SIGUSR1, told)
try:
    carry_out("shell", {"command": sys.argv[1:]}, allow_shell=True)
except Told:
    sys.exit(8)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGUSR1, 8)])
def test_whatever_interrupts_the_body(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A stop of the run (SIGTERM) or its soft time limit (an exception by signal) ends all of the command."""
    file = tmp_path / "pids"
    body = subprocess.Popen([PYTHON, "-c", BODY, PYTHON, "-c", FAMILY, str(file), "session"])
    try:
        pids = family(file)
        body.send_signal(number)
        assert code == body.wait(30)
    finally:
        body.kill()
        body.wait()
    assert [False, False] == [is_alive(pid) for pid in pids]
