"""The only SQL. A function is a statement (or the few that one verb needs), named by its verb."""
