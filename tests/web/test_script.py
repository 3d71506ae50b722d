"""The dashboard's script is JavaScript: told also where there is no Chromium to run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import pgtrickle

STATIC = Path(pgtrickle.__file__).parent / "web" / "static"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no Node.js here")
def test_it_can_be_read(tmp_path: Path) -> None:
    def says(text: str) -> str:
        file = tmp_path / "script.js"
        file.write_text(text)
        return subprocess.run([str(NODE), "--check", file], capture_output=True, text=True, check=False).stderr

    script = (STATIC / "dashboard.js").read_text()
    assert says(script) == ""
    assert "SyntaxError" in says(script + ")")
