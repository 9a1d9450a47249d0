"""Child processes of ``sched server``: started, listened to, and gone when it ends, however it ends.

Each child leads a session of its own, so that Ctrl-C in the terminal reaches the supervisor only, which
then stops them in order. Two promises of Linux keep anything from staying behind: a child is killed when
its supervisor dies (parent-death signal), and what a child leaves behind becomes the supervisor's own
child (subreaper), where :meth:`Supervisor.sweep_up` finds it.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType

import click
import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COLOURS = ("cyan", "green", "magenta", "yellow")
LONGEST_LINE = 1 << 16
"""Bytes kept of a line that does not end."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Child:
    """One process and the part of its last line that has been read."""

    name: str
    process: subprocess.Popen[bytes]
    colour: str
    unfinished: bytes = field(default=b"", repr=False)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Supervisor:
    """Starts processes, copies their output line by line, and ends them."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.stops = 0
        """How many times it was asked to stop."""
        self._selector = selectors.DefaultSelector()
        self._readable, self._writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._muted = False

    def begin(self) -> None:
        """Take over signals and orphans. Call it in the main thread, before anything is started."""
        self._selector.register(self._readable, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, self._asked_to_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # so that it wakes the loop
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this system has no subreaper: sched server needs Linux")

    def _asked_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stops += 1

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Start a process. Its output, both streams, is copied by :meth:`pump`."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        child = Child(name, process, COLOURS[len(self.children) % len(COLOURS)])
        self._selector.register(process.stdout, selectors.EVENT_READ, child)
        self.children.append(child)
        return child

    def pump(self, seconds: float) -> None:
        """Copy output for at most that long; return early when a signal came or a child ended."""
        deadline = time.monotonic() + seconds
        while True:
            rest = deadline - time.monotonic()
            woken = False
            for key, _events in self._selector.select(max(rest, 0)):
                if key.data is None:
                    os.read(self._readable, 4096)
                    woken = True
                else:
                    self._copy(key.data)
            if woken or rest <= 0:
                return

    def wait(self, children: Iterable[Child], seconds: float, *, until: Callable[[], bool]) -> bool:
        """Copy output until the children have ended; false when ``seconds`` passed or ``until`` said stop."""
        waited_for = list(children)
        deadline = time.monotonic() + seconds
        while any(child.alive for child in waited_for):
            rest = deadline - time.monotonic()
            if rest <= 0 or until():
                return False
            self.pump(min(rest, 0.25))
        return True

    def say(self, text: str, *, colour: str | None = None) -> None:
        """A line of the supervisor's own."""
        self._print("server", text, colour)

    def sweep_up(self, seconds: float = 2.0) -> list[str]:
        """Kill whatever is left below this process, also what has a session of its own; name it."""
        deadline = time.monotonic() + seconds
        killed: dict[int, str] = {}
        mine = {child.process.pid: child for child in self.children}
        me = psutil.Process()
        while left := me.children(recursive=True):
            for process in left:
                try:
                    if process.status() == psutil.STATUS_ZOMBIE:
                        self._collect(process.pid, mine)
                        continue
                    killed.setdefault(process.pid, f"{process.name()} (pid {process.pid})")
                    process.kill()
                except psutil.NoSuchProcess:
                    continue  # it ended meanwhile
            if time.monotonic() > deadline:
                break
            self.pump(0.02)
        for child in self.children:
            self._finish(child)
        return list(killed.values())

    def _collect(self, pid: int, mine: dict[int, Child]) -> None:
        """Take a dead process off the process table. A child's child is its parent's to collect."""
        if pid in mine:
            mine[pid].process.poll()
            return
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return  # its own parent lives and collects it

    def _copy(self, child: Child) -> None:
        assert child.process.stdout is not None
        try:
            data = os.read(child.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._finish(child)
            return
        *lines, child.unfinished = (child.unfinished + data).split(b"\n")
        if len(child.unfinished) > LONGEST_LINE:
            lines, child.unfinished = [*lines, child.unfinished], b""
        for line in lines:
            self._print(child.name, line.decode(errors="replace"), None, child.colour)

    def _finish(self, child: Child) -> None:
        """Its output has ended, or nobody is left whose output would matter."""
        stream = child.process.stdout
        if stream is None or stream.closed:
            return
        if child.unfinished:
            self._print(child.name, child.unfinished.decode(errors="replace"), None, child.colour)
            child.unfinished = b""
        self._selector.unregister(stream)
        stream.close()

    def _print(self, name: str, text: str, colour: str | None, name_colour: str | None = None) -> None:
        if self._muted or not text.strip():
            return
        try:
            # click leaves the colours out where stdout is not a terminal
            prefix = click.style(f"{name:<9} |", fg=name_colour or "white", bold=name_colour is None)
            click.echo(f"{prefix} {click.style(text.rstrip(), fg=colour) if colour else text.rstrip()}")
            sys.stdout.flush()
        except OSError:
            # Nobody listens any more (a closed terminal or pipe): stop, but in order.
            self._muted = True
            self.stops += 1


def _die_with(parent: int) -> Callable[[], None]:
    """What a new child does first: ask to be killed when its parent dies."""

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare
