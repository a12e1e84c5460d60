"""Shape rules: from operand shapes and attributes to the result shape, one small function a kind of op.

A rule returns the inferred shape or raises ShapeError saying what was expected. Ops whose result does not follow
from their operands (reshape, iota, custom-call...) check the declared shape and return it. The rules stand in files by
family; this one names them all, for the table of ops. Source: XLA's `xla/service/shape_inference.cc`, and what
`xla/service/hlo_verifier.cc` adds to it.
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
