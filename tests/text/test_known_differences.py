"""Where jaxlib's parser is known to read another program than the text says; a change there shows here."""

import numpy as np
import pytest
from jax._src.lib import hlo  # type: ignore[attr-defined]  # no public name parses HLO text

from compiler.text import parse


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_jaxlib_copies_a_nan_real_part_into_the_imaginary_part(dtype: type[np.generic]) -> None:
    """XLA's `hlo_parser.cc` hands the real part to its treatment of NaN for both parts of a complex literal."""
    kind = "c64" if dtype is np.complex64 else "c128"
    text = f"HloModule m\nENTRY e {{\n ROOT c = {kind}[2] constant({{(nan, 0), (0, nan)}})\n}}"
    value = parse(text).entry.root.value.value
    assert np.isnan(value[0].real) and value[0].imag == 0 and value[1].real == 0 and np.isnan(value[1].imag)
    assert "{(nan, nan), (0, nan)}" in hlo.hlo_module_from_text(text).to_string().replace("{ ", "{").replace(" }", "}")
    assert "(nan, 0)" in str(parse(text))
