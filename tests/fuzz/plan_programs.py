"""Programs whose plans are mutated, each with several plans that contain all kinds of decisions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import PlanError
from compiler.fusion.policies import RandomFusion, make_policy
from compiler.loops import KernelLoops, LoopPolicy, UnrollLoops
from compiler.plan import CompilationPlan
from compiler.session import CompilationSession
from compiler.text import parse
from env.reference import Reference
from tests.passes.programs import program_inputs, program_text

Array = npt.NDArray[Any]

# Large dimensions, so that all sizes of tiles and columns apply; and loops that can become one kernel.
WIDE = """
HloModule wide
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY main {
  x = f32[70,600] parameter(0)
  w = f32[600,70] parameter(1)
  zero = f32[] constant(0)
  t = f32[600,70] transpose(x), dimensions={1,0}
  m = f32[600,70] multiply(t, w)
  c = f32[600] reduce(m, zero), dimensions={1}, to_apply=add
  s = f32[70,600] exponential(x)
  d = f32[600] reduce(s, zero), dimensions={0}, to_apply=add
  e = f32[600] add(c, d)
  b = f32[70,600] broadcast(e), dimensions={1}
  n = f32[70,600] subtract(x, b)
  ROOT r = (f32[70,600], f32[600], f32[600,70]) tuple(n, e, m)
}
"""
LOOPS = """
HloModule loops
small { p = (s32[], f32[900]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(11)
  ROOT c = pred[] compare(i, n), direction=LT }
inner { p = (s32[], f32[900]) parameter(0) i = s32[] get-tuple-element(p), index=0
  x = f32[900] get-tuple-element(p), index=1 one = s32[] constant(1) j = s32[] add(i, one)
  y = f32[900] sine(x) z = f32[900] add(y, x) ROOT r = (s32[], f32[900]) tuple(j, z) }
outer { p = (s32[], f32[900]) parameter(0) i = s32[] get-tuple-element(p), index=0
  x = f32[900] get-tuple-element(p), index=1 one = s32[] constant(1) j = s32[] add(i, one)
  zero = s32[] constant(0) t = (s32[], f32[900]) tuple(zero, x)
  w = (s32[], f32[900]) while(t), condition=small, body=inner
  y = f32[900] get-tuple-element(w), index=1 v = f32[900] cosine(y) ROOT r = (s32[], f32[900]) tuple(j, v) }
yes { x = f32[900] parameter(0) ROOT y = f32[900] tanh(x) }
no { x = f32[900] parameter(0) s = f32[900] sine(x) u = f32[900] multiply(s, x) ROOT y = f32[900] negate(u) }
ENTRY main {
  x = f32[900] parameter(0) q = pred[] parameter(1) zero = s32[] constant(0)
  t = (s32[], f32[900]) tuple(zero, x)
  a = (s32[], f32[900]) while(t), condition=small, body=outer
  f = f32[900] get-tuple-element(a), index=1
  u = (s32[], f32[900]) tuple(zero, f)
  b = (s32[], f32[900]) while(u), condition=small, body=inner
  g = f32[900] get-tuple-element(b), index=1
  ROOT c = f32[900] conditional(q, g, g), true_computation=yes, false_computation=no
}
"""
PROGRAMS = ("wide", "loops", "softmax", "layer_norm_backward", "cartpole_split", "swiglu")


@dataclass(frozen=True)
class PlanProgram:
    """A program with inputs, the interpreter's results and plans."""

    name: str
    text: str
    inputs: tuple[Array, ...]
    wanted: Reference
    plans: tuple[CompilationPlan, ...]


@cache
def plan_program(name: str) -> PlanProgram:
    """Return a program by name."""
    if name in ("wide", "loops"):
        text, rng = {"wide": WIDE, "loops": LOOPS}[name], np.random.default_rng(5)
        shapes = parse(text).parameter_shapes
        inputs = tuple((rng.standard_normal(s.dimensions) > 0).astype(bool) if s.dtype == bool
                       else rng.standard_normal(s.dimensions).astype(s.dtype) for s in shapes)  # fmt: skip
    else:
        text, inputs = program_text(name), program_inputs(name)
    wanted = Reference.of(parse(text), inputs)
    return PlanProgram(name, text, inputs, wanted, tuple(_plans(text)))


def _plans(text: str) -> list[CompilationPlan]:
    loops: tuple[LoopPolicy, ...] = (KernelLoops(), UnrollLoops(2), UnrollLoops(0))
    found = []
    for seed, policy in enumerate(loops):
        session = CompilationSession(parse(text), backend="cpu" if seed != 2 else "interpreter")
        session.run_passes(None if seed == 0 else ["call-inliner", "tuple-simplifier", "cse", "dce"])
        session.run_loop_policy(policy)
        fusing = make_policy("default") if seed == 0 else RandomFusion(seed, max_actions=12)
        session.run_fusion_policy(fusing)
        _choose_kernels(session, np.random.default_rng(seed))
        found.append(session.plan)
    return found


def _choose_kernels(session: CompilationSession, rng: np.random.Generator) -> None:
    """Set random choices for the kernels of a session."""
    for site in session.kernel_sites():
        try:
            session.set_kernel(site, int(rng.integers(site.choices.size)))
        except PlanError:
            continue  # the choice is not valid for this kernel
