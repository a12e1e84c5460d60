"""Scaling of fusion: processor time per instruction for programs of 100 to 5,000 instructions.

python -m experiments.benchmarks.fusion_scaling [--policy default] [--sizes 100 500 1000 5000]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from compiler.fusion.policies import make_policy
from compiler.fusion.protocol import run_policy
from compiler.fusion.state import FusionState
from compiler.ir import HloComputation, HloInstruction, HloModule, Opcode, PrimitiveType, Shape
from experiments.module_command import plain_errors

OPS = (Opcode.ADD, Opcode.MULTIPLY, Opcode.SUBTRACT, Opcode.MAXIMUM)


def layered_module(size: int, seed: int = 0) -> HloModule:
    """Return a module of about `size` elementwise instructions, each of which reads two of the last eight values.

    A custom call after every hundred instructions prevents fusion across it.
    """
    rng = np.random.default_rng(seed)
    module = HloModule(f"layers_{size}")
    c = module.add(HloComputation("main"), entry=True)
    values: list[HloInstruction] = [c.add_parameter(n, Shape(PrimitiveType.F32, (64, 64))) for n in range(4)]
    while len(c) < size:
        a, b = (values[-1 - int(k)] for k in rng.integers(min(8, len(values)), size=2))
        values.append(c.add(OPS[int(rng.integers(len(OPS)))], [a, b]))
        if len(c) % 100 == 0:
            values.append(c.add(Opcode.CUSTOM_CALL, [values[-1]], values[-1].shape, custom_call_target="wall"))
            values = values[-1:] + values[:4] + values[-1:]
    c.root = c.add(Opcode.TUPLE, [v for v in c.instructions if not v.users and v.opcode is not Opcode.PARAMETER])
    return module


def measure(size: int, policy: str) -> tuple[int, float, float]:
    """Return the number of fusions, and the processor seconds of the policy and of listing the first actions."""
    module = layered_module(size)
    start = time.process_time()
    state = FusionState(module)
    state.actions()
    listed = time.process_time()
    run_policy(state, make_policy(policy))
    return len(state.history), time.process_time() - listed, listed - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="default", help="name of a fusion policy (default: %(default)s)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 500, 1000, 2000, 5000], help="numbers of instructions"
    )
    args = parser.parse_args()
    print(f"{'instructions':>12} {'fusions':>8} {'policy s':>8} {'us/instr':>9} {'list s':>8}")
    for size in args.sizes:
        fusions, seconds, listing = measure(size, args.policy)
        print(f"{size:>12} {fusions:>8} {seconds:>8.2f} {1e6 * seconds / size:>9.0f} {listing:>8.3f}")


if __name__ == "__main__":
    with plain_errors():
        main()
