"""The private servers fail and come back as the fault tests need it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import amqp
import psutil
import psycopg
import pymysql
import pytest
import redis

from tests.private_server import Server, ServerFailed, answers, wait_until
from tests.reaper import alive
from tests.servers import MariaDBServer, PostgresServer, RabbitServer, RedisServer

pytestmark = pytest.mark.timeout(120)


def test_postgres_keeps_what_was_committed_when_killed(postgres: PostgresServer) -> None:
    """SIGKILL to every process of PostgreSQL loses no committed row."""
    url = postgres.fresh_database().replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
    postgres.kill()
    assert not answers(postgres.port)
    postgres.start()
    with psycopg.connect(url) as connection:
        assert [(7,)] == connection.execute("SELECT n FROM t").fetchall()
    postgres.drop_database(url)
    assert [] == postgres.sql(f"SELECT 1 FROM pg_database WHERE datname = '{url.rpartition('/')[2]}'")


def test_mariadb_keeps_what_was_committed_when_killed(mariadb: MariaDBServer) -> None:
    """SIGKILL to MariaDB loses no committed row."""
    name = mariadb.fresh_database().rpartition("/")[2]
    mariadb.sql(f"CREATE TABLE {name}.t (n INT) ENGINE=InnoDB")
    mariadb.sql(f"INSERT INTO {name}.t VALUES (7)")
    mariadb.kill()
    with pytest.raises(pymysql.err.OperationalError):
        mariadb.sql("SELECT 1")
    mariadb.start()
    assert [(7,)] == mariadb.sql(f"SELECT n FROM {name}.t")
    mariadb.drop_database(f"/{name}")
    assert [] == mariadb.sql(f"SHOW DATABASES LIKE '{name}'")


def test_a_frozen_postgres_keeps_connections_and_answers_later(postgres: PostgresServer) -> None:
    """pause() freezes the backends of open connections too; resume() lets them go on."""
    with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        postgres.pause()
        assert psutil.STATUS_STOPPED == psutil.Process(row[0]).status()
        postgres.resume()
        assert (1,) == connection.execute("SELECT 1").fetchone()


def test_redis_forgets_at_a_restart_unless_told_to_persist(redis_server: RedisServer) -> None:
    """Both kinds of Redis are to be had: one that loses all, one that loses nothing."""
    keeping = RedisServer(persist=True)
    keeping.start()
    try:
        for server, kept in ((redis_server, None), (keeping, b"1")):
            url = server.fresh_url()
            with redis.Redis.from_url(url) as client:
                client.set("key", "1")
            server.kill()
            server.start()
            with redis.Redis.from_url(url) as client:
                assert kept == client.get("key")
    finally:
        keeping.destroy()


def test_rabbit_virtual_hosts_are_apart(rabbit: RabbitServer) -> None:
    """A queue of one fresh_url() is unknown in the next, and survives a crash where durable."""

    def connect(url: str) -> amqp.Connection:
        connection = amqp.Connection(
            f"127.0.0.1:{rabbit.port}", virtual_host=url.rpartition("/")[2], connect_timeout=10
        )
        connection.connect()
        return connection

    first, second = rabbit.fresh_url(), rabbit.fresh_url()
    with connect(first) as connection:
        connection.channel().queue_declare("q", durable=True, auto_delete=False)
    rabbit.kill()
    rabbit.start()
    with connect(first) as connection:
        assert "q" == connection.channel().queue_declare("q", passive=True).queue
    with connect(second) as connection, pytest.raises(amqp.exceptions.NotFound):
        connection.channel().queue_declare("q", passive=True)


def test_heal_brings_back_what_a_test_broke(redis_server: RedisServer) -> None:
    """Frozen, killed by us, or died by itself: the next test finds it answering."""
    redis_server.pause()
    redis_server.heal()
    assert redis_server.ready()
    redis_server.kill()
    redis_server.heal()
    assert redis_server.ready()
    assert redis_server._process is not None
    os.kill(redis_server._process.pid, signal.SIGKILL)
    redis_server._process.wait(timeout=10)
    redis_server.heal()
    assert redis_server.ready()


def test_a_server_that_does_not_start_says_why(redis_server: RedisServer, tmp_path: Path) -> None:
    """The error ends with the server's own log, and nothing is left."""

    class Broken(RedisServer):
        def command(self) -> list[str]:
            return [str(self.binary), "--no-such-option", "1"]

    broken = Broken()
    with pytest.raises(ServerFailed, match="no-such-option"):
        broken.start()
    broken.destroy()
    assert not broken.folder.exists()


def test_a_test_run_that_is_killed_leaves_no_server(redis_server: Server, tmp_path: Path) -> None:
    """SIGKILL to the process that started a server ends the server and removes its folder."""
    script = (
        "import sys, time\n"
        "from tests.servers import RedisServer\n"
        "server = RedisServer(); server.start()\n"
        "print(server._process.pid, server.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        server = psutil.Process(int(pid))
        assert alive(server)
        started = time.monotonic()
        owner.kill()
    wait_until(lambda: not alive(server), 20, f"Redis to end ({started=})")
    wait_until(lambda: not Path(folder).exists(), 20, "its folder to go")
