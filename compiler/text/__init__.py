"""The parser of HLO text."""

from compiler.text.parser import parse as parse
