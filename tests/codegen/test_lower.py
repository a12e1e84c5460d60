"""C kernels of fused computations against the interpreter: every kind of kernel, and random computations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen import buildability
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.ir import HloComputation, Opcode
from compiler.ir.module import HloModule
from compiler.ir.verifier import verify
from env.reference import Reference
from tests.codegen import fusions, running
from tests.codegen.random_fusions import as_module, random_fusion

SCHEDULES = (
    Schedule(),
    Schedule(tile=0),
    Schedule(tile=16, columns=16),
    Schedule(tile=16, across=40, walk=1, flags=2),
    Schedule(tile=48, across=8, flags=5),
    Schedule(tile=64, columns=100, lanes=32),
    Schedule(vector=0, threads=0, cache=0),
    Schedule(vector=256, accumulators=8, cache=2),
    Schedule(accumulators=1, unroll=4, grain=1000, columns=7),
)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: str(s.to_json()))
def test_every_kind_of_kernel_matches_the_interpreter(schedule: Schedule) -> None:
    rng = np.random.default_rng(0)
    cases = {}
    for name in fusions.NAMES:
        f = fusions.fusion(name)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c", schedule)
    assert _problems(cases) == {}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("elementwise", "loop"), ("transpose", "transpose"), ("row_sum", "reduction"), ("softmax", "block"),
        ("layer_norm", "block"), ("column_sum", "column-reduction"), ("update_slice", "in-place-update"),
        ("argmax", "reduction"), ("argmax_block", "block"),
    ],
)  # fmt: skip
def test_the_form_of_a_computation_decides_the_kind_of_its_kernel(name: str, kind: str) -> None:
    assert running.kernel_of(fusions.fusion(name), "c").kind == kind


def test_transposes_whose_size_no_tile_divides() -> None:
    rng = np.random.default_rng(3)
    cases = {}
    for dims, order in (((65, 130), "1,0"), ((64, 3, 97), "2,1,0"), ((200, 64), "1,0"), ((3, 65, 66), "0,2,1")):
        shape, to = ",".join(map(str, dims)), ",".join(str(dims[int(k)]) for k in order.split(","))
        f = running.fused(
            f"a = f32[{shape}] parameter(0)\n b = f32[{to}] parameter(1)\n"
            f"t = f32[{to}] transpose(a), dimensions={{{order}}}\n ROOT r = f32[{to}] add(t, b)"
        )
        cases[shape] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "c")
        assert cases[shape].spec.kind == "transpose"
    assert _problems(cases) == {}


def test_a_large_flat_array_runs_on_the_thread_pool() -> None:
    f = running.fused(
        """
        a = f32[3000000] parameter(0)
        b = f32[3000000] parameter(1)
        m = f32[3000000] multiply(a, b)
        ROOT r = f32[3000000] add(m, b)
        """
    )
    case = running.case_of(f, running.random_args(f.parameter_shapes, np.random.default_rng(4)), "c")
    assert "hlogym_parallel" in case.spec.source
    assert _problems({"large": case}) == {}


def _random_cases(seed: int, wanted: int, language: str) -> dict[HloModule, running.Case]:
    """Return random fusions that can become kernels, with arguments; the refusal of all others must give a reason."""
    rng = np.random.default_rng(seed)
    cases: dict[HloModule, running.Case] = {}
    tried = 0
    while len(cases) < wanted:
        tried += 1
        assert tried < 20 * wanted, "nearly every fusion is refused"
        f = random_fusion(rng)
        module = as_module(f)
        verify(module)
        why = buildability.kernel_refusal(f)
        if why is not None:
            assert why.strip()
            continue
        try:
            spec_case = running.case_of(f, running.random_args(f.parameter_shapes, rng), language)
        except UnsupportedError as e:
            assert language == "cuda" and "shared memory" in str(e)
            continue
        cases[module] = spec_case
    return cases


def _problem_of(module: HloModule, case: running.Case, found: Sequence[running.Array]) -> str | None:
    """Return the difference from the expected results with the program, or None."""
    problem = running.problem(found, case)
    return None if problem is None else f"{problem}\n{module}"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 12))])
def test_random_fusions_match_the_interpreter(seed: int) -> None:
    cases = _random_cases(seed, 80, "c")
    runs = running.run_c(list(cases.values()))
    problems = [_problem_of(m, case, found) for (m, case), found in zip(cases.items(), runs, strict=True)]
    assert [p for p in problems if p is not None] == []


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize("seed", [100, *(pytest.param(s, marks=pytest.mark.slow) for s in range(101, 106))])
def test_random_fusions_on_the_emulated_gpu_match_the_interpreter(seed: int, tmp_path: Path) -> None:
    cases = _random_cases(seed, 40, "cuda")
    runs = running.run_emulated(list(cases.values()), tmp_path, 2)
    problems = [
        run.error or _problem_of(m, case, run.outputs) for (m, case), run in zip(cases.items(), runs, strict=True)
    ]
    assert [p for p in problems if p] == []


def _problems(cases: dict[str, running.Case]) -> dict[str, str]:
    """Return the differences from the expected results, by case."""
    runs = running.run_c(list(cases.values()))
    problems = {}
    for (name, case), found in zip(cases.items(), runs, strict=True):
        what = running.problem(found, case)
        if what is not None:
            problems[name] = what
    return problems


def test_indices_into_fused_intermediates_may_exceed_32_bits() -> None:
    """The broadcast has more than 2^32 elements, of which 49 are computed."""
    f = running.fused(
        """
        a = f32[70000] parameter(0)
        wide = f32[70000,70000] broadcast(a), dimensions={1}
        other = f32[49,100000000] reshape(wide)
        ROOT r = f32[49,1] slice(other), slice={[0:49], [5:6]}
        """
    )
    a = np.arange(70_000, dtype=np.float32)
    wanted = a[(np.arange(49) * 100_000_000 + 5) % 70_000].reshape(49, 1)
    case = running.Case(running.kernel_of(f, "c"), (a,), Reference(lambda _, context: [wanted], [a]))
    assert _problems({"large": case}) == {}


# ---- refusals


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = f32[40,50] parameter(0)\n z = f32[] constant(0)\n"
         "s = f32[40] reduce(a, z), dimensions={1}, to_apply=add\n"
         "b = f32[40,50] broadcast(s), dimensions={0}\n"
         "ROOT t = f32[50] reduce(b, z), dimensions={0}, to_apply=add", "different domains"),
        ("a = f32[40] parameter(0)\n b = f32[50] parameter(1)\n u = f32[4] parameter(2)\n i = s32[] parameter(3)\n"
         "n = f32[40] dynamic-update-slice(a, u, i)\n m = f32[50] negate(b)\n"
         "ROOT r = (f32[40], f32[50]) tuple(n, m)", "different sizes"),
        ("a = c64[40] parameter(0)\n ROOT r = c64[40] negate(a)", "c64"),
        ("a = f32[4] parameter(0)\n c = f32[4] constant({1, 2, 3, 4})\n ROOT r = f32[4] add(a, c)", "constant"),
        ("a = f32[40,50] parameter(0)\n z = f32[] constant(0)\n"
         "s = f32[40] reduce(a, z), dimensions={1}, to_apply=add\n"
         "b = f32[40,9] broadcast(s), dimensions={0}\n ROOT r = f32[40,9] negate(b)", ""),
    ],
)  # fmt: skip
def test_a_refusal_states_its_reason(text: str, reason: str) -> None:
    why = buildability.kernel_refusal(running.fused(text, fusions.REDUCERS))
    assert why is not None
    assert reason in why


def test_too_many_instructions_are_refused() -> None:
    f = HloComputation("long")
    x = f.add_parameter(0, running.fused("ROOT a = f32[8] parameter(0)").root.shape)
    for _ in range(7000):
        x = f.add(Opcode.NEGATE, [x])
    f.root = x
    assert "instructions" in (buildability.kernel_refusal(f) or "")


def test_long_chains_do_not_exceed_the_recursion_limit() -> None:
    f = HloComputation("deep")
    x = f.add_parameter(0, running.fused("ROOT a = f32[8] parameter(0)").root.shape)
    for _ in range(2501):
        x = f.add(Opcode.NEGATE, [x])
    f.root = x
    assert buildability.kernel_refusal(f) is None
    assert _problems({"deep": running.case_of(f, [np.arange(8, dtype=np.float32)], "c")}) == {}


def test_a_computation_without_outputs_is_refused() -> None:
    assert buildability.kernel_refusal(running.fused("ROOT t = () tuple()")) == "nothing to compute"
