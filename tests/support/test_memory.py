"""Arrays that do not fit fail at once with one message: which arrays, bytes needed, bytes available."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler.support.memory
from compiler import compile
from compiler.api import CompileOptions
from compiler.errors import HloSyntaxError, HloVerificationError, MemoryLimitError
from compiler.interpreter import evaluate
from compiler.ir import HloComputation, HloModule, Opcode, PrimitiveType, Shape
from compiler.ir.verifier import verify
from compiler.passes import run_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.support.memory import SMALL, available_bytes, check_memory, size_text
from compiler.text import parse
from env.suites import Program, random_inputs

THERE = 100 << 20
"""Available bytes that these tests simulate."""
FEW = 10_000_000  # elements: 40 MB of f32
MANY = 50_000_000  # 200 MB

FUNCTIONS = """HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }
"""
TOO_LARGE = {
    "parameter": "x = f32[{n}] parameter(0) ROOT big = f32[{n}] negate(x)",
    "temporary": "x = f32[1] parameter(0) v = f32[] reshape(x) w = f32[{n}] broadcast(v), dimensions={{}} "
    "i = f32[{n}] iota(), iota_dimension=0 y = f32[{n}] multiply(w, i) big = f32[{n}] sort(y), dimensions={{0}}, "
    "to_apply=less ROOT r = f32[1] slice(big), slice={{[0:1]}}",
    "splat": "c = f32[] constant(1) ROOT big = f32[{n}] broadcast(c), dimensions={{}}",
    "iota": "ROOT big = s32[{n}] iota(), iota_dimension=0",
    "concatenate": "x = f32[{m}] parameter(0) ROOT big = f32[{n}] concatenate(x, x, x, x, x), dimensions={{0}}",
    "dot": "x = f32[10000,1] parameter(0) y = f32[1,5000] parameter(1) ROOT big = f32[10000,5000] dot(x, y), "
    "lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
    "results": "x = f32[1] parameter(0) v = f32[] reshape(x) big = f32[{m}] broadcast(v), dimensions={{}} "
    "o = f32[{m}] negate(big) ROOT t = tuple(big, o, big, o)",
}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.support.memory, "available_bytes", lambda: THERE)


def _module(body: str, n: int) -> HloModule:
    return parse(FUNCTIONS + "ENTRY e { " + body.format(n=n, m=n // 5) + " }")


def _arguments(module: HloModule) -> list[Any]:
    """Return arguments that take no memory themselves (broadcast views)."""
    return [np.broadcast_to(np.ones((), s.dtype), s.dimensions) for s in module.parameter_shapes]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_fit_is_refused_before_it_is_allocated(name: str) -> None:
    module = _module(TOO_LARGE[name], MANY)
    verify(module)
    run_pass(default_pipeline(), module.clone())
    work: tuple[Callable[[HloModule], Any], ...] = (
        lambda m: compile(m)(*_arguments(m)),
        lambda m: compile(m, options=CompileOptions(optimize=False))(*_arguments(m)),
        lambda m: evaluate(m, _arguments(m)),
        lambda m: compile(m, backend="interpreter")(*_arguments(m)),
    )
    for do in work:
        with pytest.raises(MemoryLimitError, match=r"\d bytes .* of memory, and 104,857,600 bytes") as caught:
            do(module)
        if name != "results":
            assert re.search(r"%(big|y|w|i|fusion)\b|argument 0", str(caught.value)), str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("name", ["parameter", "splat", "iota", "concatenate"])
def test_what_fits_is_not_refused(name: str) -> None:
    module = _module(TOO_LARGE[name], FEW)
    arguments = [np.ascontiguousarray(a) for a in _arguments(module)]
    (want,) = evaluate(module, arguments)
    np.testing.assert_array_equal(compile(module)(*arguments)[0], want)


@pytest.mark.usefixtures("little_memory")
def test_large_values_that_are_never_made_are_not_counted() -> None:
    text = (
        FUNCTIONS
        + f"""ENTRY e {{ x = f32[5] parameter(0) zero = f32[] constant(0)
      w = f32[5,{FEW}] broadcast(x), dimensions={{0}} y = f32[5,{FEW}] sine(w)
      ROOT r = f32[5] reduce(y, zero), dimensions={{1}}, to_apply=add }}"""
    )
    x = np.arange(5, dtype=np.float32)
    (got,) = compile(text)(x)  # one kernel
    np.testing.assert_allclose(got, np.sin(x) * FEW, rtol=1e-2)
    with pytest.raises(MemoryLimitError, match=r"%y \(sine of shape f32\[5,10000000\]\)"):
        evaluate(parse(text), [x])


@pytest.mark.usefixtures("little_memory")
def test_values_that_die_make_room() -> None:
    """A chain of ten arrays of 28 MB, of which at most three are live at a time, fits."""
    n = 7_000_000
    steps = " ".join(f"v{k + 1} = f32[{n}] sort(v{k}), dimensions={{0}}, to_apply=less" for k in range(10))
    text = FUNCTIONS + f"ENTRY e {{ v0 = f32[{n}] parameter(0) {steps} ROOT r = f32[{n}] negate(v10) }}"
    from compiler.interpreter.footprint import check_footprint

    check_footprint(parse(text))
    compile(text)(np.zeros(n, np.float32))


@pytest.mark.usefixtures("little_memory")
def test_loops_and_branches_are_counted_by_what_they_certainly_hold() -> None:
    from compiler.interpreter.footprint import check_footprint

    branch = (
        FUNCTIONS
        + f"""
    large {{ x = f32[1] parameter(0) v = f32[] reshape(x) w = f32[{MANY}] broadcast(v), dimensions={{}}
      y = f32[{MANY}] sine(w) ROOT r = f32[1] slice(y), slice={{[0:1]}} }}
    small {{ x = f32[1] parameter(0) ROOT r = f32[1] negate(x) }}
    ENTRY e {{ p = pred[] parameter(0) x = f32[1] parameter(1)
      ROOT r = f32[1] conditional(p, x, x), true_computation=large, false_computation=NAME }}"""
    )
    check_footprint(parse(branch.replace("NAME", "small")))
    with pytest.raises(MemoryLimitError, match=r"%y \(sine"):
        check_footprint(parse(branch.replace("NAME", "large")))
    loop = (
        FUNCTIONS
        + f"""
    go {{ p = (s32[], f32[1]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(3)
      ROOT c = pred[] compare(i, n), direction=LT }}
    step {{ p = (s32[], f32[1]) parameter(0) i = s32[] get-tuple-element(p), index=0
      x = f32[1] get-tuple-element(p), index=1 one = s32[] constant(1) j = s32[] add(i, one) v = f32[] reshape(x)
      w = f32[{MANY}] broadcast(v), dimensions={{}} y = f32[{MANY}] sine(w) r = f32[1] slice(y), slice={{[0:1]}}
      ROOT t = (s32[], f32[1]) tuple(j, r) }}
    ENTRY e {{ x = f32[1] parameter(0) z = s32[] constant(0) t = (s32[], f32[1]) tuple(z, x)
      ROOT w = (s32[], f32[1]) while(t), condition=go, body=step }}"""
    )
    with pytest.raises(MemoryLimitError, match=r"%y \(sine"):
        check_footprint(parse(loop))


@pytest.mark.usefixtures("little_memory")
def test_constants_are_refused_where_they_stand() -> None:
    with pytest.raises(HloSyntaxError, match=r"my.hlo:2:\d+: a constant of shape f32\[50000000\] .* 200,000,000"):
        parse(f"HloModule m\nENTRY e {{ ROOT c = f32[{MANY}] constant(1) }}", filename="my.hlo")
    with pytest.raises(HloSyntaxError, match="needs 200,000,000 bytes"):
        parse(f"HloModule m\nENTRY e {{ ROOT c = f32[{MANY}] constant({{...}}) }}", fill_elided=True)
    parse(f"HloModule m\nENTRY e {{ ROOT c = f32[{FEW}] constant(1) }}")


@pytest.mark.usefixtures("little_memory")
def test_inputs_that_do_not_fit_are_not_drawn() -> None:
    program = Program("big", "none", "extra", Path("big.hlo"), "")
    with pytest.raises(MemoryLimitError, match=r"inputs for big \(the largest is float32\[50000000\]\) needs"):
        random_inputs(program, [(np.float32, (4,)), (np.float32, (MANY,))], seed=0)
    (drawn,) = random_inputs(program, [(np.float32, (1000, 1000))], seed=0)
    assert drawn.shape == (1000, 1000)


@pytest.mark.usefixtures("little_memory")
def test_arguments_are_not_copied_where_there_is_no_room() -> None:
    executable = compile(
        f"HloModule m\nENTRY e {{ x = f32[{MANY}] parameter(0) ROOT r = f32[1] slice(x), slice={{[0:1]}} }}"
    )
    with pytest.raises(MemoryLimitError, match="a row-major copy of argument 0 needs 200,000,000 bytes"):
        executable(np.broadcast_to(np.float32(1), (MANY,)))


@pytest.mark.parametrize(
    "shape",
    ["f32[9223372036854775807]", "f32[4294967296,4294967296]", "f32[0,4611686018427387904,4611686018427387904]",
     "s8[3037000500,3037000500]"],
)  # fmt: skip
def test_sizes_beyond_63_bits_are_refused(shape: str) -> None:
    scalar = f"{shape[: shape.index('[')]}[]"
    for text in (
        f"ROOT x = {shape} parameter(0)",
        f"c = {scalar} constant(1) ROOT r = {shape} broadcast(c), dimensions={{}}",
    ):
        module = parse(f"HloModule m\nENTRY e {{ {text} }}")
        for check in (verify, compile):
            with pytest.raises(HloVerificationError, match=r"line 2: .*would take 2\^63 bytes or more"):
                check(module)
    for value in ("1", "{...}"):
        with pytest.raises(HloSyntaxError, match="does not fit into memory"):
            parse(f"HloModule m\nENTRY e {{ ROOT r = {shape} constant({value}) }}", fill_elided=True)


def test_sizes_beyond_63_bits_are_found_by_the_verifier() -> None:
    module = HloModule("m")
    entry = HloComputation("e")
    scalar = entry.add_parameter(0, Shape(PrimitiveType.F32))
    wide = Shape(PrimitiveType.F32, (1 << 40, 1 << 40))
    entry.root = entry.add(Opcode.BROADCAST, [scalar], wide, dimensions=())
    module.add(entry, entry=True)
    with pytest.raises(HloVerificationError, match=r"would take 2\^63 bytes or more"):
        verify(module)


def test_numpy_running_out_of_memory_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.support.memory, "available_bytes", lambda: None)  # the limit is unknown
    module = _module(TOO_LARGE["temporary"].replace("iota(), iota_dimension=0", "sine(w)"), 10**15)
    with pytest.raises(MemoryLimitError, match=r"not enough memory for %i \(sine of shape"):
        evaluate(module, [np.ones(1, np.float32)])


# ---- available memory


def test_there_is_memory_here_and_little_things_are_not_asked_for() -> None:
    available = available_bytes()
    assert available is not None and available > SMALL
    check_memory(SMALL, "something small")
    with pytest.raises(
        MemoryLimitError, match=r"^that needs more than 10\^29 bytes of memory, and [\d,]+ bytes .* are av"
    ):
        check_memory(10**29, "that")


@pytest.mark.parametrize(
    ("count", "text"),
    [(12, "12 bytes"), (5 << 20, "5,242,880 bytes (5.00 MiB)"), (40_000_000_000, "40,000,000,000 bytes (37.25 GiB)"),
     (10**21, "more than 10^21 bytes"), (10**5000, "more than 10^4000 bytes")],
    ids=["small", "MiB", "GiB", "large", "beyond"],
)  # fmt: skip
def test_sizes_as_text(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_of_control_groups_count(version: int, tmp_path: Path) -> None:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
        2: ("memory.max", "memory.current", "inactive_file", "active_file"),
    }[version]
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)

    def write(folder: Path, limit: str, usage: int, cached: int) -> None:
        (folder / names[0]).write_text(f"{limit}\n")
        (folder / names[1]).write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cached}\nodd\n")

    write(inner, "max" if version == 2 else str(2**63 - 4096), 700, 0)
    write(inner.parent, "1000", 900, 250)
    found = list(compiler.support.memory._of_groups(tmp_path, "/outer/inner", *names))
    assert min(found) == 1000 - 900 + 250
    assert list(compiler.support.memory._of_groups(tmp_path, "/not/there", *names)) == []
    assert list(compiler.support.memory._of_groups(tmp_path, "/../outer", *names)) == []


def test_the_limits_of_the_shell_count() -> None:
    program = """
import resource, numpy
from compiler.interpreter import evaluate
from compiler.text import parse
from compiler import compile
from compiler.errors import MemoryLimitError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
text = '''HloModule m
ENTRY e { x = f32[] parameter(0) w = f32[2000000000] broadcast(x), dimensions={} ROOT y = f32[2000000000] sine(w) }'''
x = numpy.float32(1)
for work in (lambda t: compile(t)(x), lambda t: evaluate(parse(t), [x])):
    try:
        work(text)
    except MemoryLimitError as e:
        print(e)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for line in lines:
        needed, there = re.findall(r"([\d,]+) bytes", line)[:2]
        assert int(needed.replace(",", "")) >= 8_000_000_000 and int(there.replace(",", "")) < 4 << 30
