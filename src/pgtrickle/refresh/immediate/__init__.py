"""IMMEDIATE mode: the stream table changes in the writer's own transaction, by trigger functions that are generated."""
