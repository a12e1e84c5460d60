"""Float normalization: computes narrow float types in a wider one, for targets that lack the narrow type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes

from compiler.errors import OptionError, UnknownNameError
from compiler.ir import HloInstruction, Opcode, PrimitiveType
from compiler.ir.types import BY_TEXT
from compiler.passes.infrastructure.builder import Builder
from compiler.passes.infrastructure.registry import register
from compiler.passes.infrastructure.rewriting import ELEMENTWISE, RewritePass, Rule, RuleSet, RulesOf

_EXACT = frozenset(
    {
        Opcode.COPY, Opcode.SELECT, Opcode.MAXIMUM, Opcode.MINIMUM, Opcode.CLAMP, Opcode.NEGATE, Opcode.ABS,
        Opcode.COMPARE, Opcode.CONVERT, Opcode.REDUCE_PRECISION, Opcode.MAP, Opcode.STOCHASTIC_CONVERT,
        Opcode.SIGN, Opcode.IS_FINITE, Opcode.REAL, Opcode.IMAG, Opcode.FLOOR, Opcode.CEIL,
    }
)  # fmt: skip


@register
@dataclass(frozen=True)
class FloatNormalization(RewritePass):
    """Convert the operands of elementwise arithmetic in the type `narrow` to `wide`, and the result back.

    Every op still rounds to the narrow type, so results differ by at most one rounding. Ops that do not round (select,
    maximum, negate...) are kept.

    Attributes:
        narrow: the type to avoid.
        wide: the type to compute in.
    """

    name: ClassVar[str] = "float-normalization"
    rules: ClassVar[RuleSet] = RuleSet()
    narrow: str = "bf16"
    wide: str = "f32"

    def __post_init__(self) -> None:
        super().__post_init__()
        narrow, wide = (ml_dtypes.finfo(t.dtype) for t in self._types())  # type: ignore[no-untyped-call]
        # With a type that is not wider, results would change, or the rewrite would never terminate.
        if wide.nmant <= narrow.nmant or wide.max <= narrow.max:
            raise OptionError(
                f"option wide of pass {self.name!r} must be a type that holds more than {self.narrow}, not {self.wide}"
            )

    def _types(self) -> tuple[PrimitiveType, PrimitiveType]:
        return _float_type(self.narrow), _float_type(self.wide)

    def rules_of(self) -> RulesOf:
        """Return the rules of the pass."""
        narrow, wide = self._types()

        def widen(i: HloInstruction, b: Builder) -> HloInstruction | None:
            if i.shape.element_type is not narrow or not i.operands:
                return None
            operands = [b.convert(o, wide) if o.shape.element_type is narrow else o for o in i.operands]
            return b.convert(b.with_operands(i, operands, i.shape.with_type(wide)), narrow)

        rule: list[Rule] = [widen]
        return lambda op: rule if op in ELEMENTWISE and op not in _EXACT else ()


def _float_type(text: str) -> PrimitiveType:
    found = BY_TEXT.get(text)
    if found is None or not found.is_float:
        raise UnknownNameError("float type", text, [t.text for t in PrimitiveType if t.is_float])
    return found
