"""The options of a stream table, as the catalog spells them; which of what is asked for there is not. Pure."""

from __future__ import annotations

from typing import Final

from pgtrickle.errors import UsageError

INHERIT: Final = "inherit"
"""For an option of a stream table: what the setting says, whatever that is."""


def cdc_mode(asked: str) -> str | None:
    """The mode in the spelling of the catalog; None: that of the setting."""
    if asked.lower() in {"auto", "trigger", "wal", INHERIT}:
        return None if asked.lower() == INHERIT else asked.lower()
    raise UsageError(f"there is no capture mode {asked!r}", code="PT007", hint="use auto, trigger, wal or inherit")


def status(asked: str) -> str:
    if asked.upper() not in {"ACTIVE", "SUSPENDED"}:
        raise UsageError(f"status cannot be set to {asked!r}", code="PT008", hint="use ACTIVE or SUSPENDED")
    return asked.upper()


def of_diamonds(consistency: str | None, policy: str | None) -> tuple[str | None, str | None]:
    """What is asked of a diamond, in the spelling of the catalog."""
    if consistency is not None and consistency.lower() not in {"atomic", "none", INHERIT}:
        hint = "use atomic, none or inherit"
        raise UsageError(f"there is no diamond consistency {consistency!r}", code="PT013", hint=hint)
    if policy is not None and policy.lower() not in {"fastest", "slowest", INHERIT}:
        hint = "use fastest, slowest or inherit"
        raise UsageError(f"there is no diamond schedule policy {policy!r}", code="PT014", hint=hint)
    return consistency and consistency.lower(), policy and policy.lower()
