"""Where pgtrickle keeps files of its own on this machine; `embedded` and `spark` ask here.

`PGTRICKLE_HOME` overrides everything. Root gets a system directory: the embedded server must run as another
account then, and that account cannot reach into root's home.
"""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """Things to keep: the data of embedded servers."""
    if home := os.environ.get("PGTRICKLE_HOME"):
        return Path(home).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/pgtrickle")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share").absolute() / "pgtrickle"


def cache_home() -> Path:
    """Things that can be made again: Java shims, logs."""
    if home := os.environ.get("PGTRICKLE_HOME"):
        return Path(home).absolute() / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "pgtrickle"


def spark_log() -> Path:
    """Where Spark and Java write what a terminal should not show."""
    return cache_home() / "spark.log"


def errors_log() -> Path:
    """Where the command line keeps the tracebacks of failures that no one foresaw."""
    return cache_home() / "errors.log"
