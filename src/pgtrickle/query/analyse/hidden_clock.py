"""What of a node tree may read the clock without a call that says so. Pure; read by `rule_facts.py`.

    'now'::text::timestamptz        the text is read as a time when the query runs, each time anew
    f(x), f(x, at DEFAULT now())    the default is put in when the query is planned: the tree has one argument

`'now'::timestamptz` is a constant: PostgreSQL reads it as it analyses the query. Of a text that comes from a row
nothing can be told here.
"""

from __future__ import annotations

import re
from typing import Final

from pgtrickle.model import FIRST_USER_OID
from pgtrickle.query.analyse import node_text
from pgtrickle.query.analyse.node_text import Node

_TIMES: Final = frozenset({1082, 1083, 1114, 1184, 1266})
_OF_TIMES: Final = frozenset({1182, 1183, 1115, 1185, 1270, 3908, 3909, 3910, 3911, 3912, 3913, 4533, 4534, 4535})
"""Arrays of these, their ranges and multiranges."""
_RESULT: Final = re.compile(r":resulttype (\d+)")
_WORDS: Final = re.compile(rb"now|today|tomorrow|yesterday")
_TEXT_CONCATENATION: Final = 654
_LENGTH: Final = 4
"""Bytes in front of a stored text."""
_CALL: Final = re.compile(r"\{FUNCEXPR :funcid (\d+)")


def reads_word(tree: str) -> bool:
    """Whether a text that is written in the query, and may say `now`, is read as a time."""
    if "{COERCEVIAIO " not in tree or not any(_holds_times(int(oid)) for oid in _RESULT.findall(tree)):
        return False
    return any(_reads_word(node) for node in node_text.walk(node_text.parse(tree)))


def calls_with_defaults(tree: str) -> frozenset[tuple[int, int]]:
    """The functions of users that are called, each with the number of arguments that it is given."""
    if not any(int(oid) >= FIRST_USER_OID for oid in _CALL.findall(tree)):
        return frozenset()
    calls = (node for node in node_text.walk(node_text.parse(tree)) if node.kind == "FUNCEXPR")
    return frozenset(
        (call.number("funcid"), len(call.nodes("args"))) for call in calls if call.number("funcid") >= FIRST_USER_OID
    )


def _holds_times(oid: int) -> bool:
    """Of a type of a user it is not known."""
    return oid in _TIMES or oid in _OF_TIMES or oid >= FIRST_USER_OID


def _reads_word(node: Node) -> bool:
    """Of a conversion: of a text, or of each text of an array, which stands elsewhere than what converts it."""
    if node.kind == "ARRAYCOERCEEXPR":
        each = node.node("elemexpr")
        return each is not None and _is_conversion(each) and _may_say_now(node)
    return _is_conversion(node) and _may_say_now(node)


def _is_conversion(node: Node) -> bool:
    return node.kind == "COERCEVIAIO" and _holds_times(node.number("resulttype"))


def _may_say_now(conversion: Node) -> bool:
    """Of what is computed from constants alone it is not known what it says, unless they are only put together."""
    inside = list(node_text.walk(conversion.fields.get("arg")))
    if any(node.kind == "CASETESTEXPR" for node in inside):
        return False
    constants = [node for node in inside if node.kind == "CONST"]
    if any(_WORDS.search(_bytes(constant).lower()) for constant in constants):
        return True
    if all(_joins_texts(node) for node in inside if node.kind != "CONST"):
        return _WORDS.search(b"".join(_bytes(constant)[_LENGTH:] for constant in constants).lower()) is not None
    return not any(node.kind in ("VAR", "PARAM") for node in inside)


def _joins_texts(node: Node) -> bool:
    """`text || text`, which says what its parts say, one after the other."""
    return node.kind == "OPEXPR" and node.number("opno") == _TEXT_CONCATENATION


def _bytes(constant: Node) -> bytes:
    """The value as it is stored: of a text, four bytes of its length and the characters."""
    value = constant.fields.get("constvalue")
    stored = value[1] if isinstance(value, tuple) and len(value) > 1 else None
    return bytes(int(each) % 256 for each in stored[1:-1].split()) if isinstance(stored, str) else b""
