"""The command line: a thin layer over `pgtrickle.api`. `main` is the entry, one module for each group of verbs."""
