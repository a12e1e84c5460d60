"""Known differences: cases in which XLA:CPU deviates from XLA's documentation and the interpreter does not."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sweeps.case import Case


@dataclass(frozen=True)
class Known:
    """A known difference.

    Attributes:
        opcode: the opcode of its cases.
        element_type: the element type of its cases.
        name: the name of its case; if it ends in "-", the prefix of the names of its cases.
        reason: why the results differ.
    """

    opcode: str
    element_type: str
    name: str
    reason: str

    def covers(self, case: Case) -> bool:
        return (
            case.opcode == self.opcode
            and case.element_type == self.element_type
            and (case.name == self.name or (self.name.endswith("-") and case.name.startswith(self.name)))
        )


KNOWN: tuple[Known, ...] = (
    *(
        Known("convert", "f4e2m1fn", f"to-{t}", "XLA:CPU saturates all finite numbers that are not small")
        for t in ("s4", "s8", "s16", "s32", "s64", "u4", "u8", "u16", "u32", "u64")
    ),
    *(
        Known(op, t, "no-variance-0", "infinite scale: XLA:CPU multiplies and subtracts in another order")
        for op in ("batch-norm-inference", "batch-norm-grad")
        for t in ("f32", "f64")
    ),
    Known("popcnt", "s4", "edges", "XLA:CPU counts the bits of the number extended to 8 bits"),
    Known("power", "f8e8m0fnu", "edges", "XLA:CPU gives NaN if the result is below the smallest number"),
)


def reason(case: Case) -> str | None:
    """Return why a case is known to differ, or None."""
    return next((k.reason for k in KNOWN if k.covers(case)), None)
