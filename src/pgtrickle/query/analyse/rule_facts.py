"""Facts read from the text of a stored rule (`pg_rewrite.ev_action`), PostgreSQL's own analysed form of a query.

`pg_depend` leaves out everything built in (functions, operators, system tables), so those come from here. Pure;
called by `analyze.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgtrickle.query.analyse import hidden_clock, node_text
from pgtrickle.query.analyse.node_text import Node, Value
from pgtrickle.query.syntax.clock_text import AGE_SINCE_TODAY

_FUNCTION = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
_OPERATOR = re.compile(r":opno (\d+)")
_LEVEL = re.compile(r":varlevelsup ([1-9]\d*)")
_RELATION = re.compile(r":relid (\d+)")
_ONLY = re.compile(r":rtekind 0 :relid (\d+) [^{}]*?:inh false ")
_WITH_HEIRS = re.compile(r":rtekind 0 :relid (\d+) [^{}]*?:inh true ")
_AGGREGATE = re.compile(r"\{AGGREF ")
_VALUE_FUNCTION = re.compile(r"\{SQLVALUEFUNCTION :op (\d+)")
_NEXT_VALUE = re.compile(r"\{NEXTVALUEEXPR ")
_CATALOG_NAME_TYPE = re.compile(r":(?:vartype|resulttype|consttype|funcresulttype|paramtype) (\d+)")
_CONSTANT = re.compile(r"\{CONST :consttype (\d+) [^{}]*?:constvalue (\d+ \[[^\]]*\])")
_SYSTEM_COLUMN = re.compile(r":varattno -\d")
_WHOLE_ROW = re.compile(r"\{VAR :varno \d+ :varattno 0 ")
_TEXT_CONVERSION = re.compile(r"\{COERCEVIAIO ")

#: In the order of SQLValueFunctionOp.
_VALUE_FUNCTIONS = (
    "CURRENT_DATE",
    "CURRENT_TIME",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "CURRENT_TIMESTAMP",
    "LOCALTIME",
    "LOCALTIME",
    "LOCALTIMESTAMP",
    "LOCALTIMESTAMP",
    "CURRENT_ROLE",
    "CURRENT_USER",
    "USER",
    "SESSION_USER",
    "CURRENT_CATALOG",
    "CURRENT_SCHEMA",
)
_OF_CLOCK = frozenset(_VALUE_FUNCTIONS[:9])
CLOCK_FUNCTIONS = AGE_SINCE_TODAY | {1299, 2647}
"""Those and now(), transaction_timestamp()."""
#: regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary, regnamespace, regrole,
#: regcollation: their text form is looked up in the catalog.
_NAMED_OBJECT_TYPES = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """What one rule mentions: relations and functions and operators by oid, state-reading constructs by name; `levels`
    say of each column of a query around how many queries further out that is; `named` are its constants that stand for
    objects of the catalog, as they are stored; `whole_rows` the relations of which a row is read as one value, `only`
    those that are read without what inherits from them, `with_heirs` those that are read with it."""

    relations: frozenset[int]
    only: frozenset[int]
    with_heirs: frozenset[int]
    functions: frozenset[int]
    operators: frozenset[int]
    levels: tuple[str, ...]
    aggregates: int
    stateful: tuple[str, ...]
    named: frozenset[str]
    system_columns: bool
    whole_rows: frozenset[int]
    reads_clock: bool
    calls: frozenset[tuple[int, int]]
    """The functions of users that are called, with the number of arguments that are given."""


def read(tree: str) -> RuleFacts:
    """The facts of a rule's node tree."""
    values = [_VALUE_FUNCTIONS[int(op)] for op in _VALUE_FUNCTION.findall(tree)]
    stateful = [name for name in values if name not in _OF_CLOCK]
    functions = _oids(_FUNCTION, tree)
    if _NEXT_VALUE.search(tree):
        stateful.append("NEXTVAL")
    if _TEXT_CONVERSION.search(tree) and _oids(_CATALOG_NAME_TYPE, tree) & _NAMED_OBJECT_TYPES:
        stateful.append("the text form of a reg* type")
    if hidden_clock.reads_word(tree):
        stateful.append("a text such as 'now', read as a time,")
    return RuleFacts(
        relations=_oids(_RELATION, tree),
        only=_oids(_ONLY, tree),
        with_heirs=_oids(_WITH_HEIRS, tree),
        functions=functions,
        operators=_oids(_OPERATOR, tree),
        levels=tuple(_LEVEL.findall(tree)),
        aggregates=len(_AGGREGATE.findall(tree)),
        stateful=tuple(dict.fromkeys(stateful)),
        named=frozenset(value for type_, value in _CONSTANT.findall(tree) if int(type_) in _NAMED_OBJECT_TYPES),
        system_columns=_SYSTEM_COLUMN.search(tree) is not None,
        whole_rows=_whole_rows(tree),
        reads_clock=not _OF_CLOCK.isdisjoint(values) or not CLOCK_FUNCTIONS.isdisjoint(functions),
        calls=hidden_clock.calls_with_defaults(tree),
    )


def _whole_rows(tree: str) -> frozenset[int]:
    if not _WHOLE_ROW.search(tree):
        return frozenset()
    found: set[int] = set()

    def visit(value: Value, around: tuple[list[Node], ...]) -> None:
        if isinstance(value, tuple):
            for part in value:
                visit(part, around)
        if not isinstance(value, Node):
            return
        if value.kind == "VAR" and value.number("varattno") == 0:
            found.add(around[-1 - value.number("varlevelsup")][value.number("varno") - 1].number("relid"))
        inside = (*around, value.nodes("rtable")) if value.kind == "QUERY" else around
        for part in value.fields.values():
            visit(part, inside)

    visit(node_text.parse(tree), ())
    return frozenset(found) - {0}


def _oids(pattern: re.Pattern[str], tree: str) -> frozenset[int]:
    return frozenset(int(oid) for oid in pattern.findall(tree)) - {0}
