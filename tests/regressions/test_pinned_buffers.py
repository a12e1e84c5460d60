"""Pinning one value twice gives two buffers, which no pass may merge."""

from compiler.ir.verifier import check_module
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.text import parse

TEXT = """
HloModule m
ENTRY e {
  x = f32[8] parameter(0)
  a = b(f32[8]) custom-call(x), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}
  b = b(f32[8]) custom-call(x), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}
  c = b(f32[8]) custom-call(a), custom_call_target="fill", output_to_operand_aliasing={{}: (0, {})}
  d = b(f32[8]) custom-call(b), custom_call_target="scale", output_to_operand_aliasing={{}: (0, {})}
  e = f32[8] custom-call(c), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}
  f = f32[8] custom-call(d), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}
  ROOT g = f32[8] add(e, f)
}
"""


def test_cse_does_not_merge_equal_pins() -> None:
    module = parse(TEXT)
    assert check_module(module) == []
    assert not make_pass("cse").run(module)


def test_the_default_pipeline_leaves_a_valid_module() -> None:
    module = parse(TEXT)
    default_pipeline().run(module)
    assert check_module(module) == []
