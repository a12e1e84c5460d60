"""CUDA C++ without a GPU: NVRTC compiles every kernel, and an emulator compares each with the interpreter.

The emulator runs the threads of a block as fibers and reports accesses to shared memory that no barrier separates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import compile
from compiler.backends.cuda.nvrtc import source_of
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import UnsupportedError
from compiler.interpreter import Context, evaluate_op
from compiler.ir import HloInstruction, HloModule, Opcode
from env.reference import Reference
from env.suites import load_suite
from tests.codegen import fusions, running
from tests.codegen.nvrtc_errors import has_nvrtc, nvrtc_errors
from tests.passes.programs import PROGRAMS, program_text

POLICIES = ("none", "priority")

needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")
needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


# ---- NVRTC


@needs_nvrtc
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvrtc_compiles_the_kernels_of_the_quickstart_suite(name: str) -> None:
    text = load_suite("quickstart").find(name).text()
    kernels: list[KernelSpec] = []
    for policy in POLICIES:
        kernels += compile(text, backend="cuda", fusion_policy=policy).kernels
    assert nvrtc_errors(source_of(kernels), "sm_90") == ""


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvrtc_compiles_the_kernels_for_older_gpus(name: str) -> None:
    text = load_suite("quickstart").find(name).text()
    assert nvrtc_errors(source_of(compile(text, backend="cuda").kernels), "sm_80") == ""


JAX_PROGRAMS = [p.name for p in load_suite("jax").programs]


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("name", JAX_PROGRAMS)
def test_nvrtc_compiles_the_kernels_of_the_jax_suite(name: str) -> None:
    kernels = compile(load_suite("jax").find(name).text(), backend="cuda").kernels
    assert nvrtc_errors(source_of(kernels), "sm_90") == ""


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_90", "sm_80"])
def test_nvrtc_compiles_every_kind_of_kernel(architecture: str) -> None:
    specs = [running.kernel_of(fusions.fusion(name), "cuda") for name in fusions.NAMES]
    assert nvrtc_errors(source_of(specs), architecture) == ""


@needs_nvrtc
def test_an_empty_log_does_not_overwrite_cached_bytes() -> None:
    assert nvrtc_errors("", "sm_90") == ""
    assert [chr(k).encode("latin-1")[0] for k in range(256)] == list(range(256))


# ---- the emulator


@needs_emulator
def test_every_kind_of_kernel_matches_the_interpreter(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for name in fusions.NAMES:
        f = fusions.fusion(name)
        cases.append(running.case_of(f, running.random_args(f.parameter_shapes, rng), "cuda"))
    assert _errors(dict(zip(fusions.NAMES, cases, strict=True)), tmp_path) == {}


@needs_emulator
@pytest.mark.parametrize("schedule", [Schedule(tile=0, block=64, columns=128), Schedule(tile=0, block=32, columns=40)])
def test_blocks_may_be_smaller_than_rows(schedule: Schedule, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    names = [n for n in fusions.NAMES if "max" in n or "norm" in n or "column" in n or "row" in n]
    cases = {}
    for name in names:
        f = fusions.fusion(name)
        cases[name] = running.case_of(f, running.random_args(f.parameter_shapes, rng), "cuda", schedule)
        assert cases[name].spec.block <= schedule.block
    assert _errors(cases, tmp_path) == {}


def test_blocks_have_whole_warps() -> None:
    for block in (1, 33, 100, 255):
        assert running.kernel_of(fusions.fusion("softmax"), "cuda", Schedule(tile=0, block=block)).block % 32 == 0


MANY_SUMS = 12
"""So many sums of columns of f64 need more than the shared memory of a block of 1024 threads."""


def test_blocks_that_need_too_much_shared_memory_are_refused() -> None:
    lines = ["zero = f64[] constant(0)"]
    for k in range(MANY_SUMS):
        lines.append(f"x{k} = f64[640,64] parameter({k})")
        lines.append(f"s{k} = f64[64] reduce(x{k}, zero), dimensions={{0}}, to_apply=add64")
    names = ", ".join(f"s{k}" for k in range(MANY_SUMS))
    lines.append(f"ROOT r = ({', '.join(['f64[64]'] * MANY_SUMS)}) tuple({names})")
    f = running.fused("\n".join(lines), fusions.REDUCERS)
    with pytest.raises(UnsupportedError, match="shared memory"):
        running.kernel_of(f, "cuda", Schedule(block=1024))
    assert running.kernel_of(f, "cuda").block < 1024


@needs_emulator
@pytest.mark.parametrize("policy", POLICIES)
def test_kernels_of_the_quickstart_suite_match_the_interpreter(policy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    cases: dict[str, running.Case] = {}
    for name in PROGRAMS:
        exe = compile(program_text(name), backend="cuda", fusion_policy=policy)
        for spec in exe.kernels:
            instruction = _find(exe.module, spec.name)
            if instruction is not None:
                cases[f"{name}: {spec.name} ({spec.kind})"] = _case(instruction, spec, rng)
    assert {c.spec.kind for c in cases.values()} >= {"loop", "reduction"}
    assert _errors(cases, tmp_path) == {}


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("name", JAX_PROGRAMS)
def test_kernels_of_the_jax_suite_match_the_interpreter(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    exe = compile(load_suite("jax").find(name).text(), backend="cuda")
    cases = {}
    for spec in exe.kernels:
        instruction = _find(exe.module, spec.name)
        if instruction is not None and instruction.opcode is not Opcode.WHILE:
            cases[f"{spec.name} ({spec.kind})"] = _case(instruction, spec, rng)
    assert _errors(cases, tmp_path) == {}


COUNTED = """
    i = f32[] parameter(0)
    x = f32[5] parameter(1)
    j = f32[] add(i, i)
    b = f32[5] broadcast(i), dimensions={}
    y = f32[5] multiply(x, b)
    ROOT r = (f32[], f32[5]) tuple(j, y)
"""


def test_what_other_blocks_read_is_not_overwritten() -> None:
    f = running.fused(COUNTED)
    # In C the nests follow each other, and the first has read i when it overwrites it; blocks run in any order.
    assert set(running.kernel_of(f, "c").in_place) == {(0, 2), (1, 3)}
    assert running.kernel_of(f, "cuda").in_place == ((1, 3),)


def test_a_counter_that_nothing_else_reads_is_overwritten() -> None:
    f = running.fused("i = s32[] parameter(0)\none = s32[] constant(1)\nROOT j = s32[] add(i, one)")
    assert running.kernel_of(f, "cuda").in_place == ((0, 1),)


GATHER_ROWS = """
    x = f32[50,{n}] parameter(0)
    i = s32[{m},1] parameter(1)
    y = f32[{m},{n}] gather(x, i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}},
        index_vector_dim=1, slice_sizes={{1,{n}}}
    ROOT r = f32[{m},{n}] negate(y)
"""
GATHER_ELEMENTS = """
    x = f32[50,64] parameter(0)
    i = s32[40,64,1] parameter(1)
    ROOT y = f32[40,64] gather(x, i), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0},
        index_vector_dim=2, slice_sizes={1,1}
"""


@needs_emulator
def test_gathered_elements_match_the_interpreter(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    cases = {}
    for name, text, shape in (
        ("wide rows", GATHER_ROWS.format(m=4096, n=64), (4096, 1)),
        ("narrow rows", GATHER_ROWS.format(m=40, n=7), (40, 1)),
        ("elements", GATHER_ELEMENTS, (40, 64, 1)),
    ):
        f = running.fused(text)
        args = running.random_args(f.parameter_shapes, rng)
        args[1] = rng.integers(-3, 55, shape).astype(np.int32)
        cases[name] = running.case_of(f, args, "cuda")
    # A row begins at a position that was loaded; all elements of a group share it.
    assert "load_wide<4>(p0" in cases["wide rows"].spec.source
    assert "load_wide<4>(p0" not in cases["elements"].spec.source
    assert _errors(cases, tmp_path) == {}


SCATTER = """
    x = {t}[9,4] parameter(0)
    i = s32[{n},1] parameter(1)
    u = {t}[{n},4] parameter(2)
    d = {t}[{n},4] add(u, u)
    ROOT r = {t}[9,4] scatter(x, i, d), to_apply=combine, update_window_dims={{1}}, inserted_window_dims={{0}},
        scatter_dims_to_operand_dims={{0}}, index_vector_dim=1
"""


@needs_emulator
def test_scatters_match_the_interpreter(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    cases = {}
    for t, op in (
        ("f32", "add"),
        ("f64", "add"),
        ("s32", "add"),
        ("u32", "maximum"),
        ("s64", "minimum"),
        ("f32", ""),
        ("bf16", "add"),
        ("f16", "maximum"),
        ("s16", "minimum"),
    ):
        for n in (1, 7) if op else (1,):
            combine = f"combine {{ a = {t}[] parameter(0) b = {t}[] parameter(1) ROOT r = {t}[] {op}(a, b) }}"
            if not op:
                combine = f"combine {{ a = {t}[] parameter(0) ROOT b = {t}[] parameter(1) }}"
            f = running.fused(SCATTER.format(t=t, n=n), combine)
            args = running.random_args(f.parameter_shapes, rng)
            args[1] = rng.integers(-1, 10, args[1].shape).astype(np.int32)
            cases[f"{t} {op} {n}"] = running.case_of(f, args, "cuda")
    assert {c.spec.kind for c in cases.values()} == {"scatter"}
    assert _errors(cases, tmp_path) == {}


UNLIKE = """
  x = f32[300] parameter(0)
  y = f32[7,11] parameter(1)
  z = f32[5,40] parameter(2)
  zero = f32[] constant(0)
  p = f32[300] negate(x)
  q = f32[7,11] abs(y)
  r = f32[5] reduce(z, zero), dimensions={1}, to_apply=add
  k = f32[40] reduce(z, zero), dimensions={0}, to_apply=add
  s = f32[] reduce(z, zero), dimensions={0,1}, to_apply=add
  ROOT t = (f32[300], f32[7,11], f32[5], f32[40], f32[]) tuple(p, q, r, k, s)
"""


@needs_emulator
def test_outputs_of_unlike_shapes_match_the_interpreter(tmp_path: Path) -> None:
    f = running.fused(UNLIKE, "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }")
    args = running.random_args(f.parameter_shapes, np.random.default_rng(0))
    assert _errors({"unlike": running.case_of(f, args, "cuda")}, tmp_path) == {}


def _find(module: HloModule, name: str) -> HloInstruction | None:
    """Return the instruction that a kernel computes, or None for a transpose that the thunk emitter added for a dot."""
    for computation in module.control_flow_computations():
        for i in computation.instructions:
            if i.name == name:
                return i if i.opcode is not Opcode.DOT else None
    return None


def _case(i: HloInstruction, spec: KernelSpec, rng: np.random.Generator) -> running.Case:
    args = running.random_args(spec.inputs, rng)
    if i.opcode is Opcode.WHILE:
        state = i.attributes["body"].root.operands
        changed = [k for k, o in enumerate(state) if not _is_carried_unchanged(o, k)]

        def loop(arrays: Sequence[Any], context: Context) -> list[running.Array]:
            value: Any = evaluate_op(i, [tuple(arrays)], context)
            return [np.asarray(value[k]) for k in changed]

        return running.Case(spec, tuple(args), Reference(loop, args))
    operands = i.operands if i.opcode is Opcode.FUSION else tuple(dict.fromkeys(i.operands))

    def op(arrays: Sequence[Any], context: Context) -> list[running.Array]:
        by_operand = dict(zip(operands, arrays, strict=True))
        return running.leaves(evaluate_op(i, [by_operand[o] for o in i.operands], context))

    return running.Case(spec, tuple(args), Reference(op, args))


def _is_carried_unchanged(i: HloInstruction, k: int) -> bool:
    return i.opcode is Opcode.GET_TUPLE_ELEMENT and i.attributes["index"] == k and not i.operands[0].operands


def _errors(cases: dict[str, running.Case], folder: Path) -> dict[str, str]:
    """Return the errors of emulated cases, by name."""
    out = {}
    for (name, case), run in zip(cases.items(), running.run_emulated(list(cases.values()), folder), strict=True):
        found = run.error or running.problem(run.outputs, case)
        if found:
            out[name] = found
    return out
