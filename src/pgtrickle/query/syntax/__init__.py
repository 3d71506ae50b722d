"""A query as text and as a syntax tree (sqlglot): parsing, positions, and rewrites that need no tree of ours."""
