"""The IR: shapes, literals, the opcode table, instructions, computations and modules, and their shape rules."""

from compiler.ir.computation import HloComputation as HloComputation
from compiler.ir.instruction import HloInstruction as HloInstruction
from compiler.ir.literal import Literal as Literal
from compiler.ir.module import HloModule as HloModule
from compiler.ir.opcodes import Opcode as Opcode
from compiler.ir.opcodes import Trait as Trait
from compiler.ir.shape import Layout as Layout
from compiler.ir.shape import Shape as Shape
from compiler.ir.types import PrimitiveType as PrimitiveType
