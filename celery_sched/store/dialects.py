"""The few questions on which databases differ. Nothing else names a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Connection, Table, insert, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.sql.elements import TextClause


@dataclass(frozen=True)
class Dialect:
    """What one database needs said differently."""

    name: str
    now: TextClause | None
    """The server's clock; ``None``: it has none, the host's is used (SQLite)."""
    row_locks: bool
    """``FOR UPDATE SKIP LOCKED``; else one writer at a time holds the whole database."""
    expected: frozenset[str]
    """Codes that a transaction may be tried again after: deadlock, serialization, lock wait."""
    migration_lock: TextClause | None = None
    """Waits for the lock that one migration at a time holds, says 1; ``None``: the write lock does that."""
    sequence_right: TextClause | None = None
    """Whether the user may draw ids for ``:table``, ``:column``; ``None``: INSERT includes it."""

    def connect_args(self, url: URL, seconds: float) -> Mapping[str, Any]:
        """Driver options so that no call and no silent session lasts longer than ``seconds``."""
        whole = max(1, int(seconds))
        if self.name == "postgresql":
            ms = int(seconds * 1000)
            return {
                "connect_timeout": max(2, whole),
                "keepalives_idle": whole,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "tcp_user_timeout": ms,
                "options": f"-c statement_timeout={ms} -c lock_timeout={ms}"
                f" -c idle_in_transaction_session_timeout={ms}"
                f" -c tcp_keepalives_idle={whole} -c tcp_keepalives_interval=1 -c tcp_keepalives_count=3"
                f" -c tcp_user_timeout={ms}",
            }
        if self.name == "sqlite":
            # autocommit mode: BEGIN is ours to say (engine.py), so that a writer takes its lock first
            return {"timeout": seconds, "isolation_level": None, "check_same_thread": False}
        from pymysql.constants import CLIENT

        return {
            "connect_timeout": max(2, whole),
            "read_timeout": whole + 1,
            "write_timeout": whole + 1,
            # "row count" means matched rows: an unchanged renewal is not a lost lease
            "client_flag": CLIENT.FOUND_ROWS,
            "init_command": f"SET SESSION innodb_lock_wait_timeout={whole}, max_statement_time={seconds:g},"
            f" idle_transaction_timeout={whole}, time_zone='+00:00',"
            " sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
        }

    def is_expected(self, error: DBAPIError) -> bool:
        """Whether the same transaction may simply be tried again."""
        return _code(error) in self.expected

    def is_outage(self, error: DBAPIError) -> bool:
        """Whether the database is away, or too slow, rather than what was asked of it wrong."""
        if error.connection_invalidated or isinstance(error, InterfaceError):
            return True
        if self.name == "sqlite" and type(error) is DatabaseError:
            return True  # the file is damaged, or no database at all
        if not isinstance(error, OperationalError):
            return False
        # pymysql calls refused rights and CHECKs operational errors too; 2xxx are the client's own codes
        code = _code(error)
        return self.name != "mariadb" or code in _MARIADB_AWAY or (len(code) == 4 and code.startswith("2"))


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> int | None:
    """Insert a row that others may be inserting just now; return its ``id``, or None: it is there already.

    It works in anybody's transaction, which goes on whatever comes out. Who waits for a row that another
    transaction has inserted and not committed waits for that.
    """
    name = _BY_NAME[connection.dialect.name].name
    if name == "mariadb":
        # IGNORE would also swallow values that do not fit: the caller has checked them
        done = connection.execute(insert(table).prefix_with("IGNORE").values(**row))
        return int(done.lastrowid) if done.rowcount else None
    insert_into = sqlite.insert if name == "sqlite" else postgresql.insert
    statement = insert_into(table).values(**row).on_conflict_do_nothing().returning(table.c.id)
    return connection.execute(statement).scalar()


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert these rows, except those that are there already."""
    if not rows:
        return
    name = _BY_NAME[connection.dialect.name].name
    if name == "mariadb":
        connection.execute(insert(table).prefix_with("IGNORE"), list(rows))
        return
    insert_into = sqlite.insert if name == "sqlite" else postgresql.insert
    connection.execute(insert_into(table).on_conflict_do_nothing(), list(rows))


def _code(error: DBAPIError) -> str:
    original = error.orig
    code = getattr(original, "sqlstate", None)
    if code is None and original is not None and original.args:
        code = original.args[0]
    return str(code)


# too many connections, shutdown, host blocked, read-only at a fail-over, lock wait, deadlock, statement
# time-out, connection killed, unknown database
_MARIADB_AWAY = {
    *("1040", "1053", "1129", "1152", "1158", "1159", "1160", "1161", "1205", "1213", "1290", "1317"),
    *("1927", "1969", "1049"),
}


_POSTGRESQL = Dialect(
    "postgresql",
    text("SELECT clock_timestamp()"),
    True,
    frozenset({"40001", "40P01", "55P03"}),
    # of the transaction, in this database; the number is ours alone by being arbitrary
    migration_lock=text("SELECT 1 FROM pg_advisory_xact_lock(495028710361)"),
    sequence_right=text("SELECT has_sequence_privilege(pg_get_serial_sequence(:table, :column), 'USAGE')"),
)
_MARIADB = Dialect(
    "mariadb",
    text("SELECT UTC_TIMESTAMP(6)"),
    True,
    frozenset({"1205", "1213", "1020"}),
    # of the session, and its name is the server's, hence the database's in it (64 characters at most)
    migration_lock=text("SELECT GET_LOCK(CONCAT('celery_sched:', MD5(DATABASE())), 300)"),
)
_SQLITE = Dialect("sqlite", None, False, frozenset({"database is locked"}))
_BY_NAME = {"postgresql": _POSTGRESQL, "mysql": _MARIADB, "mariadb": _MARIADB, "sqlite": _SQLITE}


def is_known(url: URL) -> bool:
    """Whether the scheduler can keep its tables in such a database."""
    return url.get_backend_name() in _BY_NAME


def of(url: URL) -> Dialect:
    """The dialect of a database URL."""
    return _BY_NAME[url.get_backend_name()]


def guest_args(url: URL, seconds: float) -> dict[str, Any]:
    """Driver options for somebody else's database: nobody waits for ever; all else is as it is set there."""
    whole = max(2, int(seconds) + 1)
    driver = url.get_driver_name()
    if driver in ("psycopg", "psycopg2"):
        return {"connect_timeout": min(whole, 30)}
    if driver == "pymysql":
        return {"connect_timeout": min(whole, 30), "read_timeout": whole, "write_timeout": whole}
    if url.get_backend_name() == "sqlite":
        # autocommit mode: BEGIN is said for all of a transaction, also before statements that define tables
        return {"timeout": seconds, "isolation_level": None, "check_same_thread": False}
    return {}


def statement_limit(name: str, is_mariadb: bool, seconds: float) -> str | None:
    """What makes a server end the statements that follow after this time; ``None``: it has no such thing."""
    ms = max(1, int(seconds * 1000))
    if name == "postgresql":
        return f"SET statement_timeout = {ms}"
    if name in ("mysql", "mariadb"):
        return (
            f"SET SESSION max_statement_time = {seconds:.3f}"
            if is_mariadb
            else (f"SET SESSION max_execution_time = {ms}")
        )
    return None
