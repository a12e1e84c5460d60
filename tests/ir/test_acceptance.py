"""The verifier accepts what XLA accepts: real programs as lowered by JAX and as optimized by XLA."""

from typing import Any

import pytest
from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name prints HLO with all its constants

from compiler.ir.verifier import check_module
from compiler.text import parse
from tests.jax_programs import PROGRAMS, program_text
from tests.oracle import compile_xla
from tests.text.reference import reprint

NAMES = sorted(PROGRAMS)
SOME = NAMES[::10]


def check(name: str) -> None:
    """Both programs are valid; the optimized one survives a round trip through our parser and XLA's."""
    lowered, _ = program_text(name)
    assert check_module(parse(lowered)) == []
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    module = parse(compile_xla(lowered).executable.hlo_modules()[0].to_string(options))
    assert check_module(module) == []
    printed = str(module)
    assert str(parse(printed)) == printed
    assert parse(reprint(printed)).fingerprint() == module.fingerprint()


@pytest.mark.parametrize("name", SOME)
def test_programs_before_and_after_xla(name: Any) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in SOME])
def test_all_programs_before_and_after_xla(name: Any) -> None:
    check(name)
