"""Bodies of the worker tests that send heartbeats, hang, or resist being ended."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.exceptions import SoftTimeLimitExceeded

import celery_sched
from celery_sched.context import current

FOLDER = Path(os.environ["FLOW_FOLDER"])
CLONE_VFORK = 0x4000


def note(text: str) -> None:
    """Leave a mark that a test can read: a name and this process."""
    with open(FOLDER / "marks", "a") as marks:
        marks.write(f"{text} {os.getpid()}\n")


def grandchild(*, session: bool) -> None:
    """Start a process that sleeps, in this one's group or with a session of its own."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    made = subprocess.Popen([sys.executable, "-c", code], start_new_session=session)
    with open(FOLDER / "grandchildren", "a") as found:
        found.write(f"{made.pid}\n")


@shared_task(name="bodies.beats")
def beats(seconds: float, every: float = 0.05, then: str = "return") -> Any:
    """Sends heartbeats for some seconds, then returns or hangs; returns the answers it got."""
    note("beats")
    answers = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answers.add(celery_sched.heartbeat())
        time.sleep(every)
    if then == "hang":
        note("hangs")
        time.sleep(600)
    return sorted(answers)


@shared_task(name="bodies.rapid")
def rapid(calls: int) -> bool:
    """Many heartbeats in a row, then three seconds without one."""
    ctx = current.get()
    assert ctx is not None
    for _ in range(calls):
        answer = ctx.heartbeat()
    note("rapid")
    time.sleep(3)
    return answer


@shared_task(name="bodies.hangs")
def hangs(how: str) -> str:
    """Never ends by itself.

    ``ignores``: SIGTERM is ignored. ``catches``: the exception of SIGTERM is swallowed. ``default``: SIGTERM
    kills at once. ``locks``: in C code that holds the interpreter's lock. ``hash``: in C code. ``kernel``:
    asleep in the kernel, where no signal but SIGKILL reaches it.
    """
    grandchild(session=False)
    grandchild(session=True)
    if how == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "default":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    note(f"hangs:{how}")
    if how == "locks":
        deque(repeat(None), maxlen=0)
    if how == "hash":
        hashlib.pbkdf2_hmac("sha256", b"x" * 100, b"y", 2_000_000_000)
    if how == "kernel":
        if ctypes.CDLL(None).syscall(56, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            time.sleep(600)
            os._exit(0)
        time.sleep(600)
    while True:
        try:
            time.sleep(600)
        except SystemExit:
            if how != "catches":
                raise


@shared_task(name="bodies.cleans_up")
def cleans_up(how: str) -> str:
    """Puts things right on SIGTERM, which takes a moment: by its exception, or by a handler of its own."""
    ended = []
    if how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    grandchild(session=True)
    note(f"cleans_up:{how}")
    try:
        while not ended:
            time.sleep(0.05)
    except SystemExit:
        assert how == "exception"
        time.sleep(0.3)
        note("cleaned")
        raise
    time.sleep(0.3)
    note("cleaned")
    return "cleaned up"


@shared_task(name="bodies.told")
def told(file: str) -> str:
    """Notes that it was told to end, goes on until a file is there, and returns."""
    signal.signal(signal.SIGTERM, lambda *_: note("told"))
    note("begins")
    while not (FOLDER / file).exists():
        time.sleep(0.05)
    note("ends")
    return "done"


@shared_task(name="bodies.until_file")
def until_file(name: str, file: str) -> str:
    """Runs until a file is there."""
    note(f"{name}:begin")
    while not (FOLDER / file).exists():
        time.sleep(0.05)
    note(f"{name}:end")
    return name


@shared_task(name="bodies.soft")
def soft(seconds: float, then: str) -> str:
    """Sleeps until its soft time limit is raised; then ``return``s, ``raise``s or ``hang``s."""
    note("soft")
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        note("exceeded")
        if then == "raise":
            raise
        if then == "hang":
            time.sleep(600)
        return "put right"
    return "slept"


@shared_task(name="bodies.decorated", soft_time_limit=3)
def decorated() -> str:
    """Has Celery's own soft time limit."""
    try:
        time.sleep(20)
    except SoftTimeLimitExceeded:
        return "its own limit"
    return "slept"
