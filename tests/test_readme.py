"""The README holds: its tour runs as pasted, it names every verb. (`test_docs.py` follows its links.)"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtrickle import embedded
from pgtrickle.cli.main import app
from pgtrickle.spark import archive

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture
def home() -> Iterator[Path]:
    """PGTRICKLE_HOME for the tour: the user's own embedded server stays out of it."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place
        embedded.stop(place / "postgres-18")


def test_the_tour_runs_as_pasted(home: Path) -> None:
    blocks = re.findall(r"^```sh tour\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PGTRICKLE_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks)],
        cwd=ROOT,
        env={**environment, "PGTRICKLE_HOME": str(home), archive.VARIABLE: "off"},  # none is made for a home that goes
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    out = done.stdout
    assert "created public.order_totals, maintained by DIFFERENTIAL refreshes" in out
    assert re.findall(r"^(\w+): \+\d+ -\d+ rows", out, re.MULTILINE) == [
        "FULL",
        "DIFFERENTIAL",
        "DIFFERENTIAL",
        "DIFFERENTIAL",
        "NO_DATA",
    ]
    before, after = (re.findall(rf"^{region}\t(\d+)\t", out, re.MULTILINE) for region in ("north", "west"))
    assert len(before) == 2, "shown twice"
    assert after == ["10"], "customer 7 moved with its orders: ten, one more, one less"
    assert re.search(r"^public\.order_totals +equal +0 +0", out, re.MULTILINE)
    assert "dropped public.order_totals" in out
    assert out.rstrip().endswith("stopped")


def test_every_verb_is_described() -> None:
    named = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    table = README.split("## The command line")[1].split("\n## ")[0]
    for verb in {*named, "postgres"}:
        assert re.search(rf"`(?:[^`]*, )?{verb}\b|, `{verb}\b", table), verb
