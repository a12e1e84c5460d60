"""Chains of concatenates, pads and dynamic-update-slices: correct values, and code size linear in the length."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from compiler.codegen import buildability
from compiler.codegen.lowering.lower import BASE_STATEMENTS, STATEMENTS_PER_INSTRUCTION, lower
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.nest.traversal import walk
from tests.codegen import running


def doubled(links: int) -> str:
    """Return a chain in which each array is concatenated with a function of itself."""
    lines = ["x0 = f32[3] parameter(0)"]
    for k in range(links):
        n = 3 << k
        lines.append(f"t{k} = f32[{n}] tanh(x{k})")
        lines.append(f"x{k + 1} = f32[{2 * n}] concatenate(t{k}, x{k}), dimensions={{0}}")
    return "\n".join([*lines, f"ROOT r = f32[{3 << links}] negate(x{links})"])


def three_pieces(links: int) -> str:
    """Return a chain in which each two-dimensional array is concatenated with two functions of itself."""
    lines, n = ["x0 = f32[5,2] parameter(0)"], 2
    for k in range(links):
        lines.append(f"t{k} = f32[5,{n}] tanh(x{k})")
        lines.append(f"r{k} = f32[5,{n}] reverse(x{k}), dimensions={{0,1}}")
        lines.append(f"s{k} = f32[5,2] slice(r{k}), slice={{[0:5], [0:2]}}")
        lines.append(f"x{k + 1} = f32[5,{2 * n + 2}] concatenate(t{k}, s{k}, x{k}), dimensions={{1}}")
        n = 2 * n + 2
    return "\n".join([*lines, f"ROOT r = f32[5,{n}] negate(x{links})"])


def updates_in_place(links: int) -> str:
    """Return a chain in which a window is read, changed and written back."""
    lines = ["x0 = f32[40] parameter(0)", "s = s32[] parameter(1)"]
    for k in range(links):
        lines.append(f"d{k} = f32[8] dynamic-slice(x{k}, s), dynamic_slice_sizes={{8}}")
        lines.append(f"t{k} = f32[8] tanh(d{k})")
        lines.append(f"x{k + 1} = f32[40] dynamic-update-slice(x{k}, t{k}, s)")
    return "\n".join([*lines, f"ROOT r = f32[40] negate(x{links})"])


def updates_elsewhere(links: int) -> str:
    """Return a chain in which a window is read at one position and written to another."""
    lines = ["x0 = f32[40] parameter(0)", "s = s32[] parameter(1)"]
    for k in range(links):
        lines.append(f"d{k} = f32[8] slice(x{k}), slice={{[{2 * k}:{2 * k + 8}]}}")
        lines.append(f"t{k} = f32[8] tanh(d{k})")
        lines.append(f"x{k + 1} = f32[40] dynamic-update-slice(x{k}, t{k}, s)")
    return "\n".join([*lines, f"ROOT r = f32[40] negate(x{links})"])


def padded(links: int) -> str:
    """Return a chain in which each array is concatenated with a padded copy of itself."""
    lines, n = ["x0 = f32[3] parameter(0)", "z = f32[] constant(0.5)"], 3
    for k in range(links):
        lines.append(f"p{k} = f32[{2 * n + 1}] pad(x{k}, z), padding=1_1_1")
        lines.append(f"x{k + 1} = f32[{3 * n + 1}] concatenate(x{k}, p{k}), dimensions={{0}}")
        n = 3 * n + 1
    return "\n".join([*lines, f"ROOT r = f32[{n}] negate(x{links})"])


def shifted_sums(links: int) -> str:
    """Return a chain of sums with shifted copies, in which each link doubles the elements of x0 that a result needs."""
    lines = ["x0 = f32[64] parameter(0)", "z = f32[] constant(0)"]
    for k in range(links):
        lines.append(f"s{k} = f32[63] slice(x{k}), slice={{[0:63]}}")
        lines.append(f"p{k} = f32[64] pad(s{k}, z), padding=1_0")
        lines.append(f"x{k + 1} = f32[64] add(x{k}, p{k})")
    return "\n".join([*lines, f"ROOT r = f32[64] negate(x{links})"])


CHAINS = [doubled, three_pieces, updates_in_place, updates_elsewhere, padded]


def statements(text: str) -> int:
    """Return the number of statements in the kernel of a fused computation."""
    return sum(1 for _ in walk(lower(running.fused(text)).body))


@pytest.mark.parametrize("chain", CHAINS, ids=lambda c: c.__name__)
def test_each_link_adds_the_same_number_of_statements(chain: Callable[[int], str]) -> None:
    counts = [statements(chain(n)) for n in range(1, 13)]
    steps = [b - a for a, b in pairwise(counts)]
    assert max(steps[1:]) - min(steps[1:]) <= 4
    assert max(counts) <= 12 * 40


@pytest.mark.parametrize("chain", [*CHAINS, shifted_sums], ids=lambda c: c.__name__)
def test_chains_match_the_interpreter(chain: Callable[[int], str]) -> None:
    rng = np.random.default_rng(5)
    cases = []
    for links in (1, 2, 3, 5):
        f = running.fused(chain(links))
        args = running.random_args(f.parameter_shapes, rng)
        starts = [-3, 0, 7, 100] if len(args) > 1 else [0]
        given = [[args[0], *(np.array(s, np.int32) for _ in args[1:])] for s in starts]
        cases += [running.case_of(f, a, "c") for a in given]
    for case, found in zip(cases, running.run_c(cases), strict=True):
        assert running.problem(found, case) is None


def test_a_chain_whose_work_doubles_is_refused_before_it_is_too_large() -> None:
    for links in range(1, 13):
        f = running.fused(shifted_sums(links))
        why = buildability.kernel_refusal(f)
        if why is None:
            assert statements(shifted_sums(links)) <= 2 * (BASE_STATEMENTS + STATEMENTS_PER_INSTRUCTION * len(f))
        else:
            assert "statements" in why
    assert why is not None


def test_regions_known_at_compile_time_need_no_branch() -> None:
    text = """
    a = f32[4,8] parameter(0)
    z = f32[] constant(0)
    p = f32[9,8] pad(a, z), padding=1_1_1x0_0
    s = f32[1,8] slice(p), slice={[3:4], [0:8]}
    t = f32[1,8] slice(p), slice={[4:5], [0:8]}
    ROOT r = f32[1,8] add(s, t)
    """
    kernel = lower(running.fused(text))
    assert not any(isinstance(s, lir.If) for s in walk(kernel.body))
    case = running.case_of(running.fused(text), [np.arange(32, dtype=np.float32).reshape(4, 8)], "c")
    assert running.problem(running.run_c([case])[0], case) is None


def test_a_kernel_may_read_a_constant_array_at_fixed_indices() -> None:
    text = """
    a = f32[2] parameter(0)
    c = f32[4] constant({1, -2, 3, -0})
    z = f32[] constant(7)
    p = f32[6] pad(c, z), padding=1_1
    s = f32[1] slice(p), slice={[0:1]}
    t = f32[1] slice(p), slice={[3:4]}
    u = f32[1] slice(p), slice={[5:6]}
    x = f32[1] subtract(s, t)
    y = f32[1] multiply(x, u)
    b = f32[1] slice(a), slice={[1:2]}
    ROOT r = f32[1] add(y, b)
    """
    case = running.case_of(running.fused(text), [np.array([1, 2], np.float32)], "c")
    assert running.problem(running.run_c([case])[0], case) is None


def rolled(links: int) -> str:
    """Return a chain in which the rows of a function of each array are rolled."""
    lines = ["x0 = f32[10,16] parameter(0)"]
    for k in range(links):
        lines.append(f"t{k} = f32[10,16] tanh(x{k})")
        lines.append(f"a{k} = f32[3,16] slice(t{k}), slice={{[7:10], [0:16]}}")
        lines.append(f"b{k} = f32[7,16] slice(t{k}), slice={{[0:7], [0:16]}}")
        lines.append(f"x{k + 1} = f32[10,16] concatenate(a{k}, b{k}), dimensions={{0}}")
    return "\n".join([*lines, f"ROOT r = f32[10,16] negate(x{links})"])


@pytest.mark.parametrize("links", [1, 2, 3])
def test_a_value_whose_rows_are_rolled_is_computed_without_a_branch(links: int) -> None:
    kernel = lower(running.fused(rolled(links)))
    assert not any(isinstance(s, lir.If) for s in walk(kernel.body))
    x = np.random.default_rng(links).standard_normal((10, 16)).astype(np.float32)
    case = running.case_of(running.fused(rolled(links)), [x], "c")
    assert running.problem(running.run_c([case])[0], case) is None


@pytest.mark.parametrize(
    ("function", "columns", "branches"), [("tanh", 16, False), ("abs", 16, True), ("tanh", 64, True)]
)
def test_an_expensive_value_is_computed_without_a_branch_in_short_rows(
    function: str, columns: int, branches: bool
) -> None:
    text = f"""
    x = f32[10,{columns}] parameter(0)
    t = f32[10,{columns}] {function}(x)
    a = f32[10,3] slice(t), slice={{[0:10], [{columns - 3}:{columns}]}}
    b = f32[10,{columns - 3}] slice(t), slice={{[0:10], [0:{columns - 3}]}}
    y = f32[10,{columns}] concatenate(a, b), dimensions={{1}}
    ROOT r = f32[10,{columns}] negate(y)
    """
    assert any(isinstance(s, lir.If) for s in walk(lower(running.fused(text)).body)) == branches
    x = np.random.default_rng(1).standard_normal((10, columns)).astype(np.float32)
    case = running.case_of(running.fused(text), [x], "c")
    assert running.problem(running.run_c([case])[0], case) is None
