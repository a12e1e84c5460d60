"""Fused computations as C kernels against the interpreter: every form, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen import buildability
from compiler.codegen.schedule import Schedule
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
    Schedule(tile=64, columns=100, lanes=32),
)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: str(s.to_json()))
def test_every_form_of_kernel(schedule: Schedule) -> None:
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
def test_kinds(name: str, kind: str) -> None:
    assert running.kernel_of(fusions.fusion(name), "c").kind == kind


def test_transposes_with_ragged_tiles() -> None:
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


def test_large_flat_arrays_use_threads() -> None:
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


def _mixed(seed: int, wanted: int, language: str) -> dict[HloModule, running.Case]:
    """Random fusions that can be kernels, each with arguments; the others must say why not."""
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


def _judged(module: HloModule, case: running.Case, found: Sequence[running.Array]) -> str | None:
    """What rounding does not explain, with the program."""
    told = running.problem(found, case)
    return None if told is None else f"{told}\n{module}"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 12))])
def test_random_fusions(seed: int) -> None:
    cases = _mixed(seed, 80, "c")
    runs = running.run_c(list(cases.values()))
    told = [_judged(m, case, found) for (m, case), found in zip(cases.items(), runs, strict=True)]
    assert [t for t in told if t is not None] == []


@pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")
@pytest.mark.parametrize("seed", [100, *(pytest.param(s, marks=pytest.mark.slow) for s in range(101, 106))])
def test_random_fusions_on_the_emulated_gpu(seed: int, tmp_path: Path) -> None:
    cases = _mixed(seed, 40, "cuda")
    runs = running.run_emulated(list(cases.values()), tmp_path, 2)
    told = [run.complaint or _judged(m, case, run.outputs) for (m, case), run in zip(cases.items(), runs, strict=True)]
    assert [t for t in told if t] == []


def _problems(cases: dict[str, running.Case]) -> dict[str, str]:
    """What is wrong, by case."""
    runs = running.run_c(list(cases.values()))
    told = {}
    for (name, case), found in zip(cases.items(), runs, strict=True):
        what = running.problem(found, case)
        if what is not None:
            told[name] = what
    return told


def test_indices_of_arrays_that_are_never_made_may_be_large() -> None:
    """The broadcast has more elements than 32 bits count; only 49 of them are looked at."""
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
         "t = f32[50] reduce(a, z), dimensions={0}, to_apply=add\n"
         "ROOT r = (f32[40], f32[50]) tuple(s, t)", "different domains"),
        ("a = f32[40] parameter(0)\n b = f32[50] parameter(1)\n n = f32[40] negate(a)\n m = f32[50] negate(b)\n"
         "ROOT r = (f32[40], f32[50]) tuple(n, m)", "different sizes"),
        ("a = c64[40] parameter(0)\n ROOT r = c64[40] negate(a)", "c64"),
        ("a = f32[4] parameter(0)\n c = f32[4] constant({1, 2, 3, 4})\n ROOT r = f32[4] add(a, c)", "constant"),
        ("a = f32[40,50] parameter(0)\n z = f32[] constant(0)\n"
         "s = f32[40] reduce(a, z), dimensions={1}, to_apply=add\n"
         "b = f32[40,9] broadcast(s), dimensions={0}\n ROOT r = f32[40,9] negate(b)", ""),
    ],
)  # fmt: skip
def test_refusals_say_why(text: str, reason: str) -> None:
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


def test_long_chains_are_not_too_deep() -> None:
    f = HloComputation("deep")
    x = f.add_parameter(0, running.fused("ROOT a = f32[8] parameter(0)").root.shape)
    for _ in range(2501):
        x = f.add(Opcode.NEGATE, [x])
    f.root = x
    assert buildability.kernel_refusal(f) is None
    assert _problems({"deep": running.case_of(f, [np.arange(8, dtype=np.float32)], "c")}) == {}


def test_nothing_to_compute() -> None:
    assert buildability.kernel_refusal(running.fused("ROOT t = () tuple()")) == "nothing to compute"
