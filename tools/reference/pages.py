"""All reference pages, by the name of their file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pgtrickle import db
from pgtrickle.catalog.install import install
from tools.reference import command_line, errors, metrics, operators, python_interface, settings, sql_interface

DIRECTORY: Final = Path(__file__).parents[2] / "docs" / "reference"


def written(dsn: str) -> dict[str, str]:
    """The pages as the source is now; the database is one to install the catalog in."""
    with db.connect(dsn) as conn:
        install(conn)
        of_sql = {"sql-functions.md": sql_interface.functions(conn), "views.md": sql_interface.relations(conn)}
        of_sql["operators.md"] = operators.page(conn)
    return {
        **of_sql,
        "settings.md": settings.page(),
        "errors.md": errors.page(),
        "python.md": python_interface.page(),
        "cli.md": command_line.page(),
        "metrics.md": metrics.page(dsn),
    }
