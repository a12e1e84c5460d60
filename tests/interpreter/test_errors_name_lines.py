"""Errors of evaluation name the instruction and its line in the source."""

import numpy as np
import pytest

from compiler import HlogymError, compile


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_an_unknown_custom_call_is_named_with_its_line(backend: str) -> None:
    text = """HloModule m
ENTRY e {
  a = f32[2] parameter(0)
  b = f32[2] negate(a)
  ROOT c = f32[2] custom-call(b), custom_call_target="nobody_knows"
}"""
    with pytest.raises(HlogymError, match=r"(?s)%c .*line 5.*'nobody_knows'.*register_custom_call"):
        compile(text, backend=backend)(np.zeros(2, np.float32))
