"""Files of SQL are taken apart where a statement ends, and nowhere else."""

from __future__ import annotations

import pytest

from celery_sched.rules.sqltext import statements


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" ;\n; -- nothing\n/* ; */", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;\n", ["select 1", "select 2"]),
        ("select ';', 'it''s;' ; x", ["select ';', 'it''s;'", "x"]),
        ('select "a;b" from `c;d`; x', ['select "a;b" from `c;d`', "x"]),
        ("select 1 -- one; two\n; x", ["select 1 -- one; two", "x"]),
        ("select /* a;\nb */ 1; x", ["select /* a;\nb */ 1", "x"]),
        ("do $$ begin; end; $$; x", ["do $$ begin; end; $$", "x"]),
        ("do $a$ $$;$$ ; $a$; x", ["do $a$ $$;$$ ; $a$", "x"]),
        ("select 'not closed; x", ["select 'not closed", "x"]),
    ],
)
def test_statements(text: str, found: list[str]) -> None:
    """Texts, names, comments and PostgreSQL's dollar quotes may hold a semicolon."""
    assert found == statements(text)
