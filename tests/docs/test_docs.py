"""The docs say what the code does: tables made from the code, links that lead somewhere, real commands."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from celery_sched import config
from celery_sched.cli import sched
from celery_sched.rules import transitions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_settings_page_holds_every_setting() -> None:
    """docs/settings.md has the table that the settings make of themselves."""
    assert config.reference() in (ROOT / "docs" / "settings.md").read_text()


def test_the_diagram_is_the_table_of_transitions() -> None:
    """The state diagram of docs/architecture.md is made from the table of allowed transitions."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    found = re.search(r"```mermaid\n(.*?)\n```", page, re.DOTALL)
    assert found is not None
    assert transitions.diagram() == found.group(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page leads to a file of this repository."""
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
    missing = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert [] == missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_exist(page: Path) -> None:
    """Every `sched COMMAND` of a page is a command, and so is its sub-command."""
    context = click.Context(sched)
    unknown = []
    for name, sub in re.findall(r"-A \w+ sched ([a-z]+)(?: ([a-z]+))?", page.read_text()):
        command = sched.get_command(context, name)
        if command is None:
            unknown.append(name)
        elif isinstance(command, click.Group) and sub and command.get_command(context, sub) is None:
            unknown.append(f"{name} {sub}")
    assert [] == unknown


def test_every_step_says_its_guard_locks_and_repair() -> None:
    """Reading one step is reading all: each public function of a step has the same four parts."""
    silent = []
    for file in sorted((ROOT / "celery_sched" / "steps").glob("[a-z]*.py")):
        text = file.read_text()
        for part in ("Guard: ", "Locks: ", "If it dies here: "):
            if part not in text:
                silent.append(f"{file.name}: {part}")
    assert [] == silent
