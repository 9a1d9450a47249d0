"""Private servers: real PostgreSQL, MariaDB, Redis and RabbitMQ on free ports in temporary folders.

Nothing that runs on the machine already is used or touched. They work as root and as anybody else, from
the binaries that Debian's packages install. Only loopback addresses are listened on. Committed data
survives `kill()` (as an operating system keeps what was written when a process dies); nothing is fsynced.

    server = PostgresServer(); server.start(); url = server.fresh_database(); server.kill(); server.restart()
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import amqp
import psutil
import psycopg
import pymysql
import redis

from tests.private_server import (
    MARIADB,
    POSTGRESQL,
    RABBITMQ,
    REDIS,
    Server,
    answers,
    find_binary,
    free_port,
    wait_until,
)
from tests.reaper import REAPER, end_tree


class PostgresServer(Server):
    """PostgreSQL. `url` is the empty database `postgres`; tests take `fresh_database()`."""

    program = POSTGRESQL
    user = "postgres"
    stop_signal = signal.SIGINT  # "fast": SIGTERM would wait for clients to leave

    def prepare(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.user, self.user)
        self.run(
            self.binary.with_name("initdb"),
            *("--pgdata", self.folder / "data", "--username", "postgres", "--auth", "trust"),
            *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
        )

    def command(self) -> Sequence[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 200,
            "shared_buffers": "32MB",
            "log_min_messages": "warning",
            "timezone": "UTC",
        }
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binary), "-D", str(self.folder / "data"), *flags]

    def ready(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return self._url_of("postgres")

    def fresh_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}")
        return self._url_of(name)

    def drop_database(self, url: str) -> None:
        """Remove a database of `fresh_database`, whoever is still connected."""
        self.sql(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement as superuser in the database `postgres` and return its rows."""
        with self._connect() as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=2",
            autocommit=True,
        )

    def _url_of(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"


class MariaDBServer(Server):
    """MariaDB. `url` is the database `test`; tests take `fresh_database()`."""

    program = MARIADB

    def prepare(self) -> None:
        self.run(
            find_binary("mariadb-install-db") or "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
            *(["--user=root"] if os.geteuid() == 0 else []),
        )

    def command(self) -> Sequence[str]:
        return [
            str(self.binary),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            # 2: written at each commit (so a killed server forgets nothing), synced by the system.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-log-file-size=16M",
            "--innodb-buffer-pool-size=32M",
            "--innodb-use-native-aio=0",
            "--max-connections=200",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def ready(self) -> bool:
        try:
            self._connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        return self._url_of("test")

    def fresh_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return self._url_of(name)

    def drop_database(self, url: str) -> None:
        """Remove a database of `fresh_database`, whoever is still connected."""
        name = url.rpartition("/")[2]
        # An open transaction of a client that was left behind would block the DROP for ever.
        for (thread,) in self.sql(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            self.sql(f"KILL {thread}")
        self.sql(f"DROP DATABASE IF EXISTS {name}")

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement as root, outside any database, and return its rows."""
        connection = self._connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def _connect(self) -> pymysql.connections.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", autocommit=True, connect_timeout=2
        )

    def _url_of(self, database: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{database}"


class RedisServer(Server):
    """Redis. Forgets everything at a restart unless `persist` (then every write is kept)."""

    program = REDIS

    def __init__(self, *, persist: bool = False) -> None:
        super().__init__()
        self._persist = persist
        self._databases = 0

    def command(self) -> Sequence[str]:
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "save": "",
            "appendonly": "yes" if self._persist else "no",
            "appendfsync": "always",
            "databases": 4096,
        }
        return [
            str(self.binary),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ]

    def ready(self) -> bool:
        client = redis.Redis(port=self.port, socket_timeout=2, socket_connect_timeout=2)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh_url(self) -> str:
        """The URL of a database number that no test has had yet (pub/sub crosses numbers: Redis' rule)."""
        self._databases += 1
        return f"redis://127.0.0.1:{self.port}/{self._databases}"


class RabbitServer(Server):
    """RabbitMQ with an epmd of its own. Takes 5 to 8 s to start: one per test session."""

    program = RABBITMQ

    def __init__(self) -> None:
        super().__init__()
        self._epmd: subprocess.Popen[bytes] | None = None
        self._epmd_port = self._dist_port = 0

    def prepare(self) -> None:
        for name in ("mnesia", "log", "config", "schema", "home"):
            (self.folder / name).mkdir()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "config/rabbitmq.conf").write_text(
            "loopback_users = none\ndisk_free_limit.absolute = 1MB\nvm_memory_high_watermark.relative = 0.9\n"
        )
        self._epmd_port = free_port()
        # Erlang's port mapper, our own and in the foreground: else the server starts one that outlives it
        # and that the next server on this machine would find.
        self._epmd = subprocess.Popen(
            [str(find_binary("epmd") or "epmd"), "-port", str(self._epmd_port), "-address", "127.0.0.1"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        REAPER.watch(self._epmd.pid)
        wait_until(lambda: answers(self._epmd_port), 10, "epmd to listen")

    def choose_ports(self) -> None:
        super().choose_ports()
        self._dist_port = free_port()

    def command(self) -> Sequence[str]:
        return [str(self.binary)]

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "config/rabbitmq"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "config"),
            "RABBITMQ_SCHEMA_DIR": str(self.folder / "schema"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            # The system's own settings must not reach ours.
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
        }

    def ready(self) -> bool:
        connection = amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=5, read_timeout=5)
        try:
            connection.connect()
        except (OSError, amqp.exceptions.AMQPError):
            return False
        connection.close()
        return True

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def fresh_url(self) -> str:
        """The URL of a new virtual host, so that no test sees another one's queues. Takes 1 to 2 s."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.run(
            self.binary.with_name("rabbitmqctl"),
            *("-n", self._node, "eval"),
            f'ok = rabbit_vhost:add(<<"{name}">>, <<"tests">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            '<<".*">>, <<".*">>, <<".*">>, <<"tests">>).',
        )
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{name}"

    def destroy(self) -> None:
        super().destroy()
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            end_tree(psutil.Process(epmd.pid))
            epmd.wait(timeout=10)
            REAPER.forget(epmd.pid)

    @property
    def _node(self) -> str:
        return f"sched{self.port}@localhost"
