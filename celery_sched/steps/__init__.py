"""The path of a run, one verb a file: each takes ``(tx, now, ...)`` and returns a frozen result."""
