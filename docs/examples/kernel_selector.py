"""A kernel selector of your own: a rule in a few lines, and all choices of a kernel timed one by one.

Run it with `python docs/examples/kernel_selector.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hlogym

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
class Always:
    """Make the same choice for every kernel. A selector is an object like this one, or a function of the site."""

    choice: hlogym.KernelChoice

    def choose_kernel(self, site: hlogym.KernelSite) -> hlogym.KernelChoice:
        """Return the choice."""
        return self.choice


def small_tiles(site: hlogym.KernelSite) -> hlogym.KernelChoice:
    """Choose tiles of 8 by 8 where a kernel has tiles, and the default elsewhere."""
    choice = hlogym.KernelChoice(schedule={"tile": 8})
    return choice if choice in site.choices else site.default


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(1024, 1024)).astype(np.float32) for _ in range(2))
    sites: list[hlogym.KernelSite] = []

    def note(site: hlogym.KernelSite) -> hlogym.KernelChoice:
        sites.append(site)
        return site.default

    hlogym.compile(PROGRAM, kernel_selector=note)
    (site,) = sites  # the three instructions became one kernel
    print(site)
    tiles = [c for c in site.choices[: site.choices.nearest] if set(c.schedule) <= {"tile"}]
    for choice in tiles:
        exe = hlogym.compile(PROGRAM, kernel_selector=Always(choice))
        (result,) = exe(x, y)
        # A choice changes how a kernel runs and never what it computes.
        np.testing.assert_allclose(result, np.tanh(x.T + y), rtol=1e-5, atol=1e-6)
        # The best of a few calls, because other processes only ever make a call slower.
        print(f"{choice!s:20} {min(exe.benchmark([x, y])) * 1e6:8.1f} us")

    plan = hlogym.compile(PROGRAM, kernel_selector=small_tiles).plan
    print("the plan records", plan.to_dict()["kernels"] if plan else {})


if __name__ == "__main__":
    main()
