"""XLA's fusion passes, rule by rule: instruction fusion, fusion merger, multi-output and horizontal fusion.

Each rule is a function that returns the reason against a fusion, or None, and names the pass of XLA that has it. A
strategy is a pass: an order of candidates and the rules that it asks. The rules are preferences; what is legal at all
is decided by `FusionState`, not by a policy.
"""

from __future__ import annotations

from compiler.fusion.policies.xla.fusion_merger import FusionMerger
from compiler.fusion.policies.xla.horizontal_fusion import HorizontalFusion
from compiler.fusion.policies.xla.instruction_fusion import InstructionFusion
from compiler.fusion.policies.xla.multi_output_fusion import MultiOutputFusion

__all__ = ["FusionMerger", "HorizontalFusion", "InstructionFusion", "MultiOutputFusion"]
