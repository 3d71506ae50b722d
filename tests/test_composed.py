"""SQL is composed of parts: no text that may hold somebody's SQL is formatted, replaced in or searched for a marker.

`'{}'`, `%s` and a comment are ordinary text in a literal of the user's; a template over it would fail, or change it. So
`format`, `%`, `replace`, `re.sub` and the like may be applied to literals of ours only. The few other uses are listed,
each with the reason why no user's SQL is in that text. And a statement with parameters, in which psycopg reads percent
signs, is a text of ours as a whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgtrickle

PACKAGE = Path(pgtrickle.__file__).parent

_NUMBER = "a remainder"
_QUOTED = "one name or value that is no SQL: its quotes are doubled, or made single again"
_OURS = "the text is one of our own files' or literals, chosen among several"
_NO_SQL = "no SQL"
REVIEWED = {
    ("capture/copybinary.py", "(xid - reference) % _WIDE"): _NUMBER,
    ("delta/monotone.py", "size % 2"): _NUMBER,
    ("scheduler/due.py", "(at - _EPOCH) % period"): _NUMBER,
    ("scheduler/audit.py", "turn % settings.audit_sample"): _NUMBER,
    ("query/analyse/hidden_clock.py", "int(each) % 256"): _NUMBER,
    ("web/graph.py", "sweep % 2"): _NUMBER,
    ("capture/replication.py", "text.replace"): _QUOTED,
    ("catalog/names.py", "quoted.replace"): _QUOTED,
    ("embedded.py", "text.replace('\\\\', '\\\\\\\\').replace"): _QUOTED,
    ("embedded.py", "text.replace"): _QUOTED,
    ("index_text.py", "found['quoted'].replace"): _QUOTED,
    ("model.py", "name.replace"): _QUOTED,
    ("model.py", "name.translate"): "one name, whose letters become small",
    ("postgres/routine.py", "text.replace"): _QUOTED,
    ("postgres/routine.py", "text.replace('\\\\', '\\\\\\\\').replace"): _QUOTED,
    ("postgres/wire.py", "name.replace"): _QUOTED,
    ("refresh/immediate/subject.py", "value.replace"): _QUOTED,
    ("query/syntax/positions.py", "match.group('quoted')[1:-1].replace"): _QUOTED,
    ("capture/triggers.py", "sql.SQL(_TEMPLATE).format"): _OURS,
    ("capture/triggers.py", "sql.SQL(_UPDATE if pairs else _UPDATE_WIDE).format"): _OURS,
    ("capture/triggers.py", "sql.SQL('' if pairs else _TOO_LARGE).format"): _OURS,
    ("capture/idle_windows.py", "conn.execute"): _OURS,
    ("capture/change_window.py", "conn.execute"): _OURS,
    ("capture/sink.py", "WIDTH.format"): _OURS,
    ("capture/sink.py", "sql.SQL(_STATE).format"): _OURS,
    ("db.py", "OWN_PATH.replace"): _OURS,
    ("query/analyse/fingerprint.py", "cursor.execute"): _OURS,
    ("postgres/copy.py", "target.execute"): _OURS,
    ("catalog/install.py", "sql.SQL(grant).format"): _OURS,
    ("catalog/reader.py", "cursor.execute"): _OURS,
    ("catalog/writer.py", "conn.execute"): _OURS,
    ("scheduler/retention.py", "conn.execute"): _OURS,
    ("monitor/overview.py", "cursor.execute"): _OURS,
    ("web/watch.py", "conn.execute"): _OURS,
    ("refresh/immediate/install.py", "names.prefix(what).replace"): "a pattern of LIKE over names of ours",
    ("postgres/statements/at_once.py", "sql.replace"): (
        "what is replaced are names of parts, which end with a hash of all that the query says"
    ),
    ("query/analyse/scratch_view.py", "cursor.execute"): "our own queries; a user's goes through `define`",
    ("query/gaps.py", "self.what.format"): "words of ours; what is named in them is put in as an argument",
    ("query/syntax/operator_syntax.py", "_TOKEN.sub"): "a lexer: literals and quoted names are left as they are",
    ("query/syntax/special_calls.py", "_ROWS_FROM.sub"): "a lexer, as above",
    ("query/labels.py", "_TIME.sub"): "a lexer, as the next; what it makes is shown, not run",
    ("query/labels.py", "_NAME.sub"): "a lexer, as above; and what it makes is shown, not run",
    ("db.py", "re.sub"): _NO_SQL,
    ("delta/monotone.py", "re.sub"): _NO_SQL,
    ("spark/java_errors.py", "re.sub"): _NO_SQL,
    ("spark/dependencies.py", "re.sub"): _NO_SQL,
    ("spark_source/columns.py", "self.form.format"): _OURS,
    ("spark_source/columns.py", "self.name.replace"): _QUOTED,
    ("spark/dependencies.py", "_PYTHON.read_text().replace"): _NO_SQL,
    ("web/access.py", "re.sub"): _NO_SQL,
    ("programs.py", "WHEEL.replace"): _NO_SQL,
}
"""(module, what is called): why no user's SQL is read as a template."""


def findings(source: str) -> list[str]:
    """The calls and operators in a module that read more than text in a text that is not a literal of its own."""
    tree = ast.parse(source)
    constants = _constants(tree)
    found = (node for node in ast.walk(tree) if _is_template(node, constants))
    return [ast.unparse(node.func if isinstance(node, ast.Call) else node) for node in found]


def _constants(tree: ast.Module) -> set[str]:
    """The names that are bound to literals, or to what is composed of literals, and nowhere to anything else."""
    known: set[str] = set()
    bound: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(tree):
        for name, value in _bound(node):
            bound.setdefault(name, []).append(value)
    for _ in range(3):  # of literals, of these, of those
        known = {name for name, values in bound.items() if all(_is_ours(value, known) for value in values)}
    return known


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a node binds, with what to if that is known."""
    if isinstance(node, ast.arg):
        yield node.arg, None
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            else:
                yield from ((part.id, None) for part in ast.walk(target) if isinstance(part, ast.Name))
    if isinstance(node, ast.AugAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value if isinstance(node, ast.AugAssign) else None
    if isinstance(node, ast.For | ast.comprehension):
        yield from ((part.id, None) for part in ast.walk(node.target) if isinstance(part, ast.Name))
    if isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from ((part.id, None) for part in ast.walk(node.optional_vars) if isinstance(part, ast.Name))


def _is_template(node: ast.AST, constants: set[str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return not _is_ours(node.left, constants)
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    text = node.func.value if isinstance(node.func, ast.Attribute) else None
    match called:
        case "format" | "format_map" | "safe_substitute" | "substitute" | "vformat":
            return text is not None and not _is_ours(text, constants)
        case "replace":  # of text: that of a path, a node of a syntax tree or a dataclass has one argument, or names
            return len(node.args) >= 2
        case "sub" | "subn" | "expandtabs" | "translate" | "Template" | "Formatter":
            return True
        case "execute" | "executemany":
            if not isinstance(node.func, ast.Attribute) or ast.unparse(node.func) == "db.execute":
                return False  # `db.execute`, which has no parameters
            given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "params")]
            return bool(given) and not _is_ours(node.args[0], constants)
    return False


def _is_ours(text: ast.expr | None, constants: set[str]) -> bool:
    """Whether a text is a literal, or made of literals alone; SQL(…) of one is one, and formatted, still in parts."""
    match text:
        case ast.Constant(value=str() | bytes()):
            return True
        case ast.Name(id=name):
            return name in constants
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_ours(left, constants) and _is_ours(right, constants)
        case ast.IfExp(body=body, orelse=orelse):
            return _is_ours(body, constants) and _is_ours(orelse, constants)
        case ast.JoinedStr(values=values):
            return all(
                isinstance(part, ast.Constant)
                or (isinstance(part, ast.FormattedValue) and _is_ours(part.value, constants))
                for part in values
            )
        case ast.Call(func=ast.Attribute(attr="SQL") | ast.Name(id="SQL"), args=[given]):
            return _is_ours(given, constants)
        case ast.Call(func=ast.Attribute(value=of, attr="format"), args=_) if isinstance(of, ast.Call | ast.Name):
            return _is_ours(of, constants)  # of psycopg's SQL: what is put in is no text, and is not looked into
        case ast.Call(func=ast.Attribute(value=of, attr="encode"), args=[]):
            return _is_ours(of, constants)
    return False


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text()


def test_no_text_of_others_is_a_template() -> None:
    found = {(name, call) for name, source in modules() for call in findings(source)}
    assert sorted(found - REVIEWED.keys()) == []
    assert sorted(REVIEWED.keys() - found) == [], "reviewed, and no longer there"


@pytest.mark.parametrize(
    "line",
    [
        "pairs.format(f'({right})')",
        "f'SELECT {a} FROM {{}}'.format(b)",
        "flow.sql.replace(RANGE, part)",
        "re.sub('a', 'b', query)",
        "_TOKEN.sub(spelled, query)",
        "query % values",
        "f'{query} %s' % value",
        "Template(query).substitute(a=1)",
        "conn.execute(f'SELECT {expression} WHERE a = %s', (1,))",
        "conn.execute(sql.SQL(query), (1,))",
    ],
)
def test_a_template_is_found(line: str) -> None:
    assert findings(f"def f():\n    {line}\n")
