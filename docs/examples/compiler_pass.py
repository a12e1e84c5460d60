"""A pass of your own: sinh(x) / cosh(x) becomes tanh(x).

Run it with `python docs/examples/compiler_pass.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import hlogym
from compiler.ir import HloInstruction, Opcode
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import RewritePass, RuleSet

RULES = RuleSet()


@register  # now `hyperbolic-tangent` can be named in pipelines, in plans and by agents
@dataclass(frozen=True)
class HyperbolicTangent(RewritePass):
    """sinh(x) / cosh(x) -> tanh(x). Large x gives 1 instead of infinity / infinity."""

    name: ClassVar[str] = "hyperbolic-tangent"
    rules: ClassVar[RuleSet] = RULES


@RULES.on(Opcode.DIVIDE)  # the driver offers this rule divisions only
def _quotient(i: HloInstruction, b: Builder) -> HloInstruction | None:
    """Return what computes the same value, or None where the rule does not match."""
    sinh, cosh = i.operands
    if sinh.opcode is not Opcode.SINH or cosh.opcode is not Opcode.COSH:
        return None
    if sinh.operands[0] is not cosh.operands[0]:
        return None
    return b.add(Opcode.TANH, sinh.operands[0])


PROGRAM = """
HloModule quotient

ENTRY main {
  x = f32[1000] parameter(0)
  s = f32[1000] sinh(x)
  c = f32[1000] cosh(x)
  ROOT q = f32[1000] divide(s, c)
}
"""


def main() -> None:
    # Passes run in the order given; the verifier checks the module before and after them.
    exe = hlogym.compile(PROGRAM, pipeline=["hyperbolic-tangent", "dce"])
    print(exe.module)
    print("passes in the plan:", exe.plan.passes if exe.plan else ())

    x = np.linspace(-3, 3, 1000, dtype=np.float32)
    (result,) = exe(x)
    np.testing.assert_allclose(result, np.tanh(x), rtol=1e-5)
    print("equal to np.tanh")


if __name__ == "__main__":
    main()
