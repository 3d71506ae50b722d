"""Stream tables as files: dumped, applied to an empty database, changed, pruned; what is wrong in a file is said."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from tests.cli.conftest import Call

from pgtrickle.cli import declaration_files

BIG = "SELECT id, customer, amount FROM orders WHERE amount > 100"


def told(text: str) -> list[str]:
    return text.splitlines()


@pytest.fixture
def files(call: Call, tmp_path: Path) -> Path:
    """Three tables that read each other, against the order of their names, dumped."""
    for name, query, *options in (
        ("z_big", BIG, "--schedule", "calculated", "--cdc-mode", "trigger"),
        ("m_regions", "SELECT region, count(*) AS n FROM customers GROUP BY region", "--schedule", "5m"),
        (
            "a_sums",
            "-- the sums\nSELECT region, sum(amount) AS s FROM z_big JOIN customers c ON c.id = customer GROUP BY 1;",
            "--diamond-consistency",
            "none",
        ),
        ('"Odd name"', "SELECT 'a;' AS a, id FROM orders", "--refresh-mode", "FULL"),
    ):
        made = call("create", name, "--query", query, "--no-initialize", *options)
        assert made.exit_code == 0, made.output
    directory = tmp_path / "tables"
    done = call("dump", str(directory))
    assert done.stdout == f"wrote 4 files to {directory}\n"
    return directory


def test_what_was_dumped_is_made_again(call: Call, files: Path) -> None:
    assert sorted(path.name for path in files.iterdir()) == [
        "public._Odd_name_.sql",
        "public.a_sums.sql",
        "public.m_regions.sql",
        "public.z_big.sql",
    ]
    assert (files / "public.z_big.sql").read_text() == (
        "-- name: public.z_big\n-- schedule: calculated\n-- cdc_mode: trigger\n"
        f'-- search_path: "$user", public\n\n{BIG}\n'
    )
    before = call("dump", "--json").stdout
    big = files / "public.z_big.sql"
    big.write_text(big.read_text().replace('"$user", public', "public"))  # the same, as there is no schema of the user
    kept = call("apply", str(files))
    assert kept.exit_code == 0, kept.output
    assert {line.split()[0] for line in told(kept.stdout)} == {"keep"}

    assert call("uninstall", "--drop-tables", "--yes").exit_code == 0
    planned = call("apply", str(files), "--dry-run", "--no-initialize")
    assert planned.exit_code == 1, "there is something to do"
    assert [line.split(":")[0] for line in told(planned.stdout)] == [
        'create public."Odd name"',
        "create public.m_regions",
        "create public.z_big",
        "create public.a_sums",
    ]
    made = call("apply", str(files), "--no-initialize")
    assert made.exit_code == 0, made.output
    assert made.stdout.count("done: create") == 4
    assert call("dump", "--json").stdout == before
    assert json.loads(before)[1]["text"] == (files / "public.a_sums.sql").read_text()
    piped = call("dump").stdout
    assert all((path.read_text() in piped) for path in files.iterdir() if path != big)


def test_only_what_differs_is_changed(call: Call, files: Path) -> None:
    file = files / "public.m_regions.sql"
    file.write_text(file.read_text().replace("schedule: 5m", "schedule: 10m").replace("count(*)", "max(id)"))
    (files / "public.z_big.sql").rename(files / "z.txt")
    (files / "public.a_sums.sql").unlink()
    (files / "small.sql").write_text(
        "-- schedule: 1h\n-- any other remark\nSELECT id FROM orders WHERE amount < 5\n;\n"
    )
    planned = call("apply", str(files), "--prune", "--dry-run", "--json")
    assert planned.exit_code == 1
    assert [(each["verb"], each["table"], each["changes"]) for each in json.loads(planned.stdout)] == [
        ("drop", "public.a_sums", []),
        ("drop", "public.z_big", []),
        ("keep", 'public."Odd name"', []),
        ("alter", "public.m_regions", ["schedule", "query"]),
        ("create", "public.small", []),
    ], "readers are dropped before what they read"
    without = call("apply", str(files), "--dry-run").stdout
    assert "drop" not in without
    assert "alter  public.m_regions: schedule 5m → 10m, another query" in without
    done = call("apply", str(files), "--prune", "--no-initialize")
    assert done.exit_code == 0, done.output
    tables = {each["table"]: each for each in json.loads(call("status", "--json").stdout)}
    assert set(tables) == {"public.Odd name", "public.m_regions", "public.small"}
    assert (tables["public.m_regions"]["schedule"], tables["public.small"]["schedule"]) == ("10m", "1h")
    assert "max(id)" in tables["public.m_regions"]["query"]
    assert call("apply", str(files), "--prune", "--dry-run").exit_code == 0, "nothing is left to do"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.sql", "-- schedul: 5s\nSELECT 1 AS a", "PT670"),
        ("a.sql", "-- schedule: 5s\n-- schedule: 6s\nSELECT 1 AS a", "PT670"),
        ("a.txt", "SELECT 1 AS a", "PT671"),
        ("a.sql", "-- schedule: 5s\n\n;\n", "PT674"),
        ("a.sql", "-- schedule: soon\nSELECT 1 AS a", "PT010"),
        ("a.sql", "-- cdc_mode: polling\nSELECT 1 AS a", "PT007"),
        ("a.sql", "-- refresh_mode: sometimes\nSELECT 1 AS a", "PT006"),
        ("a b.sql", "SELECT 1 AS a", "PT004"),
        ("a.sql", "SELECT id FROM nowhere", "PT106"),
        ("a.sql", "-- search_path: elsewhere\nSELECT 1 AS a", "PT677"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_made(
    call: Call, shop: str, tmp_path: Path, name: str, text: str, code: str
) -> None:
    (tmp_path / name).write_text(text)
    refused = call("apply", str(tmp_path))
    assert refused.exit_code in {1, 2}
    assert f"error: {code}" in refused.stderr
    assert "hint: " in refused.stderr
    with psycopg.connect(shop) as connection:
        assert connection.execute("SELECT to_regclass('a')").fetchone() == (None,)


def test_files_that_cannot_be_read_written_or_told_apart(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("SELECT 1 AS a")
    (tmp_path / "b.sql").write_text("-- name: public.a\nSELECT 1 AS a")
    assert "PT673" in call("apply", str(tmp_path)).stderr
    (tmp_path / "b.sql").write_bytes(b"\xff\xfe")
    assert "PT672" in call("apply", str(tmp_path)).stderr
    for name in ('"x y"', '"x/y"'):
        assert call("create", name, "--query", "SELECT id FROM orders", "--no-initialize").exit_code == 0
    assert "PT675" in call("dump", str(tmp_path / "new")).stderr
    assert call("drop", '"x/y"').exit_code == 0
    assert "PT676" in call("dump", str(tmp_path / "a.sql")).stderr


def test_names_are_quoted_only_where_they_must_be() -> None:
    parsed = declaration_files.parse('SELECT 1 FROM "A b", Ab, s."Ab"', "f.sql")
    assert sorted(map(declaration_files.shown, parsed.reads)) == ['"A b"', "ab", 's."Ab"']
