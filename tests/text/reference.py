"""jaxlib's HLO parser, the reference for ours."""

from __future__ import annotations

from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

from compiler.ir import HloModule
from compiler.text import parse


def reprint(text: str) -> str:
    """Return HLO text as XLA prints it after parsing; raise XLA's error if it cannot parse it."""
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    printed: str = hlo.hlo_module_from_text(text).to_string(options)
    return printed


def assert_round_trip(text: str) -> HloModule:
    """Check that printing and parsing round-trips, here and through XLA's parser and printer."""
    module = parse(text)
    printed = str(module)
    assert str(parse(printed)) == printed
    # This jaxlib does not support tuple elements written as `t#1`.
    for given in (printed,) if "#" in text else (text, printed):
        theirs = parse(reprint(given))
        assert theirs.fingerprint() == module.fingerprint(), f"XLA reads another program in:\n{given}"
    return module
