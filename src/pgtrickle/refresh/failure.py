"""What went wrong in a refresh, as one of our errors, in PostgreSQL's own words where they are in there."""

from __future__ import annotations

import re

import psycopg

from pgtrickle.db import OWN_PATH
from pgtrickle.directories import spark_log
from pgtrickle.errors import Error, QueryError, ServerError, StateError, Unsupported
from pgtrickle.refresh.retry import of_lost_java
from pgtrickle.spark.java_errors import in_one_line, text_of

_CORRECT = "correct the data or the query, then refresh again"
_SEE_HISTORY = "`pgtrickle history` has the refreshes that failed"
_CORRECT_OR_RETRY = f"{_CORRECT}; {_SEE_HISTORY}"
_NOT_FOUND = ("42883", "42P01", "42704")  # there is no such function, relation, or type
_OF_CONSTRAINTS = ("23502", "23505", "23514", "23P01")  # NOT NULL, unique, check, exclusion
_NO_SUCH_ROWS = (
    "the query gives rows that a key or constraint of the stream table forbids: correct the data or the query, or drop"
    " the constraint (primary_key => 'none') or the unique index (indexes => …); nothing was changed"
)
_DATA_EXCEPTION = "22"  # the SQLSTATE class of values that cannot be computed with


class ValueProblem(StateError):
    """An expression failed on a value, which may have been there only in between: a full refresh sees the present."""

    code = "PT343"


class DefinitionProblem(StateError):
    """The sources have changed so that the stream table cannot be what it was: its query must be altered."""


def breaks_definition(error: Error) -> bool:
    """Whether the query no longer holds on its sources, so that trying again is no help until someone changes them."""
    return isinstance(error, QueryError | Unsupported | DefinitionProblem)


def known_failures() -> tuple[type[Exception], ...]:
    """What a refresh may fail with by no fault of ours; asked only once something was raised."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Error, psycopg.Error, PySparkException, Py4JError


def is_known(error: Exception) -> bool:
    """Whether it is one of those, or what pyspark happens to raise when Java has ended under it."""
    return isinstance(error, known_failures()) or of_lost_java(error)


def as_ours(error: Exception) -> Error:
    """The failure as one of our errors."""
    if isinstance(error, Error):
        return error
    if isinstance(error, psycopg.Error):
        said, state = error.diag.message_primary or str(error), error.sqlstate or ""
        return _not_found(said, state, error.diag.context or "") or _refusal(
            _with_key(error, said), state, error.diag.message_hint
        )
    text = text_of(error)
    found = re.search(r"ERROR:\s*(.+)", text)
    if found:
        states = re.findall(r"ERROR:.*?SQLSTATE: (\w{5})", text, re.DOTALL)
        said, state = found.group(1).strip(), states[0] if states else ""
        return _not_found(said, state, text) or _refusal(said, state, None)
    hint = f"refresh again; {spark_log()} has the whole story"
    return StateError(f"Spark failed: {in_one_line(error)}", code="PT341", hint=hint)


def from_server(error: psycopg.Error) -> Error:
    """What PostgreSQL said to a statement of ours outside of a refresh: it went away, we may not, or it refused."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        ours = re.search(r"\b(?:table|view|sequence) pgt_|\bschema pgtrickle", said)
        whose = "catalog (of the schema pgtrickle), or as a member of that role" if ours else "tables"
        hint = error.diag.message_hint or f"Connect as the owner of the {whose}, or have the privilege granted."
        return ServerError(said, code="PT402", hint=hint)
    lost = error.sqlstate is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if lost or (error.sqlstate or "").startswith(("08", "57P", "53")):
        hint = error.diag.message_hint or "Check that the server runs, then try again: nothing was left half done."
        return ServerError(f"the server ended the connection: {said}", code="PT403", hint=hint)
    hint = error.diag.message_hint or "See the server's log for the statement it refused."
    return StateError(f"PostgreSQL refused: {said}", code="PT340", hint=hint)


def _not_found(said: str, state: str, context: str) -> Error | None:
    """That a function of the user names something by the search path, which is not the user's in a refresh."""
    inside = re.search(r'(?:PL/\w+|SQL) function "?(.+?)"? (?:line|during|statement)', context)
    if inside is None or state not in _NOT_FOUND:
        return None
    name = inside.group(1)
    return StateError(
        f"PostgreSQL refused: {said}, in the function {name}",
        code="PT294",
        hint=f"queries are evaluated with search_path = {OWN_PATH}: write the schema before the name in the function,"
        f" or ALTER FUNCTION {name} SET search_path = …",
    )


def _with_key(error: psycopg.Error, said: str) -> str:
    """The values that a constraint refuses are in the detail of what PostgreSQL says, where it is one of a key."""
    return f"{said}: {error.diag.message_detail}" if error.sqlstate == "23505" and error.diag.message_detail else said


def _refusal(said: str, state: str, hint: str | None) -> Error:
    if state in _OF_CONSTRAINTS:
        return StateError(f"a constraint refuses rows of the query: {said}", code="PT317", hint=_NO_SUCH_ROWS)
    if state.startswith(_DATA_EXCEPTION):
        return ValueProblem(f"PostgreSQL refused: {said}", hint=f"{_CORRECT}, or refresh in full; {_SEE_HISTORY}")
    return StateError(f"PostgreSQL refused: {said}", code="PT340", hint=hint or _CORRECT_OR_RETRY)
