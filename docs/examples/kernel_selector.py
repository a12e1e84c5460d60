"""A kernel selector of your own: time a few schedules of every kernel and keep the fastest.

Run it with `python docs/examples/kernel_selector.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import hlogym
from compiler.ir import HloInstruction, HloModule

PROGRAM = """
HloModule transposes

ENTRY main {
  x = f32[1024,1024] parameter(0)
  y = f32[1024,1024] parameter(1)
  t = f32[1024,1024] transpose(x), dimensions={1,0}
  s = f32[1024,1024] add(t, y)
  ROOT r = f32[1024,1024] tanh(s)
}
"""


@dataclass(frozen=True)
class OneTile:
    """Choose one tile for every kernel: the edge of the squares that a transpose is cut into."""

    tile: int

    def choose_kernel(self, instruction: HloInstruction, module: HloModule) -> Mapping[str, int]:
        """Return the fields of the schedule that differ from the defaults."""
        return {"tile": self.tile}


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(1024, 1024)).astype(np.float32) for _ in range(2))

    times: dict[int, float] = {}
    for tile in (0, 8, 16, 32, 64):  # 0: no tiles
        exe = hlogym.compile(PROGRAM, kernel_selector=OneTile(tile))
        (result,) = exe(x, y)
        # A schedule changes how a kernel runs and never what it computes.
        np.testing.assert_allclose(result, np.tanh(x.T + y), rtol=1e-5, atol=1e-6)
        # The best of a few calls, because other processes only ever make a call slower.
        times[tile] = min(exe.benchmark([x, y]))
        print(f"tile {tile:2d}: {times[tile] * 1e6:8.1f} us")

    best = min(times, key=times.__getitem__)
    plan = hlogym.compile(PROGRAM, kernel_selector=OneTile(best)).plan
    print(f"fastest here: tile {best}; the plan records it:", plan.kernels if plan else {})


if __name__ == "__main__":
    main()
