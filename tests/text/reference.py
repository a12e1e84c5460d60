"""jaxlib's HLO parser, the reference that ours is held against."""

from __future__ import annotations

from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

from compiler.ir import HloModule
from compiler.text import parse


def reprint(text: str) -> str:
    """What XLA prints of a text it has read; its error when it cannot read it."""
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    printed: str = hlo.hlo_module_from_text(text).to_string(options)
    return printed


def assert_round_trip(text: str) -> HloModule:
    """Our print reads back as itself, XLA reads it, and what XLA prints of it is the same program to us."""
    module = parse(text)
    printed = str(module)
    assert str(parse(printed)) == printed
    # Short elements (`t#1`) are newer than this jaxlib.
    for given in (printed,) if "#" in text else (text, printed):
        theirs = parse(reprint(given))
        assert theirs.fingerprint() == module.fingerprint(), f"XLA reads another program in:\n{given}"
    return module
