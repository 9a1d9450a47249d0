"""References to secrets, where they are looked up, and how what was looked up is hidden."""

from __future__ import annotations

import base64
import json
import logging
import threading
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from celery_sched import config, secrets
from celery_sched.errors import InvalidConfig, InvalidValue
from celery_sched.secrets import HIDDEN, MissingSecret

VALUE = 'p@ss/w+rd "1"\\x'


def settings(folder: Path | None = None) -> config.Config:
    """A worker's settings."""
    return config.load({} if folder is None else {"sched_secrets_dir": str(folder)}, "test", {})


def resolve(value: Any, folder: Path | None = None, **environ: str) -> Any:
    """What references stand for, with these secrets in the environment."""
    given = {f"CELERY_SCHED_SECRET_{name}": text for name, text in environ.items()}
    return secrets.resolve(value, settings(folder), given)


def test_references() -> None:
    """A text as a whole, or a part of it, stands for a secret, anywhere in a value; keys and others stay."""
    given = {
        "a": ["secret:A", 1, None],
        "b": {"secret:A": "x${secret:A}y${secret:B-2.c}"},
        "c": "my secret:A",
    }
    expected = {"a": ["alpha", 1, None], "b": {"secret:A": "xalphaybeta"}, "c": "my secret:A"}
    assert expected == resolve(given, **{"A": "alpha", "B-2.c": "beta"})
    assert (True, True, False, False) == tuple(
        secrets.refers([text]) for text in ("secret:A", "x${secret:A}", "x secret:A", "${A}")
    )


@pytest.mark.parametrize(
    "text", ["secret:", "secret:a b", "secret:../x", "x${secret:}", "${secret:a/b}", "secret:.x"]
)
def test_names_that_are_none(text: str) -> None:
    """A reference that names no secret is refused, also one that would leave the folder."""
    with pytest.raises(InvalidValue, match="secret:NAME"):
        secrets.check({"a": [text]}, "x")
    with pytest.raises(InvalidValue, match="secret:NAME"):
        resolve(text)


def test_a_secret_that_is_not_there(tmp_path: Path) -> None:
    """It is named, and where it was looked for; names are spelled exactly."""
    with pytest.raises(MissingSecret, match="no secret 'Token' on this worker: looked for the environment"):
        resolve("secret:Token", TOKEN="something")
    with pytest.raises(MissingSecret, match=f"CELERY_SCHED_SECRET_X and the file {tmp_path}/X"):
        resolve("secret:X", tmp_path)


@pytest.mark.parametrize("value", ["", "abc", "x" * 70_000])
def test_a_secret_that_cannot_be_hidden(value: str) -> None:
    """One that is too short to be told from other text, or too long, fails the run."""
    with pytest.raises(MissingSecret, match=f"has {len(value)} characters"):
        resolve("secret:X", X=value)


def test_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file per secret, without its last line end; the environment wins; a file open to all is said once."""
    (tmp_path / "OPEN").write_text("for all to see\n")
    (tmp_path / "OPEN").chmod(0o644)
    (tmp_path / "KEY").write_text("line one\nline two\n\n")
    (tmp_path / "KEY").chmod(0o600)
    assert "line one\nline two\n" == resolve("secret:KEY", tmp_path)
    assert [] == caplog.records
    assert ["for all to see"] * 2 == [resolve("secret:OPEN", tmp_path) for _ in range(2)]
    said = f"the secret in {tmp_path / 'OPEN'} can be read by every user of this machine: chmod o-r"
    assert [said] == [record.getMessage() for record in caplog.records]
    assert "from the environment" == resolve("secret:KEY", tmp_path, KEY="from the environment")
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MissingSecret, match="BINARY of a secret cannot be read"):
        resolve("secret:BINARY", tmp_path)


def test_variables_of_secrets_are_no_settings() -> None:
    """`CELERY_SCHED_SECRET_*` is not taken for a wrong setting; a setting with a typo still is."""
    config.load({}, "x", {"CELERY_SCHED_SECRET_TOKEN": "x", "CELERY_SCHED_SECRET_lease": "y"})
    with pytest.raises(InvalidConfig, match="Did you mean CELERY_SCHED_SECRETS_DIR"):
        config.load({}, "x", {"CELERY_SCHED_SECRET_DIR_X": "x", "CELERY_SCHED_SECRETS_DI": "x"})


@pytest.mark.parametrize(
    "shown",
    [
        VALUE,
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        json.dumps(VALUE)[1:-1],
        repr(VALUE)[1:-1],
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
    ],
)
def test_forms(shown: str) -> None:
    """A secret is hidden in every form in which libraries write it, in texts and in values."""
    with secrets.watching():
        resolve("secret:X", X=VALUE)
        assert f"a{HIDDEN}b" == secrets.redact(f"a{shown}b")
        assert {f"k{HIDDEN}": [1, (f"{HIDDEN}!")]} == secrets.redact_json({f"k{shown}": [1, f"{shown}!"]})
    assert shown == secrets.redact(shown)  # of another run it is no secret


def test_lines_of_a_key() -> None:
    """Of a secret with several lines each line is hidden; the longer of two secrets first."""
    with secrets.watching():
        resolve(
            ["secret:KEY", "secret:PART"], KEY="-----BEGIN-----\nabcdefghij\nshort\n", PART="abcdefghij-more"
        )
        assert f"x {HIDDEN} y short {HIDDEN} z" == secrets.redact("x abcdefghij y short abcdefghij-more z")


def test_cuts() -> None:
    """A secret that a cut has left half of is hidden at that end."""
    with secrets.watching():
        resolve("secret:X", X="0123456789")
        for size in range(4, 10):
            assert f"{HIDDEN} a" == secrets.redact("0123456789"[-size:] + " a", cut_before=True)
            assert f"a {HIDDEN}" == secrets.redact("a " + "0123456789"[:size], cut_after=True)
        assert "6789 a 0123" == secrets.redact("6789 a 0123")


def kept(error: Any, **environ: str) -> BaseException:
    """The exception that Celery would see of a body that raises this."""

    @secrets.kept
    def body() -> None:
        resolve("secret:X", **environ)
        error()

    with pytest.raises(Exception) as caught:
        body()
    return caught.value


class Own(Exception):
    """With a text that its arguments do not make."""

    def __init__(self) -> None:
        super().__init__("nothing")

    def __str__(self) -> str:
        return "own " + VALUE


def test_exceptions() -> None:
    """An exception keeps its class and shows no secret: in arguments, attributes, causes, notes."""

    def plain() -> None:
        error = KeyError(VALUE, {"a": [VALUE]})
        error.detail = {"b": VALUE}  # type: ignore[attr-defined]
        error.add_note(f"see {VALUE}")
        try:
            raise RuntimeError(f"first {VALUE}")
        except RuntimeError as cause:
            raise error from cause

    found = kept(plain, X=VALUE)
    text = "".join(traceback.format_exception(found))
    assert (KeyError, (HIDDEN, {"a": [HIDDEN]})) == (type(found), found.args)
    assert ({"b": HIDDEN}, True) == (found.detail, f"RuntimeError: first {HIDDEN}" in text)  # type: ignore[attr-defined]
    assert VALUE not in text

    def own() -> None:
        raise Own

    found = kept(own, X=VALUE)
    assert (True, False) == (
        f"Own: own {HIDDEN}" in str(found),
        VALUE in "".join(traceback.format_exception(found)),
    )

    def harmless() -> None:
        raise ValueError("nothing to hide", 5, {"a": (1,)})

    assert ("nothing to hide", 5, {"a": (1,)}) == kept(harmless, X=VALUE).args


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever logs a secret in that process, in any thread and after the run, logs `***`."""
    logger = logging.getLogger("somebody.else")
    with secrets.watching():
        resolve("secret:X", X=VALUE)
        logger.warning("with %s and %r", VALUE, {"a": VALUE})
        try:
            raise ValueError(VALUE)
        except ValueError:
            logger.exception("failed")
    thread = threading.Thread(target=lambda: logger.warning("later " + VALUE))
    thread.start()
    thread.join()
    assert [f"with {HIDDEN} and {{'a': '{HIDDEN}'}}", "failed", f"later {HIDDEN}"] == [
        record.getMessage() for record in caplog.records
    ]
    assert f"ValueError: {HIDDEN}" in caplog.text
    assert VALUE not in caplog.text
