"""Programs for several devices: what compiles for one device, and what is refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import compile
from compiler.errors import UnsupportedError

PROGRAM = """
HloModule m, replica_count={replicas}, num_partitions={partitions}
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}
ENTRY main {{
  p = f32[8] parameter(0)
  s = f32[8] custom-call(p), custom_call_target="Sharding", sharding={{replicated}}
  two = f32[8] add(s, s)
  {op}
  end = f32[8] custom-call(r), custom_call_target="xla.sdy.FuncResultSharding"
  ROOT t = f32[8] negate(end)
}}
"""
SUM = "r = f32[8] all-reduce(two), to_apply=add, replica_groups={groups}"
GLOBAL = "r = f32[8] all-reduce(two), to_apply=add, channel_id=1, use_global_device_ids=true, replica_groups={groups}"


def program(op: str, replicas: int = 1, partitions: int = 1) -> str:
    return PROGRAM.format(op=op, replicas=replicas, partitions=partitions)


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize(
    "text",
    [
        program("r = f32[8] copy(two)", partitions=8),
        program(SUM.format(groups="{{0}}")),
        program(SUM.format(groups="{}")),
        program(SUM.format(groups="{{0},{1}}"), replicas=2),
        program(GLOBAL.format(groups="{{0},{1}}"), partitions=2),
    ],
)
def test_what_needs_no_other_device_runs_on_one(text: str, backend: str) -> None:
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(compile(text, backend=backend)(x)[0], -2 * x)


def test_shardings_leave_nothing_to_the_interpreter() -> None:
    (kernel,) = compile(program("r = f32[8] copy(two)", partitions=8)).kernels
    assert len(kernel.inputs) == 1


PARTITIONED = """
HloModule m, num_partitions=2
ENTRY main {
  p = f32[8] parameter(0)
  r = f32[4] custom-call(p), custom_call_target="SPMDFullToShardShape", sharding={manual}
  ROOT t = f32[4] negate(r)
}
"""


@pytest.mark.parametrize("backend", ["cpu", "cuda", "interpreter"])
@pytest.mark.parametrize(
    ("text", "opcode"),
    [
        (program(SUM.format(groups="{{0,1}}"), replicas=2), "all-reduce"),
        (program(SUM.format(groups="{}"), replicas=2), "all-reduce"),
        (program(GLOBAL.format(groups="{{0,1}}"), partitions=2), "all-reduce"),
        (program("r = f32[8] collective-permute(two), source_target_pairs={{0,1}}", 2), "collective-permute"),
        (program("i = u32[] partition-id()\n f = f32[] convert(i)\n r = f32[8] broadcast(f), dimensions={}", 1, 2),
         "partition-id"),
        (PARTITIONED, "SPMDFullToShardShape"),
    ],
)  # fmt: skip
def test_what_needs_other_devices_is_refused(text: str, opcode: str, backend: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"%[ir] \({opcode} of shape .* needs other devices: .* for 2 devices"):
        compile(text, backend=backend)
