"""The tests. `tests.servers` and `tests.proxy` are the parts they share."""
