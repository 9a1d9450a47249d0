"""The embedded broker's transport: whole messages, one taker each, outages, bindings, abandoned queues."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from celery_sched.folders import Folders, FolderUnavailable
from celery_sched.transport import broker_folder, embedded_broker, ensure_folders

JOBS = Queue("jobs", Exchange("jobs"), routing_key="jobs")


def connect(home: Path) -> Connection:
    settings: Any = embedded_broker(home)
    return Connection(settings["broker_url"], transport_options=settings["broker_transport_options"])


def publish(connection: Connection, body: object, queue: Queue = JOBS, **options: Any) -> None:
    """As Celery does: through a producer that retries at most once."""
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    Producer(connection).publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], retry=True,
        retry_policy=policy, **options,
    )  # fmt: skip


def drain(connection: Connection, seconds: float) -> bool:
    """True when something was delivered within that time."""
    try:
        connection.drain_events(timeout=seconds)
    except TimeoutError:
        return False
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.02)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    ensure_folders(tmp_path)
    return tmp_path


@pytest.fixture
def connection(home: Path) -> Iterator[Connection]:
    with connect(home) as connection:
        yield connection


def test_messages_come_in_the_order_in_which_they_were_sent(home: Path, connection: Connection) -> None:
    """Three hundred messages of two senders arrive oldest first, also those of one clock tick."""
    with connect(home) as other:
        for number in range(300):
            publish(other if number % 2 else connection, number)
    received: list[int] = []
    with connection.Consumer(JOBS, callbacks=[lambda body, message: (received.append(body), message.ack())]):
        while drain(connection, 0.2):
            pass
    assert list(range(300)) == received


def test_messages_of_one_clock_tick_keep_their_order(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many file systems stamp files every 4 ms only: the order within such a tick is kept too."""
    fstat = os.fstat

    def coarse(descriptor: int) -> SimpleNamespace:
        real = fstat(descriptor)
        facts = {name: getattr(real, name) for name in dir(real) if name.startswith("st_")}
        return SimpleNamespace(**facts | {"st_mtime_ns": 10**18})

    monkeypatch.setattr("celery_sched.folders.os.fstat", coarse)
    for number in range(30):
        publish(connection, number)
    bound = JOBS(connection.default_channel)
    assert list(range(30)) == [bound.get(no_ack=True).payload for _ in range(30)]


def test_size_counts_and_purge_removes_what_waits(connection: Connection) -> None:
    """A queue's size is the number of its waiting messages; a purge reports how many it removed."""
    for number in range(5):
        publish(connection, number)
    bound = JOBS(connection.default_channel)
    assert 5 == bound.queue_declare(passive=True).message_count
    assert 5 == bound.purge()
    assert 0 == bound.queue_declare(passive=True).message_count
    assert bound.get() is None


@pytest.mark.parametrize("name", ["a/b", "../../up", ".hidden", "..", "x y", "a.b@c-d_e", "ü" * 30])
def test_a_queue_may_have_any_name(home: Path, connection: Connection, name: str) -> None:
    """Names never lead out of the folder, and each reaches its own queue."""
    queue = Queue(name, Exchange(name), routing_key="k")
    publish(connection, "hello", queue)
    message = queue(connection.default_channel).get()
    assert message is not None and "hello" == message.payload
    message.ack()
    assert {"broker"} == {path.name for path in home.iterdir()}
    assert {"messages", "control", "rejected"} == {path.name for path in broker_folder(home).iterdir()}


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_an_impossible_queue_name_is_refused_by_name(connection: Connection, name: str) -> None:
    """The refusal names the value and what is allowed."""
    with pytest.raises(ChannelError, match=r"queue name '.*' is refused: 1 to 200 characters"):
        connection.default_channel.basic_publish(
            connection.default_channel.prepare_message("{}"), exchange="", routing_key=name
        )


def test_a_reader_never_meets_a_half_written_message(
    home: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is stopped in the middle of a message: the reader sees nothing, then all of it."""
    written, go_on = threading.Event(), threading.Event()
    fstat = os.fstat

    def stopped(descriptor: int) -> os.stat_result:
        written.set()
        assert go_on.wait(30)
        return fstat(descriptor)

    def write() -> None:
        with connect(home) as sender:
            publish(sender, "x" * 100_000)

    received: list[str] = []
    with connection.Consumer(JOBS, callbacks=[lambda body, message: (received.append(body), message.ack())]):
        monkeypatch.setattr("celery_sched.folders.os.fstat", stopped)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert written.wait(30)
            assert not drain(connection, 0.3)
        finally:
            go_on.set()
            writer.join(30)
        assert drain(connection, 5)
    assert ["x" * 100_000] == received
    assert [] == list((broker_folder(home) / "rejected").iterdir())


NOT_MESSAGES = {
    "empty": b"",
    "cut": b'{"body": "e30=", "prop',
    "binary": bytes(range(256)),
    "list": b"[1, 2]",
    "number": b"7",
    "null": b"null",
    "no properties": b'{"body": "e30="}',
    "no tag": b'{"body": "e30=", "properties": {"delivery_info": {"exchange": "", "routing_key": "jobs"}}}',
    "no origin": b'{"body": "e30=", "properties": {"delivery_tag": "t", "delivery_info": null}}',
    "no base64": b'{"body": "e30", "properties": {"body_encoding": "base64", "delivery_tag": "t",'
    b' "delivery_info": {"exchange": "", "routing_key": "jobs"}}}',
    "folder": None,
}


@pytest.mark.parametrize("content", NOT_MESSAGES.values(), ids=NOT_MESSAGES)
def test_an_unreadable_message_is_set_aside_and_the_next_one_comes(
    home: Path, connection: Connection, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """It is kept in `rejected`, the log names the file and the queue, the consumer goes on."""
    JOBS(connection.default_channel).declare()
    bad = broker_folder(home) / "messages" / "jobs" / "0-bad.msg"
    if content is None:
        bad.mkdir()
    else:
        bad.write_bytes(content)
    publish(connection, "good")
    received: list[str] = []
    with (
        caplog.at_level(logging.ERROR),
        connection.Consumer(JOBS, callbacks=[lambda body, message: (received.append(body), message.ack())]),
    ):
        assert drain(connection, 5)
    assert ["good"] == received
    (aside,) = (broker_folder(home) / "rejected").iterdir()
    assert aside.name.startswith("0-bad.msg.")
    assert content is None or content == aside.read_bytes()
    assert "0-bad.msg of queue jobs is unreadable" in caplog.text and str(aside) in caplog.text


def test_a_missing_folder_stops_publishers_and_is_not_made_anew(home: Path, connection: Connection) -> None:
    """Publishers, old and new, get OperationalError that names the folder; once it is back all work."""
    publish(connection, "before")
    old = connect(home)
    channel = old.channel()
    away = home / "away"
    broker_folder(home).rename(away)
    for _ in range(2):
        with pytest.raises(OperationalError, match=r"broker' cannot be used.*sched migrate"):
            publish(connection, "lost")
    with connect(home) as fresh, pytest.raises(OperationalError, match="broker' cannot be used"):
        publish(fresh, "lost")
    with pytest.raises(OperationalError):
        channel.basic_publish(channel.prepare_message("{}"), exchange="", routing_key="jobs")
    with pytest.raises(OperationalError):
        channel.queue_declare("jobs", passive=True)
    old.release()
    assert not broker_folder(home).exists()
    away.rename(broker_folder(home))
    publish(connection, "after")
    assert 2 == JOBS(connection.default_channel).queue_declare(passive=True).message_count


def test_a_bound_topic_is_not_silent_in_an_outage(home: Path, connection: Connection) -> None:
    """Without the folder a publish to an exchange raises, also without retries; nothing is dropped."""
    exchange = Exchange("news", type="topic")
    Queue("reader", exchange, routing_key="#")(connection.default_channel).declare()
    broker_folder(home).rename(home / "away")
    with pytest.raises(OperationalError):
        Producer(connection, exchange).publish("x", routing_key="a.b", retry=False)


def test_a_running_consumer_survives_an_outage(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the folder is away a consumer waits, says so once, and receives when it is back."""
    received: list[str] = []
    with (
        caplog.at_level(logging.WARNING),
        connect(home) as consumer,
        connect(home) as sender,
        consumer.Consumer(JOBS, callbacks=[lambda body, message: (received.append(body), message.ack())]),
    ):
        publish(sender, "first")
        assert drain(consumer, 5)
        broker_folder(home).rename(home / "away")
        assert not drain(consumer, 0.5)
        (home / "away").rename(broker_folder(home))
        publish(sender, "second")
        assert drain(consumer, 5)
    assert ["first", "second"] == received
    assert 1 == caplog.text.count("is missing: waiting for it")
    assert 1 == caplog.text.count("is back")


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Root may write anywhere: become nobody for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_a_read_only_folder_stops_publishers(ordinary_user: None) -> None:
    """Publishers get OperationalError, on an open connection and on a new one; nothing half is left."""
    with tempfile.TemporaryDirectory() as name, connect(Path(name)) as connection:
        ensure_folders(Path(name))
        publish(connection, "before")
        folder = broker_folder(Path(name)) / "messages"
        for path in (folder / "jobs", folder):
            path.chmod(0o500)
        try:
            with pytest.raises(OperationalError, match="Permission denied"):
                publish(connection, "lost")
            with connect(Path(name)) as fresh, pytest.raises(OperationalError):
                publish(fresh, "lost")
        finally:
            for path in (folder, folder / "jobs"):
                path.chmod(0o700)
        assert 1 == len(list((folder / "jobs").iterdir()))


CONSUMER = """
import sys, socket
from pathlib import Path
from kombu import Connection, Exchange, Queue
from celery_sched.transport import embedded_broker
settings = embedded_broker(Path(sys.argv[1]))
queue = Queue("jobs", Exchange("jobs"), routing_key="jobs")
def take(body, message):
    message.ack()
    print(body, flush=True)
options = settings["broker_transport_options"]
with Connection(settings["broker_url"], transport_options=options) as connection:
    with connection.Consumer(queue, callbacks=[take]):
        print("ready", flush=True)
        while True:
            try:
                connection.drain_events(timeout=0.5)
            except socket.timeout:
                if Path(sys.argv[1], "all-sent").exists():
                    break
"""


def test_two_consumers_share_a_queue_and_none_gets_a_message_twice(
    home: Path, connection: Connection
) -> None:
    """2,000 messages, two consumer processes: each message reaches exactly one of them."""
    consumers = [
        subprocess.Popen([sys.executable, "-c", CONSUMER, str(home)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        outputs = []
        for consumer in consumers:
            assert consumer.stdout is not None and "ready\n" == consumer.stdout.readline()
            outputs.append([])
        threads = [
            threading.Thread(target=lambda c=consumer, o=output: o.extend(int(x) for x in c.stdout))
            for consumer, output in zip(consumers, outputs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for number in range(2000):
            publish(connection, number)
        (home / "all-sent").touch()
        for thread in threads:
            thread.join(60)
        assert [0, 0] == [consumer.wait(60) for consumer in consumers]
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
            assert consumer.stdout is not None
            consumer.stdout.close()
    assert all(outputs), "both must have had a share, or nothing was raced for"
    assert list(range(2000)) == sorted(outputs[0] + outputs[1])


def test_bindings_of_many_programs_do_not_overwrite_each_other(home: Path) -> None:
    """Four programs bind and read at once: every binding is there, no reader met a half-written table."""
    failures: list[BaseException] = []

    def bind(program: int) -> None:
        try:
            with connect(home) as connection:
                channel = connection.default_channel
                for number in range(25):
                    channel.folders.bind("all", ("", "", f"q-{program}-{number}"))
                    assert f"q-{program}-{number}" in [row[2] for row in channel.get_table("all")]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=bind, args=(program,)) for program in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failures
    with connect(home) as connection:
        assert 100 == len(connection.default_channel.get_table("all"))


def test_fanout_and_topic_reach_every_bound_queue(home: Path, connection: Connection) -> None:
    """What remote control (fanout) and events (topic) need, between two connections."""
    fanout, topic = Exchange("control", type="fanout"), Exchange("events", type="topic")
    with connect(home) as other:
        for name in ("one", "two"):
            Queue(f"control-{name}", fanout)(other.default_channel).declare()
        Queue("tasks", topic, routing_key="task.#")(other.default_channel).declare()
        Queue("workers", topic, routing_key="worker.*")(other.default_channel).declare()
        Producer(connection, fanout).publish("ping", declare=[fanout])
        Producer(connection, topic).publish("sent", routing_key="task.sent.now", declare=[topic])
        sizes = {
            name: other.default_channel.queue_declare(name, passive=True).message_count
            for name in ("control-one", "control-two", "tasks", "workers")
        }
        other.default_channel.queue_unbind("control-one", "control", "")
        Producer(connection, fanout).publish("ping", declare=[fanout])
        after = other.default_channel.queue_declare("control-one", passive=True).message_count
    assert {"control-one": 1, "control-two": 1, "tasks": 1, "workers": 0} == sizes
    assert 1 == after


def test_two_folders_in_one_program_do_not_share_declarations(tmp_path: Path) -> None:
    """A queue bound at one broker is bound at the next one too, not skipped as known."""
    fanout = Exchange("control", type="fanout")
    for name in ("a", "b"):
        ensure_folders(tmp_path / name)
        with connect(tmp_path / name) as connection:
            queue = Queue("reader", fanout)(connection.default_channel)
            queue.declare()
            Producer(connection, fanout).publish(name)
            message = queue.get()
            assert message is not None and name == message.payload


def test_an_unreadable_binding_table_is_set_aside(
    home: Path, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not stop anybody; the next declaration writes a new one."""
    queue = Queue("reader", Exchange("control", type="fanout"))
    (broker_folder(home) / "control").mkdir(exist_ok=True)
    (broker_folder(home) / "control" / "control.exchange").write_text('[["", "", "rea')
    queue(connection.default_channel).declare()
    assert [("", "", "reader")] == connection.default_channel.get_table("control")
    assert "control.exchange are unreadable" in caplog.text


def age(home: Path, queue: str) -> None:
    """Let a queue's expiry be over."""
    os.utime(broker_folder(home) / "messages" / queue / ".until", (1, 1))


@pytest.mark.parametrize("finder", ["publisher", "connection"])
def test_an_abandoned_queue_is_removed_with_its_bindings(
    home: Path, connection: Connection, finder: str
) -> None:
    """A queue with an expiry whose consumer is gone does not fill for ever; its neighbour stays."""
    events = Exchange("events", type="fanout")
    for name, expires in (("gone", 60), ("stays", None)):
        Queue(name, events, expires=expires)(connection.default_channel).declare()
    age(home, "gone")
    if finder == "connection":
        with connect(home) as other:
            other.connect()
    Producer(connection, events).publish("news")
    assert [("", "", "stays")] == connection.default_channel.get_table("events")
    messages = broker_folder(home) / "messages"
    assert {"stays"} == {path.name for path in messages.iterdir() if path.is_dir()}
    assert 1 == connection.default_channel.queue_declare("stays", passive=True).message_count


def test_a_consumer_that_comes_back_repairs_its_queue(
    home: Path, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that was frozen longer than its queue's expiry hears again what is sent after it woke."""
    events = Exchange("events", type="fanout")
    received: list[str] = []
    queue = Queue("frozen", events, expires=60)
    with (
        connect(home) as consumer,
        consumer.Consumer(queue, callbacks=[lambda body, message: (received.append(body), message.ack())]),
    ):
        age(home, "frozen")
        Producer(connection, events).publish("unheard", declare=[events])
        assert not (broker_folder(home) / "messages" / "frozen").exists()
        later = time.monotonic() + 60
        monkeypatch.setattr("celery_sched.transport.time.monotonic", lambda: later)
        assert not drain(consumer, 0)
        monkeypatch.undo()
        Producer(connection, events).publish("heard")
        assert drain(consumer, 5)
    assert ["heard"] == received


def test_the_litter_of_dead_programs_is_removed_and_live_files_are_not(home: Path) -> None:
    """Half-written and taken files go after an hour; younger ones may be in use."""
    queue = broker_folder(home) / "messages" / "jobs"
    queue.mkdir()
    for name in (".old.draft", ".old.taken", ".new.draft", ".new.taken"):
        (queue / name).touch()
        if "old" in name:
            os.utime(queue / name, (1, 1))
    with connect(home) as connection:
        connection.connect()
    assert {".new.draft", ".new.taken"} == {path.name for path in queue.iterdir()}


def test_a_message_taken_but_not_acknowledged_goes_back_at_a_clean_stop(home: Path) -> None:
    """What a worker holds when it stops cleanly waits in the queue again."""
    with connect(home) as first:
        publish(first, "work")
        assert JOBS(first.default_channel).get() is not None
    with connect(home) as second:
        message = JOBS(second.default_channel).get()
        assert message is not None and "work" == message.payload
        message.ack()


def test_a_queue_that_is_kept_is_never_taken_for_an_abandoned_one(home: Path) -> None:
    """Others who open the broker while a consumer shows that it lives leave its queue alone."""
    ours, theirs = Folders(broker_folder(home)), Folders(broker_folder(home))
    ours.make_queue("mine")
    ours.keep_queue("mine", 60)
    (ours.queue("mine") / "witness").touch()
    failed = beside(lambda: ours.keep_queue("mine", 60), theirs.open, rounds=300)
    assert [] == failed
    assert (ours.queue("mine") / "witness").exists()


def test_queues_may_go_while_others_open_the_broker(home: Path) -> None:
    """A queue that vanishes under the eyes of a program that connects is no outage to it."""
    ours, theirs = Folders(broker_folder(home)), Folders(broker_folder(home))

    def come_and_go() -> None:
        for number in range(20):
            ours.make_queue(f"reply-{number}")
        for number in range(20):
            ours.drop_queue(f"reply-{number}")

    assert [] == beside(come_and_go, theirs.open, rounds=30)


def beside(one: Callable[[], object], other: Callable[[], object], rounds: int) -> list[Exception]:
    """Do one thing so many times, the other in a second thread all the while; what either raised."""
    done = threading.Event()
    failed: list[Exception] = []

    def repeat() -> None:
        try:
            while not done.is_set():
                other()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        for _ in range(rounds):
            one()
    except Exception as error:
        failed.append(error)
    finally:
        done.set()
        thread.join()
    return failed


def test_an_outage_travels_between_processes(tmp_path: Path) -> None:
    """The error is the same after pickling: a worker's child sends it to its main process."""
    error = FolderUnavailable(tmp_path, FileNotFoundError(2, "No such file or directory"))
    sent = pickle.loads(pickle.dumps(error))
    assert (str(error), tmp_path) == (str(sent), sent.folder)
