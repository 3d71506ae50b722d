"""The delta algebra: pure, no psycopg, no pyspark. Importing the package registers every rule."""

from pgtrickle.delta import (
    aggregate,
    constant,
    inner_join,
    left_join,
    match,
    recursive,
    row_wise,
    scan,
    top_k,
    union_all,
    window,
)

__all__ = [
    "aggregate",
    "constant",
    "inner_join",
    "left_join",
    "match",
    "recursive",
    "row_wise",
    "scan",
    "top_k",
    "union_all",
    "window",
]
