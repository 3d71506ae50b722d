"""The page of error codes: what each means and what to do, taken from where it is raised.

An error is raised with its code, its message and its hint, in Python or in SQL; this reads them there. What is in
braces stands for a name or a number. Where the words are put together in a way that cannot be read from the source,
`WORDS` has them, and a test fails for a code without words.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pgtrickle.query.gaps import USE_FULL
from tools.reference import markdown
from tools.reference.words import WORDS, Words

SOURCE: Final = Path(__file__).parents[2] / "src" / "pgtrickle"
KINDS: Final = (
    ("PT0", "Wrong arguments", "UsageError", "Nothing was done. Exit code 2."),
    ("PT1", "PostgreSQL refuses the query", "QueryError", "Nothing was done. Exit code 2."),
    ("PT2", "Not possible in this refresh mode or way of capture", "Unsupported",
     "Under `AUTO` such a query becomes a `FULL` stream table, and such a source stays with triggers. Exit code 2."),
    ("PT3", "State of a stream table or of the catalog", "StateError",
     "A refresh that fails changes nothing: the table keeps the rows it had. Exit code 1."),
    ("PT4", "The server, the roles, the running service", "ServerError", "Exit code 3."),
    ("PT5", "The machine: Java, Spark, the embedded server", "EnvironmentProblem", "Exit code 3."),
    ("PT6", "Window functions, recursion, sources, files of stream tables", "several classes", "Exit code 1 or 2."),
    ("PT7", "IMMEDIATE mode", "Unsupported, or an error of the writer's statement",
     "Nothing was done: an error in the maintenance undoes the statement."),
)  # fmt: skip
_CODE: Final = re.compile(r"PT\d{3}")
_RETIRED: Final = frozenset({"PT204", "PT205", "PT290"})
"""Codes of SQL functions that a later migration has replaced."""


def codes() -> set[str]:
    """Every code that the package has anywhere."""
    files = (path.read_text() for path in SOURCE.rglob("*") if path.suffix in {".py", ".sql"})
    return {code for text in files for code in _CODE.findall(text)} - _RETIRED


def told() -> dict[str, list[Words]]:
    """The words of each code, in the order of the source; what is told twice is there once."""
    found: defaultdict[str, list[Words]] = defaultdict(list)
    trees = [ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))]
    of_classes = _codes_of_classes(trees)
    for tree in trees:
        for code, words in _in_python(tree, of_classes):
            found[code].append(words)
    for path in sorted((SOURCE / "catalog" / "migrations").glob("*.sql"), reverse=True):  # the newest words first
        for code, words in _in_sql(path.read_text()):
            found[code].append(words)
    return {code: _best(found[code], WORDS.get(code)) for code in sorted(codes())}


def page() -> str:
    every = told()
    about = (
        "Every error has a stable code, a message and a hint. In Python they are `error.code`, `error.message` and"
        " `error.hint`; in SQL the code is the SQLSTATE, or the first word of the message where PostgreSQL's own"
        " SQLSTATE is kept. `{…}` stands for a name, a number or a reason."
        " [LIMITS.md](../LIMITS.md) says which queries are affected."
    )
    parts = [about]
    for start, title, kind, note in KINDS:
        rows = [
            (f"`{code}`" if place == 0 else "", each.cause, each.cure)
            for code, words in every.items()
            if code.startswith(start)
            for place, each in enumerate(words)
        ]
        parts += [f"## {start}xx: {title}", f"`{kind}`. {note}", markdown.table(["code", "cause", "cure"], rows)]
    return markdown.page("Error codes", *parts)


def _best(found: list[Words], given: Words | None) -> list[Words]:
    """The words that are whole: a cause with words of its own, and a cure. The same ones once."""
    if given is not None:
        return [given]
    whole = [each for each in found if each.cure and re.search(r"[^\W\d_]{3}", re.sub(r"\{[^}]*\}", "", each.cause))]
    kept: dict[str, Words] = {}
    for each in whole:
        kept.setdefault(re.sub(r"'?\{[^}]*\}'?|\d+", "{}", each.cause).lower(), each)
    return list(kept.values())


def _codes_of_classes(trees: list[ast.Module]) -> dict[str, str]:
    """Classes of errors that have a code of their own."""
    return {
        node.name: str(statement.value.value)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and _CODE.fullmatch(str(statement.value.value))
    }


def _in_python(tree: ast.Module, of_classes: dict[str, str]) -> Iterator[tuple[str, Words]]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.Module):
            continue
        local = {**constants, **_assigned(scope)}
        for call in _calls(scope):
            named = {each.arg: each.value for each in call.keywords}
            code, message, hint = _parts(call, named, of_classes)
            for each in _values(code, local):
                if _CODE.fullmatch(each):
                    yield each, Words(_either(_values(message, local)), _either(_values(hint, local)))


def _parts(
    call: ast.Call, named: dict[str | None, ast.expr], of_classes: dict[str, str]
) -> tuple[ast.expr | None, ast.expr | None, ast.expr | None]:
    """Code, message and hint of a call that makes an error, a gap or a problem."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    texts = [each for each in call.args if not isinstance(each, ast.Starred)]
    if name == "Gap":
        return texts[0], texts[1], texts[2] if len(texts) > 2 else ast.Constant(USE_FULL)
    if name == "Problem":
        return texts[1], texts[0], texts[2]
    code = named.get("code")
    if code is None and name in of_classes:
        code = ast.Constant(of_classes[name])
    return code, texts[0] if texts else named.get("message"), named.get("hint")


def _calls(scope: ast.FunctionDef | ast.Module) -> Iterator[ast.Call]:
    """The calls of a function, not those of functions in it; of a module, those outside of functions."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _assigned(scope: ast.FunctionDef | ast.Module) -> dict[str, ast.expr]:
    """What is assigned to names in a function."""
    return {
        target.id: node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _values(node: ast.expr | None, known: dict[str, ast.expr], depth: int = 0) -> list[str]:
    """What an expression may read, with braces around what is known only when it runs."""
    if node is None or depth > 4:
        return []
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_values(body, known, depth + 1), *_values(orelse, known, depth + 1)]
        case ast.BoolOp(values=values):
            return _values(values[-1], known, depth + 1)
        case ast.JoinedStr(values=values):
            return ["".join(_piece(each, known, depth) for each in values)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return ["".join(_either(_values(each, known, depth + 1)) or "{…}" for each in (left, right))]
        case ast.Name(id=name) if name in known:
            return _values(known[name], known, depth + 1)
        case ast.Constant(value=int(number)):
            return [str(number)]
        case ast.Constant():
            return []
        case _:
            return [f"{{{_called(node)}}}"]


def _piece(node: ast.expr, known: dict[str, ast.expr], depth: int) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    if isinstance(node.value, ast.Name) and not isinstance(known.get(node.value.id), ast.Constant | ast.IfExp):
        return f"{{{node.value.id}}}"
    return _either(_values(node.value, known, depth + 1))


def _either(texts: list[str]) -> str:
    return " or ".join(filter(None, texts))


def _called(node: ast.expr) -> str:
    """A short name for what is known only when it runs."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {"message_primary": "what PostgreSQL says", "strerror": "reason"}.get(name, name).strip("_")
        case _:
            return "…"


_SQL_ERROR: Final = re.compile(r"[(,]\s*'(PT\d{3})',")


def _in_sql(text: str) -> Iterator[tuple[str, Words]]:
    """`refuse('PT…', message, hint)`, and rows of `(condition, 'PT…', message, hint)`."""
    for found in _SQL_ERROR.finditer(text):
        parts = list(_arguments(text, found.end()))
        if len(parts) >= 2 and " " in parts[0].strip():  # not a list of choices
            yield found[1], Words(*(_literals(each) for each in parts[:2]))


def _arguments(text: str, start: int) -> Iterator[str]:
    """The arguments from here to the parenthesis that closes their list."""
    depth, quoted, begun = 0, False, start
    for place in range(start, len(text)):
        character = text[place]
        if character == "'":
            quoted = not quoted
        elif quoted:
            continue
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        if not quoted and ((character == "," and depth == 0) or depth < 0):
            yield text[begun:place]
            begun = place + 1
            if depth < 0:
                return


def _literals(expression: str) -> str:
    """The words of an expression: its literals, with braces for what stands between them."""
    pieces = re.split(r"'((?:[^']|'')*)'", expression.strip())
    said = ""
    for place, piece in enumerate(pieces):
        if place % 2:
            said += piece.replace("''", "'")
        elif said and place + 1 < len(pieces) and piece.strip():
            said += "{…}"
    return re.sub(r"%[sIL]|(?<= )$|({…}){2,}", "{…}", said)
