"""A file of SQL as the statements in it."""

from __future__ import annotations

import re

_PARTS = re.compile(
    r"""
      '(?:[^']|'')*'                      # a text
    | "(?:[^"]|"")*"                      # a name
    | `[^`]*`                             # a name, in MariaDB
    | --[^\n]*                            # a comment
    | /\*.*?\*/                           # a comment
    | (\$[A-Za-z_]*\$).*?\1               # a text of PostgreSQL
    | ;
    """,
    re.VERBOSE | re.DOTALL,
)


def statements(text: str) -> list[str]:
    """The statements between ``;`` (outside of texts, names and comments), without empty ones.

    Bodies of triggers and procedures that have a ``;`` of their own, and are no text, cannot be told from
    several statements: such a statement is given by itself, not in a file.
    """
    found, begin = [], 0
    for match in _PARTS.finditer(text):
        if match[0] == ";":
            found.append(text[begin : match.start()])
            begin = match.end()
    found.append(text[begin:])
    return [one.strip() for one in found if _PARTS.sub(_without_comment, one).strip()]


def _without_comment(match: re.Match[str]) -> str:
    return "" if match[0].startswith(("--", "/*")) else match[0]
