"""Calls of views in the text of a query, found with sqlglot's tokenizer.

The query is not parsed and generated again, so syntax that sqlglot does not know reaches the engine unchanged.
sqlglot takes longer to import than most queries to run: `views.expand` imports this module only for queries that
name a view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token, TokenType
from sqlglot.tokens import Tokenizer

from grouptrail.contracts import View
from grouptrail.query.errors import QueryError


@dataclass(frozen=True)
class Argument:
    """An argument of a call: its SQL, its tokens in lower case, and the value of its last token if that is a string.

    A string with a backslash has no value in Spark's dialect, where a session's settings decide what it means.
    """

    sql: str
    words: tuple[str, ...]
    string: str | None


@dataclass(frozen=True)
class ViewCall:
    """A call of a view at `text[start:end]`; `has_alias` if the query itself names its rows."""

    view: View
    start: int
    end: int
    arguments: list[Argument]
    has_alias: bool


class _DataFusionTokenizer(Tokenizer):
    """DataFusion's generic dialect: names also in backticks, E'...' and $tag$...$tag$ strings."""

    IDENTIFIERS: ClassVar = ['"', "`"]
    BYTE_STRINGS: ClassVar = [("e'", "'"), ("E'", "'")]
    BYTE_STRING_ESCAPES: ClassVar = ["'", "\\"]
    SINGLE_TOKENS = Tokenizer.SINGLE_TOKENS | {"$": TokenType.HEREDOC_STRING}
    HEREDOC_STRINGS: ClassVar = ["$"]
    HEREDOC_TAG_IS_IDENTIFIER = True
    HEREDOC_STRING_ALTERNATIVE = TokenType.PARAMETER
    COMMENTS_TERMINATE_AT_NEWLINE_ONLY = True
    COMMANDS: ClassVar[set[TokenType]] = set()
    KEYWORDS = Tokenizer.KEYWORDS | {"MINUS": TokenType.EXCEPT}


class _SparkTokenizer(Spark.Tokenizer):
    """Spark SQL with double-quoted identifiers, where '' in a string is a quote, as since Spark 4.0."""

    QUOTES: ClassVar = ["'"]
    IDENTIFIERS: ClassVar = ["`", '"']
    STRING_ESCAPES: ClassVar = ["\\", "'"]
    COMMANDS: ClassVar[set[TokenType]] = set()


_TOKENIZERS = {"datafusion": _DataFusionTokenizer(), "spark": _SparkTokenizer(Spark)}
# sqlglot's parser decides by what follows whether LIMIT and OFFSET are aliases; the engines never take them for one.
# Spark wants TABLESAMPLE before an alias.
_NAMES_ROWS = Parser.TABLE_ALIAS_TOKENS - {TokenType.LIMIT, TokenType.OFFSET} | {
    TokenType.ALIAS,
    TokenType.IDENTIFIER,
    TokenType.TABLE_SAMPLE,
}


def view_calls(text: str, views: Mapping[str, View], dialect: str) -> Iterator[ViewCall]:
    """Yield the calls in the order of the text. Raises QueryError if a string, a name or a call is not closed."""
    try:
        tokens = _TOKENIZERS[dialect].tokenize(text)
    except TokenError as error:
        raise QueryError("a string, a quoted name or a comment does not end: correct the query") from error
    index = 0
    while index < len(tokens):
        view = views.get(tokens[index].text.lower()) if tokens[index].token_type == TokenType.VAR else None
        last = _last_of_call(view, tokens, index) if view else None
        if view is not None and last is not None:
            yield ViewCall(
                view=view,
                start=tokens[index].start,
                end=tokens[last].end + 1,
                arguments=[_argument(text, part, dialect) for part in _split_at_commas(tokens[index + 2 : last])],
                has_alias=_type(tokens, last + 1) in _NAMES_ROWS,
            )
            index = last
        index += 1


def _last_of_call(view: View, tokens: list[Token], index: int) -> int | None:
    """Return the index of the call's last token; None if the name there is no call."""
    if _type(tokens, index + 1) == TokenType.L_PAREN:
        return _closing_parenthesis(view, tokens, index + 1)
    is_source = index > 0 and tokens[index - 1].token_type in (TokenType.FROM, TokenType.JOIN)
    is_cte = any(
        token.text.lower() == view.name
        and _type(tokens, place + 1) == TokenType.ALIAS
        and _type(tokens, place + 2) == TokenType.L_PAREN
        for place, token in enumerate(tokens)
    )
    return index if is_source and not view.required and not is_cte else None


def _closing_parenthesis(view: View, tokens: list[Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        depth += _depth_change(tokens[index])
        if depth == 0:
            return index
    raise QueryError(f"{view.signature} has no closing parenthesis: correct the query")


def _split_at_commas(tokens: list[Token]) -> list[list[Token]]:
    """Split the tokens between a call's parentheses; no tokens are no arguments."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += _depth_change(token)
        if depth == 0 and token.token_type == TokenType.COMMA:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if tokens else []


def _argument(text: str, tokens: list[Token], dialect: str) -> Argument:
    if not tokens:
        return Argument("nothing", (), None)
    sql = " ".join(text[tokens[0].start : tokens[-1].end + 1].split())
    is_string = tokens[-1].token_type == TokenType.STRING and (dialect != "spark" or "\\" not in sql)
    string = tokens[-1].text if is_string else None
    return Argument(sql, tuple(token.text.lower() for token in tokens), string)


def _depth_change(token: Token) -> int:
    return (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)


def _type(tokens: list[Token], index: int) -> TokenType | None:
    return tokens[index].token_type if index < len(tokens) else None
