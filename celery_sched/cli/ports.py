"""Where the dashboard of ``sched server`` listens."""

from __future__ import annotations

import importlib.util
import socket

from celery_sched.cli import Failed
from celery_sched.cli.supervisor import Supervisor

HOST = "127.0.0.1"
PORT = 5555
PORTS_TRIED = 20


def choose_port(supervisor: Supervisor, wanted: int | None) -> int | None:
    """The dashboard's port; None where Flower is not installed."""
    if importlib.util.find_spec("flower") is None:
        supervisor.say("no dashboard: Flower is not installed (pip install 'celery_sched[flower]')")
        return None
    if wanted is not None:
        if not is_free(wanted):
            raise Failed(f"port {wanted} is taken. Give another --port, or none: then a free one is chosen.")
        return wanted
    for port in range(PORT, PORT + PORTS_TRIED):
        if is_free(port):
            if port != PORT:
                supervisor.say(f"port {PORT} is taken, the dashboard takes {port}")
            return port
    raise Failed(
        f"ports {PORT} to {PORT + PORTS_TRIED - 1} are taken. Give a free one: --port N, or --no-flower."
    )


def is_free(port: int) -> bool:
    """Whether a server could listen on that port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((HOST, port), timeout=0.5):
            return True
    except OSError:
        return False
