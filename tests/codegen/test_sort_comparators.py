"""Sorts by several keys and by comparators without a key, on a GPU and in C, against the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.api import compile as compile_hlo
from compiler.codegen.kernel_spec import make_kernel
from compiler.codegen.schedules.schedule import Schedule
from compiler.codegen.templates.sort import COMBINED_ROW
from compiler.codegen.templates.sort_keys import sort_key_of
from compiler.errors import UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir.types import PrimitiveType
from compiler.runtime.thunks import HostThunk
from compiler.text import parse
from env.reference import Reference
from tests.codegen import running
from tests.codegen.test_sort_by_key import assert_same_bits, keys

Array = npt.NDArray[Any]
needs_emulator = pytest.mark.skipif(not running.has_emulator(), reason="the emulator needs g++")


def sort_text(types: tuple[str, ...], dims: tuple[int, ...], axis: int, comparator: str) -> str:
    """Return a module that sorts arrays; the parameters of the comparator are a0, b0, a1, b1, ..."""
    shape = ",".join(map(str, dims))
    pairs = [f"{side}{n} = {t}[] parameter({2 * n + k})" for n, t in enumerate(types) for k, side in enumerate("ab")]
    parameters = [f"p{n} = {t}[{shape}] parameter({n})" for n, t in enumerate(types)]
    results = ", ".join(f"{t}[{shape}]" for t in types)
    names = ", ".join(f"p{n}" for n in range(len(types)))
    out = results if len(types) == 1 else f"({results})"
    lines = "\n  ".join([*pairs, comparator])
    return (
        f"HloModule m\nless {{\n  {lines}\n}}\nENTRY e {{\n  "
        + "\n  ".join(parameters)
        + f"\n  ROOT s = {out} sort({names}), dimensions={{{axis}}}, is_stable=true, to_apply=less\n}}\n"
    )


def in_turn(types: tuple[str, ...], directions: str, select: bool = False) -> str:
    """Return a comparator by several operands, `<` or `>` each, of which the next decides where one is equal."""
    lines, rest = [], ""
    for n in reversed(range(len(types))):
        order = ", type=TOTALORDER" if PrimitiveType(types[n]).is_float else ""
        direction = "LT" if directions[n] == "<" else "GT"
        root = "ROOT " if n == 0 and not rest else ""
        lines.append(f"{root}f{n} = pred[] compare(a{n}, b{n}), direction={direction}{order}")
        if not rest:
            rest = f"f{n}"
            continue
        lines.append(f"q{n} = pred[] compare(b{n}, a{n}), direction=EQ{order}")
        root = "ROOT " if n == 0 else ""
        if select:
            lines.append(f"{root}r{n} = pred[] select(q{n}, {rest}, f{n})")
        else:
            lines += [f"t{n} = pred[] and({rest}, q{n})", f"{root}r{n} = pred[] or(f{n}, t{n})"]
        rest = f"r{n}"
    return "\n  ".join(lines)


def arguments(types: tuple[str, ...], dims: tuple[int, ...]) -> list[Array]:
    """Return arrays with many ties; the last one also has special values."""
    return [keys(t, dims, few=n < len(types) - 1) for n, t in enumerate(types)]


IN_TURN = [
    (("s32", "f32"), "<<", (3, 100), 1),
    (("f32", "s32"), "><", (40, 5), 0),
    (("u8", "f16", "s32"), "<><", (2, 70), 1),
    (("pred", "s16", "u32"), "><<", (1, 33), 1),
    (("s64", "f64"), "<>", (2, 90), 1),  # no key of 64 bits
    (("f32", "f32", "f32"), "<<<", (7, 3, 20), 2),
]


def check_on_gpu(sorts: dict[str, tuple[str, list[Array]]], folder: Path, schedule: Schedule | None = None) -> None:
    cases, wanted = [], []
    for text, args in sorts.values():
        expected = [np.asarray(x) for x in evaluate(parse(text), args)]
        wanted.append([np.where(np.isnan(x), np.abs(x), x) if x.dtype == np.float16 else x for x in expected])
        spec = make_kernel(parse(text).entry.root, "cuda", schedule)
        assert spec.kind == "sort"
        cases.append(running.Case(spec, tuple(args), Reference(lambda *_: [], args)))
    for name, run, expected in zip(sorts, running.run_emulated(cases, folder), wanted, strict=True):
        assert not run.error, name
        assert_same_bits(run.outputs, expected)


@needs_emulator
@pytest.mark.parametrize("select", [False, True])
def test_sorts_by_several_keys_match_the_interpreter(select: bool, tmp_path: Path) -> None:
    sorts = {
        f"{types} {dims}": (sort_text(types, dims, axis, in_turn(types, order, select)), arguments(types, dims))
        for types, order, dims, axis in IN_TURN
    }
    check_on_gpu(sorts, tmp_path)


def test_keys_of_at_most_64_bits_are_combined() -> None:
    for types, order, dims, axis in IN_TURN:
        module = parse(sort_text(types, dims, axis, in_turn(types, order)))
        found = sort_key_of(module.entry.root.attributes["to_apply"])
        bits = sum(8 if t == "pred" else PrimitiveType(t).bits for t in types)
        assert (found is not None) == (bits <= 64)


@pytest.mark.parametrize(
    "comparator",
    [
        # The test of equality is of other values, in another order of floats, or the last comparison has no key.
        "f = pred[] compare(a0, b0), direction=LT\nq = pred[] compare(a1, b1), direction=EQ\n"
        "g = pred[] compare(a1, b1), direction=LT\nt = pred[] and(q, g)\nROOT r = pred[] or(f, t)",
        "f = pred[] compare(a0, b0), direction=LT\nq = pred[] compare(a0, b0), direction=NE\n"
        "g = pred[] compare(a1, b1), direction=LT\nt = pred[] and(q, g)\nROOT r = pred[] or(f, t)",
        "f = pred[] compare(a0, b0), direction=LT\nq = pred[] compare(a0, b0), direction=EQ\n"
        "g = pred[] compare(a1, b1), direction=LE\nt = pred[] and(q, g)\nROOT r = pred[] or(f, t)",
    ],
)
def test_other_comparators_have_no_key(comparator: str) -> None:
    module = parse(sort_text(("s32", "s16"), (2, 9), 1, comparator))
    assert sort_key_of(module.entry.root.attributes["to_apply"]) is None


FLOATS = "ROOT r = pred[] compare(a0, b0), direction={}"
SUMS = "s = s32[] add(a0, b1)\nt = s32[] add(b0, a1)\nROOT r = pred[] compare(s, t), direction=GT"  # a0 - a1 > b0 - b1


@needs_emulator
@pytest.mark.parametrize("schedule", [None, Schedule(cache=2, lanes=1, block=64)], ids=["usual", "small blocks"])
def test_sorts_by_a_comparator_match_the_interpreter(schedule: Schedule | None, tmp_path: Path) -> None:
    floats = np.random.default_rng(0).integers(-5, 5, (3, 200)).astype(np.float32)
    sums = [np.random.default_rng(n).integers(-9, 9, (4, 37, 3)).astype(np.int32) for n in range(2)]
    sorts: dict[str, tuple[str, list[Array]]] = {
        "floats": (sort_text(("f32",), (3, 200), 1, FLOATS.format("LT")), [floats]),
        "one": (sort_text(("f32",), (3, 1), 1, FLOATS.format("LT")), [floats[:, :1].copy()]),
        "two": (sort_text(("f32",), (3, 2), 1, FLOATS.format("GT")), [floats[:, :2].copy()]),
        "sums": (sort_text(("s32", "s32"), (4, 37, 3), 1, SUMS), sums),
        "a power": (sort_text(("f32",), (1, 2048), 1, FLOATS.format("GT")), [np.resize(floats, (1, 2048))]),
    }
    check_on_gpu(sorts, tmp_path, schedule)


@needs_emulator
@pytest.mark.parametrize("direction", ["LE", "NE", "LT"])
def test_a_comparator_that_contradicts_itself_yields_a_permutation(direction: str, tmp_path: Path) -> None:
    x = keys("f32", (2, 100))  # NaN is not less than anything, and nothing is less than it
    text = sort_text(("f32",), (2, 100), 1, FLOATS.format(direction))
    spec = make_kernel(parse(text).entry.root, "cuda")
    (run,) = running.run_emulated([running.Case(spec, (x,), Reference(lambda *_: [], [x]))], tmp_path)
    assert not run.error
    np.testing.assert_array_equal(np.sort(run.outputs[0], 1), np.sort(x, 1))


def test_rows_that_no_block_sorts_have_no_kernel() -> None:
    long = parse(sort_text(("f32",), (1, 17000), 1, FLOATS.format("LT"))).entry.root
    with pytest.raises(UnsupportedError, match="a block sorts at most 16384 elements"):
        make_kernel(long, "cuda")


@pytest.mark.parametrize("n", [50, 3000, 9000])
def test_programs_that_sort_by_two_keys_do_so_on_the_gpu(n: int) -> None:
    types = ("f32", "s32")
    made = compile_hlo(sort_text(types, (2, n), 1, in_turn(types, "<<")), backend="cuda")
    assert not [t for t in made.thunks if isinstance(t, HostThunk)]


@pytest.mark.parametrize("n", [50, COMBINED_ROW, 3000])
def test_c_sorts_by_two_keys(n: int) -> None:
    types = ("s32", "f32")
    text, args = sort_text(types, (3, n), 1, in_turn(types, "><")), arguments(types, (3, n))
    assert_same_bits(list(compile_hlo(text, backend="cpu")(*args)), evaluate(parse(text), args))
