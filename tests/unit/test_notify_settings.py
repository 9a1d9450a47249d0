"""What settings and jobs say about notifications has one form; what is wrong is named, a URL never shown."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sched import notify_settings
from celery_sched.config import load
from celery_sched.errors import InvalidConfig, InvalidValue
from celery_sched.model import NoticeKind
from celery_sched.notify_settings import FIELDS, LISTED, Rate, Template, Wanted

URL = "mailto://user:hush@example.org?to=ops@example.org"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({}, None),
        ("off", {"on": []}),
        ([], {"on": []}),
        ("ops", {"to": ["ops"]}),
        (("ops", "boss", "ops"), {"to": ["ops", "boss"]}),
        ({"on": "failure"}, {"on": ["failure"]}),
        ({"on": ["lost", "failure"], "skips": 3}, {"on": ["failure", "lost"], "skips": 3}),
        ({"on": []}, {"on": []}),
    ],
)
def test_what_a_job_says_has_one_form(given: Any, expected: Any) -> None:
    """Names, a list, a mapping, `off`; what is left out is left to the settings."""
    assert expected == notify_settings.wanted(given, "notify")
    assert expected == notify_settings.wanted(expected, "notify")


def test_what_a_job_leaves_out_is_the_settings() -> None:
    """Each part on its own."""
    default = Wanted((NoticeKind.SUCCESS,), ("boss",), 7)
    assert default == notify_settings.of(None, default)
    assert Wanted((), ("boss",), 7) == notify_settings.of({"on": []}, default)
    assert Wanted((NoticeKind.SUCCESS,), ("ops",), 7) == notify_settings.of({"to": ["ops"]}, default)
    assert Wanted((NoticeKind.LOST,), ("boss",), 2) == notify_settings.of(
        {"on": ["lost"], "skips": 2}, default
    )


def config(**given: Any) -> Any:
    return load({f"sched_{name}": value for name, value in given.items()}, "proj", {})


def test_the_settings() -> None:
    """Mappings in the app's settings; the same as JSON in environment variables."""
    targets = {"ops": URL, "boss": ["secret:BOSS", "json://127.0.0.1:8080/x"]}
    given = {
        "notify_targets": targets,
        "notify": {"to": "ops"},
        "notify_rate": "3/m",
        "notify_dedupe": 0,
        "notify_gather": "1m",
        "notify_templates": {"failure": "{job}", "http/lost": {"title": "{job:.5}"}},
        "keep_notifications": "7d",
    }
    found = config(**given)
    assert {"ops": (URL,), "boss": ("secret:BOSS", "json://127.0.0.1:8080/x")} == found.notify_targets
    assert Wanted(LISTED, ("ops",)) == found.notify
    assert Rate(3, timedelta(minutes=1)) == found.notify_rate
    assert (timedelta(0), timedelta(minutes=1)) == (found.notify_dedupe, found.notify_gather)
    assert {"failure": Template(None, "{job}"), "http/lost": Template("{job:.5}")} == found.notify_templates
    assert timedelta(days=7) == found.keep_notifications
    environ = {
        f"CELERY_SCHED_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }
    assert found == load({}, "proj", environ)
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("notify_targets", {"ops": "hush hush"}, "of target 'ops'"),
        ("notify_targets", {"ops": ["mailto://hush", 5]}, "of target 'ops'"),
        ("notify_targets", {"ops": []}, "a list of them"),
        ("notify_targets", {"ops": "secret:"}, "secret:NAME"),
        ("notify_targets", {"none": "mailto://hush"}, "another one"),
        ("notify_targets", {"a\nb": "mailto://hush"}, "printable"),
        ("notify_targets", '{"ops": "mailto://hush', "JSON"),
        ("notify_targets", "mailto://hush", "JSON"),
        ("notify_targets", ["mailto://hush"], "a mapping of names"),
        ("notify", {"on": ["fail"]}, "one of success, failure"),
        ("notify", {"to": ["ops"]}, "which is not in sched_notify_targets: it has none"),
        ("notify_rate", "0/h", "20/h"),
        ("notify_rate", 20, "20/h"),
        ("notify_rate", "20/w", "20/h"),
        ("notify_dedupe", -1, "negative"),
        ("notify_templates", "{job}", "JSON"),
        ("notify_templates", {"failure": "{jobb}"}, "Did you mean {job}?"),
        ("notify_templates", {"failure": "{job.name}"}, "there is no {job.name}"),
        ("notify_templates", {"failure": "{job[0]}"}, "there is no {job[0]}"),
        ("notify_templates", {"failure": "{0}"}, "there is no {0}"),
        ("notify_templates", {"failure": "{job!r}"}, "fields as {name}"),
        ("notify_templates", {"failure": "{job:d}"}, "fields as {name}"),
        ("notify_templates", {"failure": "{job:{run}}"}, "fields as {name}"),
        ("notify_templates", {"failure": "{job:99999999}"}, "fields as {name}"),
        ("notify_templates", {"failure": "{"}, "cannot be read"),
        ("notify_templates", {"failure": {"titel": "x"}}, "title"),
        ("notify_templates", {"failur": "x"}, "Did you mean failure?"),
        ("notify_templates", {"http/failur": "x"}, "Did you mean failure?"),
        ("keep_notifications", 0, "longer than zero"),
    ],
)
def test_wrong_settings_stop_the_start(name: str, value: Any, said: str) -> None:
    """The setting is named with what is allowed; whatever stands in a target is not shown."""
    with pytest.raises(InvalidConfig) as caught:
        config(**{name: value})
    assert (True, True, False) == (
        f"sched_{name}" in str(caught.value) or name == "notify",
        said in str(caught.value),
        "hush" in str(caught.value),
    ), caught.value


def test_templates_by_what_they_are_for() -> None:
    """The task's own, then its job type's, then the kind's; title and text each on their own."""
    templates = {
        "failure": Template("kind", "kind"),
        "http": Template(None, "type"),
        "http/failure": Template("type and kind"),
        "shop.nightly": Template("task"),
    }
    found = {
        (task, kind): notify_settings.template_for(templates, task, NoticeKind(kind))
        for task in ("celery_sched.http", "shop.nightly", "other")
        for kind in ("failure", "lost")
    }
    assert {
        ("celery_sched.http", "failure"): Template("type and kind", "type"),
        ("celery_sched.http", "lost"): Template(None, "type"),
        ("shop.nightly", "failure"): Template("task", "kind"),
        ("shop.nightly", "lost"): Template("task", None),
        ("other", "failure"): Template("kind", "kind"),
        ("other", "lost"): Template(),
    } == found


@given(st.text(), st.dictionaries(st.sampled_from(FIELDS), st.text()))
def test_an_accepted_template_can_be_rendered(text: str, values: dict[str, str]) -> None:
    """Whatever is accepted at start fails for no value later."""
    try:
        templates = notify_settings.read_templates({"failure": text}, "templates")
    except InvalidValue:
        return
    assert isinstance(notify_settings.rendered(templates["failure"].text or "", values), str)
