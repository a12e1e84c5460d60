"""Shape rules: functions from operand shapes and attributes to the result shape, one per kind of op.

A rule returns the inferred shape or raises ShapeError with what it expected. If the result does not follow from the
operands (reshape, iota, custom-call...), it checks and returns the declared shape. The rules are in one file per
family of ops; this module re-exports them for the opcode table. Source: XLA's `xla/service/shape_inference.cc` and the
additional checks of `xla/service/hlo_verifier.cc`.
"""

from compiler.ir.shape_query import ShapeQuery as ShapeQuery
from compiler.ir.shape_query import ShapeRule as ShapeRule
from compiler.ir.shape_query import Signature as Signature
from compiler.ir.shape_query import declared as declared
from compiler.ir.shape_rules_control import *  # noqa: F403
from compiler.ir.shape_rules_elementwise import *  # noqa: F403
from compiler.ir.shape_rules_linalg import *  # noqa: F403
from compiler.ir.shape_rules_movement import *  # noqa: F403
from compiler.ir.shape_rules_reduce import *  # noqa: F403
