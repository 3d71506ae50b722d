"""Numbered SQL migrations of the catalog, applied by `install.py`. A package so that the files are packaged."""
