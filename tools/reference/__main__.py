"""`python -m tools.reference`: writes the pages, with a server of its own that is gone afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pgtrickle import embedded
from tools.reference.pages import DIRECTORY, written

with tempfile.TemporaryDirectory(prefix="pgtrickle-reference-") as home:
    Path(home).chmod(0o755)
    server = embedded.start(Path(home) / "data", settings={"fsync": False})
    try:
        pages = written(server.dsn)
    finally:
        embedded.stop(Path(home) / "data")
DIRECTORY.mkdir(exist_ok=True)
for name, text in pages.items():
    (DIRECTORY / name).write_text(text, encoding="utf-8")
