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
_NAMES_ROWS = Parser.TABLE_ALIAS_TOKENS - {TokenType.LIMIT, TokenType.OFFSET}
_NAMES_ROWS |= {TokenType.ALIAS, TokenType.IDENTIFIER, TokenType.TABLE_SAMPLE}


def view_calls(text: str, views: Mapping[str, View], dialect: str) -> Iterator[ViewCall]:
    """Yield the calls in the order of the text. Raises QueryError if a string, a name or a call is not closed."""
    try:
        tokens = _TOKENIZERS[dialect].tokenize(text)
    except TokenError as error:
        raise QueryError("a string, a quoted name or a comment does not end: correct the query") from error
    last = -1
    for index, token in enumerate(tokens):
        view = views.get(token.text.lower()) if token.token_type == TokenType.VAR and index > last else None
        if view is None:
            continue
        parts: list[list[Token]] = []
        if _type(tokens, index + 1) == TokenType.L_PAREN:
            last, parts = _read_arguments(view, tokens, index + 1)
        elif not view.required and _is_source(tokens, index):
            last = index
        else:
            continue
        arguments = [_argument(text, part, dialect) for part in parts]
        yield ViewCall(view, token.start, tokens[last].end + 1, arguments, _type(tokens, last + 1) in _NAMES_ROWS)


def _is_source(tokens: list[Token], index: int) -> bool:
    """Return whether a name follows FROM or JOIN and is not that of a CTE."""
    is_cte = any(
        token.text.lower() == tokens[index].text.lower()
        and _type(tokens, place + 1) == TokenType.ALIAS
        and _type(tokens, place + 2) == TokenType.L_PAREN
        for place, token in enumerate(tokens)
    )
    return index > 0 and tokens[index - 1].token_type in (TokenType.FROM, TokenType.JOIN) and not is_cte


def _read_arguments(view: View, tokens: list[Token], opening: int) -> tuple[int, list[list[Token]]]:
    """Return the index of the closing parenthesis, and the tokens of each argument."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for index, token in enumerate(tokens[opening:], start=opening):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0:
            return index, parts if parts != [[]] else []
        if depth == 1 and token.token_type == TokenType.COMMA:
            parts.append([])
        elif index > opening:
            parts[-1].append(token)
    raise QueryError(f"{view.signature} has no closing parenthesis: correct the query")


def _argument(text: str, tokens: list[Token], dialect: str) -> Argument:
    if not tokens:
        return Argument("nothing", (), None)
    sql = " ".join(text[tokens[0].start : tokens[-1].end + 1].split())
    is_string = tokens[-1].token_type == TokenType.STRING and (dialect != "spark" or "\\" not in sql)
    return Argument(sql, tuple(token.text.lower() for token in tokens), tokens[-1].text if is_string else None)


def _type(tokens: list[Token], index: int) -> TokenType | None:
    return tokens[index].token_type if index < len(tokens) else None
