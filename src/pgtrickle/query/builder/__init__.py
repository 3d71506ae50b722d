"""From a syntax tree to an operator tree: FROM, WHERE, subqueries, grouping, order. Pure; `build.py` is the entry."""
