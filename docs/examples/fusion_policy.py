"""A fusion policy of your own: fuse what saves most, but keep every kernel small.

Run it with `python docs/examples/fusion_policy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hlogym
from compiler.fusion.actions import FusionAction
from compiler.fusion.protocol import FusionPolicy
from compiler.fusion.state import FusionState
from env.suites import find_program, random_inputs


@dataclass(frozen=True)
class SmallKernels:
    """Fuse the pair that saves most time by the cost model, unless the kernel would exceed `limit` instructions.

    A policy sees legal actions only, so whatever it chooses is a correct program. Preference is all it adds.
    """

    limit: int = 8

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next fusion, or None to stop."""
        # Other kinds join siblings or duplicate a producer into all its users; this policy needs only the plain one.
        actions = state.actions(kinds=["producer-consumer"])
        worthwhile = [a for a in actions if state.estimate(a) > 0 and self._size(state, a) <= self.limit]
        return max(worthwhile, key=state.estimate, default=None)

    def _size(self, state: FusionState, action: FusionAction) -> int:
        """Return how many instructions the fused kernel would hold."""
        pair = [state.find(action.computation, name) for name in (action.producer, action.consumer)]
        # A fusion that exists already counts with all the instructions of its body.
        return sum(len(i.attributes["calls"].instructions) if i.opcode.text == "fusion" else 1 for i in pair)


def main() -> None:
    program = find_program("layer_norm_forward")
    module = hlogym.parse(program.text())
    arrays = random_inputs(program, [(s.dtype, s.dimensions) for s in module.parameter_shapes], seed=0)

    # The interpreter defines what the program computes; every compiled version is compared with it.
    (expected,) = hlogym.compile(module, backend="interpreter")(*arrays)
    policies: dict[str, FusionPolicy | str] = {"none": "none", "small kernels": SmallKernels(), "default": "default"}
    for name, policy in policies.items():
        exe = hlogym.compile(module, fusion_policy=policy)
        (result,) = exe(*arrays)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        # The best of a few calls, because other processes only ever make a call slower.
        print(f"{name:14s} {len(exe.kernels):2d} kernels  {min(exe.benchmark(arrays)) * 1e6:8.1f} us per call")


if __name__ == "__main__":
    main()
