"""Nothing is there for the tests alone: every name that the package defines is used in the package, or is public."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "pgtrickle"
CALLED_BY_OTHERS = {
    *("MULTI_ARG_DISTINCT", "Generator", "arg_types", "array_sql", "pow_sql", "_values_to_select"),  # sqlglot's hooks
    *("daemon_threads", "log_message", "do_GET", "do_POST", "send_error", "sys_version"),  # of Python's web servers
    *("allow_reuse_address", "request_queue_size"),  # of Python's servers
    *("initialOffset", "latestOffset", "prepareForTriggerAvailableNow", "streamReader"),  # of PySpark's data sources
    "addInPlace",  # of its accumulators
    *("registered_by", "registered_at", "expires_at", "buffer_bytes"),  # columns of a record, read by name
    "trigger_active",  # a column of a record, read by name
    "pytest_addoption",  # a hook of pytest
    *("GAPS", "WAL_LEVEL"),  # lists of codes, by which tests know that each is tested
}


def defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (each.id for each in targets if isinstance(each, ast.Name))


def test_every_name_is_used_where_it_is_not_defined() -> None:
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    told = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    private = {path: text for path, text in texts.items() if path.name != "api.py" and path.parent.name != "cli"}
    names = Counter(name for text in private.values() for name in defined(ast.parse(text)))
    unused = {name for name, times in names.items() if told[name] <= times and not name.startswith("__")}
    assert unused == CALLED_BY_OTHERS
