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
from compiler.ir import Opcode
from env.suites import find_program, random_inputs


@dataclass(frozen=True)
class SmallKernels:
    """Fuse the pair that saves most time by the cost model, up to `limit` instructions per kernel.

    A policy sees legal actions only, so the program is correct whatever it chooses.
    """

    limit: int = 8

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return the next fusion, or None to stop."""
        # Other kinds join siblings, or duplicate a producer into all its users.
        actions = state.actions(kinds=["producer-consumer"])
        small = [a for a in actions if self._size(state, a) <= self.limit]
        best = max(small, key=state.estimate, default=None)
        return best if best is not None and state.estimate(best) > 0 else None

    def _size(self, state: FusionState, action: FusionAction) -> int:
        """Return how many instructions the fused kernel would hold."""
        size = 0
        for name in (action.producer, action.consumer):
            i = state.find(action.computation, name)
            # A fusion that exists already counts with all the instructions of its body.
            size += len(i.attributes["calls"].instructions) if i.opcode is Opcode.FUSION else 1
        return size


def main() -> None:
    program = find_program("layer_norm_forward")
    module = hlogym.parse(program.text())
    arrays = random_inputs(program, [(s.dtype, s.dimensions) for s in module.parameter_shapes], seed=0)

    # The interpreter defines what the program computes; every compiled version is compared with it.
    (expected,) = hlogym.compile(module, backend="interpreter")(*arrays)
    policies: list[FusionPolicy | str] = ["none", SmallKernels(), "default"]
    for policy in policies:
        exe = hlogym.compile(module, fusion_policy=policy)
        (result,) = exe(*arrays)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        # The best of a few calls, because other processes only ever make a call slower.
        seconds = min(exe.benchmark(arrays))
        print(f"{policy!s:24s}  {len(exe.kernels):2d} kernels  {seconds * 1e6:8.1f} us per call")


if __name__ == "__main__":
    main()
