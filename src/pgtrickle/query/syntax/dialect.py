"""sqlglot's postgres dialect, kept from being helpful: what is parsed is written back as it was.

Only PostgreSQL's normalised text (`pg_get_viewdef`) is parsed with it. Function calls keep their names and arguments
instead of becoming sqlglot's own nodes; a few operators that sqlglot rewrites are written back as operators.
`compile.py` has PostgreSQL check that a text and its round trip mean the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import sqlglot
from sqlglot import ErrorLevel, TokenType, exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.generators.postgres import PostgresGenerator
from sqlglot.parsers.postgres import PostgresParser

from pgtrickle.query import compile_limits
from pgtrickle.query.syntax import operator_syntax, special_calls
from pgtrickle.query.syntax.special_calls import SpecialCall

USING_ALIAS = "using_alias"
"""The part of a join that has the name after USING (…) AS, which sqlglot does not know."""

COPIED = "copied"
"""Of a window that is a copy of a named one, OVER (w), which sqlglot does not tell from the named one, OVER w."""

_SPECIAL_SYNTAX = ("CAST", "EXTRACT", "OVERLAY", "POSITION")


_FIELDS = frozenset({"year", "month", "day", "hour", "minute", "second"})
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_PREDICATES = {
    "DOCUMENT": ("DOCUMENT",),
    "NORMALIZED": ("NORMALIZED",),
    **{form: (form, "NORMALIZED") for form in _FORMS},
}
"""What follows IS, by its first word."""


class UnknownSyntaxError(ValueError):
    """sqlglot does not know this syntax."""


class Prefix(exp.Unary):
    """OPERATOR(…) before its only operand."""

    arg_types: ClassVar = {"this": True, "operator": True}


class AtLocal(exp.Unary):
    """A time in the session's time zone."""


class Search(exp.Expression):
    """SEARCH … FIRST BY `expressions` SET `name`, after a WITH query."""

    arg_types: ClassVar = {"expressions": True, "name": True, "breadth": False}


class Cycle(exp.Expression):
    """CYCLE `expressions` SET `mark` TO `value` DEFAULT `default` USING `path`, after a WITH query."""

    arg_types: ClassVar = {"expressions": True, "mark": True, "value": True, "default": True, "path": True}


_MODIFIERS = frozenset({TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH})


class _Parser(PostgresParser):
    # What joins may follow in parentheses; sqlglot's type of it has room for its own only.
    MODIFIABLES: ClassVar[Any] = (*PostgresParser.MODIFIABLES, exp.Lateral, exp.Unnest)
    FUNCTIONS: ClassVar = {"COALESCE": PostgresParser.FUNCTIONS["COALESCE"]}
    FUNCTION_PARSERS: ClassVar = {name: PostgresParser.FUNCTION_PARSERS[name] for name in _SPECIAL_SYNTAX}

    def _parse_function_call(
        self,
        functions: dict[str, Callable[..., exp.Expr]] | None = None,
        anonymous: bool = False,
        optional_parens: bool = True,
        any_token: bool = False,
    ) -> exp.Expr | None:
        # "substring"(a, 1) is an ordinary call, unlike SUBSTRING(a FROM 1).
        quoted = self._curr is not None and self._curr.token_type == TokenType.IDENTIFIER
        if not quoted and self._curr and self._curr.text in special_calls.NAMES and self._is_called():
            return self._parse_window(self._parse_special_call())
        return super()._parse_function_call(functions, anonymous or quoted, optional_parens, any_token)

    def _is_called(self) -> bool:
        return bool(self._next and self._next.token_type == TokenType.L_PAREN)

    def _parse_special_call(self) -> SpecialCall:
        reader = special_calls.Reader(self.sql, self._tokens, self._parse_operand_at)
        call, after = reader.read(self._index)
        self._advance(after - self._index)
        return call

    def _parse_operand_at(self, place: int, of_definition: bool) -> tuple[exp.Expr, int]:
        self._advance(place - self._index)
        operand = self._parse_bitwise() if of_definition else self._parse_disjunction()  # NOT NULL may follow
        if operand is None:
            raise UnknownSyntaxError("an operand was expected")
        return operand, int(self._index)

    def _values_to_select(self, values: exp.Values) -> exp.Values:  # type: ignore[override]
        return values  # as it is, in WITH and beside UNION: SELECT * of it, which sqlglot makes, is another text

    def _parse_derived_table_values(self, allow_value_synonym: bool = False) -> exp.Values | None:
        """VALUES in FROM; with an ORDER BY or LIMIT they are a query like others in parentheses."""
        start = self._index
        if self._match_pair(TokenType.L_PAREN, TokenType.VALUES):
            self._parse_csv(self._parse_value)
            is_query = self._curr is not None and self._curr.token_type in _MODIFIERS
            self._retreat(start)
            if is_query:
                return None
        return super()._parse_derived_table_values(allow_value_synonym)

    def _parse_cte(self) -> exp.CTE | exp.FunctionSpecification | None:
        part = super()._parse_cte()
        if isinstance(part, exp.CTE):
            part.set("search", self._parse_search())
            part.set("cycle", self._parse_cycle())
        return part

    def _parse_search(self) -> Search | None:
        if not self._match_text_seq("SEARCH"):
            return None
        breadth = bool(self._match_text_seq("BREADTH")) or not self._match_text_seq("DEPTH")
        self._match_text_seq("FIRST", "BY")
        columns = self._parse_csv(self._parse_id_var)
        self._match_text_seq("SET")
        return self.expression(Search(expressions=columns, name=self._parse_id_var(), breadth=breadth))

    def _parse_cycle(self) -> Cycle | None:
        if not self._match_text_seq("CYCLE"):
            return None
        columns = self._parse_csv(self._parse_id_var)
        self._match_text_seq("SET")
        mark = self._parse_id_var()
        value: exp.Expr | None = exp.true()
        default: exp.Expr | None = exp.false()
        if self._match_text_seq("TO"):
            value = self._parse_bitwise()
            self._match(TokenType.DEFAULT)
            default = self._parse_bitwise()
        self._match_text_seq("USING")
        made = Cycle(expressions=columns, mark=mark, value=value, default=default, path=self._parse_id_var())
        return self.expression(made)

    def _parse_null(self) -> exp.Expr | None:
        # What may follow IS: UNKNOWN, said of booleans, which sqlglot takes for IS NULL, and what it does not know
        if self._match(TokenType.UNKNOWN):
            return exp.Var(this="UNKNOWN")
        words = _PREDICATES.get(self._curr.text if self._curr else "", ())
        if words and self._prev and self._prev.text in ("IS", "NOT") and self._match_text_seq(*words):
            return exp.Var(this=" ".join(words))
        return super()._parse_null()

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        words = self._words_of_type()
        if not words:
            return super()._parse_types(check_func, schema, allow_identifiers, with_collation)
        first = self._curr
        self._advance(words)
        while self._match(TokenType.L_PAREN) or self._match(TokenType.L_BRACKET):
            while not self._match(TokenType.R_PAREN) and not self._match(TokenType.R_BRACKET):
                self._advance()
        kind = exp.Var(this=self._find_sql(first, self._prev))
        return self.expression(exp.DataType(this=exp.DType.USERDEFINED, kind=kind))

    def _parse_type_size(self) -> exp.DataTypeParam | None:
        if not self._match(TokenType.DASH):
            return super()._parse_type_size()
        digits = self._parse_number()  # numeric(5,-2)
        return None if digits is None else self.expression(exp.DataTypeParam(this=exp.Var(this=f"-{digits.name}")))

    def _words_of_type(self) -> int:
        """How many words the name of a type has here, if it is one that sqlglot does not know."""
        texts = [token.text for token in self._tokens[self._index : self._index + 4]]
        if self._curr and self._curr.token_type == TokenType.IDENTIFIER:
            return int(texts[0] == "bit" and self._prev.text in ("::", "AS"))  # of any length, unlike bit
        if texts[:2] == ["bit", "varying"]:
            return 2
        if texts[:1] != ["interval"]:
            return 0
        if texts[1:2] and texts[1] in _FIELDS:
            return 4 if texts[2:3] == ["to"] else 2
        return 1 if texts[1:2] == ["("] else 0

    def _parse_window(self, this: exp.Expr | None, alias: bool = False) -> exp.Expr | None:
        window = super()._parse_window(this, alias)
        if isinstance(window, exp.Window) and not alias and self._prev.token_type == TokenType.R_PAREN:
            parts = {part for part, value in window.args.items() if value}
            window.set(COPIED, "alias" in parts and parts <= {"this", "alias", "over"})
        return window

    def _parse_at_time_zone(self, this: exp.Expr | None) -> exp.Expr | None:
        if self._match_text_seq("AT", "LOCAL"):
            return self.expression(AtLocal(this=this))
        return super()._parse_at_time_zone(this)

    def _parse_unary(self) -> exp.Expr | None:
        if not self._match_pair(TokenType.OPERATOR, TokenType.L_PAREN):
            return super()._parse_unary()
        sign = ""
        while self._curr and not self._match(TokenType.R_PAREN):
            sign += self._curr.text
            self._advance()
        return self.expression(Prefix(this=self._parse_unary(), operator=sign))

    def _parse_join(
        self,
        skip_join_token: bool = False,
        parse_bracket: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
    ) -> exp.Join | None:
        join = super()._parse_join(skip_join_token, parse_bracket, alias_tokens)
        if join is not None and join.args.get("using") and self._match(TokenType.ALIAS):
            join.set(USING_ALIAS, self._parse_id_var())
        return join


class _Generator(PostgresGenerator):
    MULTI_ARG_DISTINCT = True

    def join_sql(self, expression: exp.Join, join_op: str | None = None) -> str:
        alias = self.sql(expression, USING_ALIAS)
        return super().join_sql(expression, join_op) + (f" AS {alias}" if alias else "")

    def cte_sql(self, expression: exp.CTE) -> str:
        clauses = (self.sql(expression, "search"), self.sql(expression, "cycle"))
        return " ".join([super().cte_sql(expression), *filter(None, clauses)])

    def unnest_sql(self, expression: exp.Unnest) -> str:
        return super().unnest_sql(expression) + self._joins_after(expression)

    def lateral_sql(self, expression: exp.Lateral) -> str:
        return super().lateral_sql(expression) + self._joins_after(expression)

    def _joins_after(self, item: exp.Expr) -> str:
        return "".join(self.sql(join) for join in item.args.get("joins") or [])

    def array_sql(self, expression: exp.Array) -> str:
        # brackets, also around a first value that is a subquery; ARRAY(SELECT …) is a call here
        return f"ARRAY[{self.expressions(expression, flat=True)}]"

    def pow_sql(self, expression: exp.Pow) -> str:
        return self.binary(expression, "^")

    def window_sql(self, expression: exp.Window) -> str:
        if expression.args.get(COPIED):
            return f"{self.sql(expression, 'this')} OVER ({self.sql(expression, 'alias')})"
        return super().window_sql(expression)

    def windowspec_sql(self, expression: exp.WindowSpec) -> str:
        if expression.args.get("end"):
            return super().windowspec_sql(expression)
        # a frame up to the current row, which sqlglot would write out
        parts = [*(self.sql(expression, part) for part in ("kind", "start", "start_side")), "EXCLUDE"]
        excluded = self.sql(expression, "exclude")
        return " ".join([*parts, excluded] if excluded else parts[:-1])

    def not_sql(self, expression: exp.Not) -> str:
        # PostgreSQL puts parentheses around the operand of a real NOT; without them it was one operator.
        operand = expression.this
        if isinstance(operand, exp.RegexpLike):
            return self.binary(operand, "!~")
        if isinstance(operand, exp.RegexpILike):
            return self.binary(operand, "!~*")
        if isinstance(operand, exp.Is):
            return f"{self.sql(operand, 'this')} IS NOT {self.sql(operand, 'expression')}"
        return super().not_sql(expression)


def _search(generator: Any, node: Search) -> str:
    kind = "BREADTH" if node.args.get("breadth") else "DEPTH"
    columns = generator.expressions(node, flat=True)
    return f"SEARCH {kind} FIRST BY {columns} SET {generator.sql(node, 'name')}"


def _cycle(generator: Any, node: Cycle) -> str:
    columns, mark, path = (
        generator.expressions(node, flat=True),
        generator.sql(node, "mark"),
        generator.sql(node, "path"),
    )
    value, default = generator.sql(node, "value"), generator.sql(node, "default")
    return f"CYCLE {columns} SET {mark} TO {value} DEFAULT {default} USING {path}"


_Generator.TRANSFORMS = {
    **{node: transform for node, transform in PostgresGenerator.TRANSFORMS.items() if node is not exp.Pow},
    exp.CurrentTime: lambda self, node: "CURRENT_TIME",
    Search: _search,
    Cycle: _cycle,
    Prefix: lambda self, node: f"OPERATOR({node.args['operator']}) {self.sql(node, 'this')}",
    AtLocal: lambda self, node: f"{self.sql(node, 'this')} AT LOCAL",
    SpecialCall: lambda self, node: node.written(self.sql),
}


class ViewText(Postgres):
    """The dialect of `pg_get_viewdef`."""

    Parser = _Parser
    Generator = _Generator


def parse(sql: str) -> exp.Expr:
    """The syntax tree of one query."""
    compile_limits.check_time()
    try:
        tree: exp.Expr = sqlglot.parse_one(special_calls.hidden(operator_syntax.spelled_out(sql)), dialect=ViewText)
    except (SqlglotError, ValueError) as error:
        raise UnknownSyntaxError("part of its syntax is not known") from error
    for node in tree.find_all(exp.Collate):
        node.set("expression", exp.Var(this=text(node.expression)))  # sqlglot takes a collation's name for a column
    for column in list(tree.find_all(exp.Column)):
        if isinstance(column.this, exp.Filter | exp.WithinGroup):
            column.replace(_of_schema(column))
    for argument in tree.find_all(exp.Kwarg):
        argument.set("this", exp.Var(this=text(argument.this)))  # and an argument's
    return tree


def _of_schema(column: exp.Column) -> exp.Expr:
    """s.f(x) WITHIN GROUP (…), which sqlglot takes for a column of s."""
    whole: exp.Expr = column.this
    call = whole
    while isinstance(call, exp.Filter | exp.WithinGroup):
        call = call.this
    call.replace(exp.Dot(this=column.args["table"], expression=call.copy()))
    return whole


def parse_expression(sql: str) -> exp.Expr:
    """The syntax tree of one expression."""
    node: exp.Expr = parse(f"SELECT {sql}").expressions[0]
    return node


def text(node: exp.Expr) -> str:
    """`node` in PostgreSQL's dialect."""
    compile_limits.check_time()
    try:
        return node.sql(dialect=ViewText, normalize_functions=False, comments=False, unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise UnknownSyntaxError("part of its syntax is not known") from error
