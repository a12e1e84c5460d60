"""HLO text in: the scanner, the parser, and literals."""

from compiler.text.parser import parse as parse
