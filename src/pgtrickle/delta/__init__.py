"""The delta algebra: pure, no psycopg, no pyspark. Importing the package registers every rule."""

from pgtrickle.delta import (
    aggregate,
    constant,
    expand,
    filter,
    inner_join,
    left_join,
    match,
    project,
    repeat,
    scan,
    top_k,
    union_all,
)

__all__ = [
    "aggregate",
    "constant",
    "expand",
    "filter",
    "inner_join",
    "left_join",
    "match",
    "project",
    "repeat",
    "scan",
    "top_k",
    "union_all",
]
