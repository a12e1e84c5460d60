"""Colours for HLO text in listings."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.lexers import LEXERS
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

__all__ = ["HloLexer"]  # Pygments takes everything named here for a lexer


class HloLexer(RegexLexer):  # type: ignore[misc]
    """HLO text: comments, types, names, opcodes, attributes."""

    name = "HLO"
    aliases: ClassVar[list[str]] = ["hlo"]
    filenames: ClassVar[list[str]] = ["*.hlo"]
    tokens: ClassVar[dict[str, list[tuple[object, ...]]]] = {
        "root": [
            (r"//.*$", Comment.Single),
            (r"/\*.*?\*/", Comment.Multiline),
            (r"\b(HloModule|ENTRY|ROOT)\b", Keyword),
            (r"\b(?:pred|[su](?:1|2|4|8|16|32|64)|f(?:16|32|64)|bf16|f8\w+|c64|c128|token)(?=\[)", Keyword.Type),
            (r'"[^"]*"', String),
            (r"%[\w.-]+", Name.Variable),
            (r"[\w-]+(?==[^ =])", Name.Attribute),
            (r"[a-z][a-z0-9-]*(?=\()", Name.Function),
            (r"-?\b\d[\w.+-]*", Number),
            (r"[\w.-]+", Name),
            (r"->|=", Operator),
            (r"[{}()\[\],:<>]", Punctuation),
            (r"\s+", Text),
            (r".", Text),
        ]
    }


def register_lexer() -> None:
    """Make the lexer known to Pygments under its alias, for this process."""
    LEXERS["HloLexer"] = (__name__, HloLexer.name, tuple(HloLexer.aliases), tuple(HloLexer.filenames), ())
