"""The page of settings, from their one declaration in `config.py`."""

from __future__ import annotations

from dataclasses import fields

from pgtrickle.config import REMOVED, Settings
from tools.reference import markdown


def page() -> str:
    defaults = Settings()
    rows = []
    for declared in fields(Settings):
        meta = declared.metadata
        value = getattr(defaults, declared.name)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        unit = f" {meta['unit']}" if meta["unit"] else ""
        allowed = ", ".join(f"`{each}`" for each in meta["choices"] or ()) or _bounds(meta["least"], meta["most"])
        rows.append((f"`{declared.name}`", f"`{shown}`{unit}", str(declared.type), allowed, meta["help"]))
    removed = [f"- `{name}`: {why}." for name, why in REMOVED.items()]
    return markdown.page(
        "Settings",
        "A setting comes from one of three places; the later in this list wins.",
        "\n".join(
            (
                "1. The database or the role: `ALTER DATABASE d SET pg_trickle.cdc_mode = 'trigger'`, or `ALTER ROLE`.",
                "2. The environment of the process: `PGTRICKLE_CDC_MODE=trigger`.",
                "3. A flag, for the few that have one: `pgtrickle run --log-level debug`, `connect(master=…)`.",
            )
        ),
        "`pgtrickle config` shows every setting with its value in effect and where that comes from. A running service"
        " reads its settings when it starts and again on SIGHUP. PostgreSQL cannot keep comments on settings, so this"
        " page is their description.",
        markdown.table(("setting", "default", "type", "allowed", "meaning"), rows),
        "Settings that existed once and have no effect any more; pgtrickle warns if one is set:",
        "\n".join(removed),
    )


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f"{least:g} or more" if most is None else f"{least:g} to {most:.10g}"
