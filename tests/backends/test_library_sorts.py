"""Sorts of long rows on a GPU by CuPy, on the stand-in, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import CompileOptions, compile
from compiler.backends.cuda.emulation import available, stand_in
from compiler.backends.cuda.library_sorts import sort_refusal
from compiler.codegen.schedules.thread_sorts import LONGEST_SORT
from compiler.interpreter import evaluate
from compiler.text import parse
from tests.codegen.test_sort_by_key import assert_same_bits, keys

needs_emulator = pytest.mark.skipif(not available(), reason="the emulator needs g++")
PLAIN = CompileOptions(optimize=False)
LONG = LONGEST_SORT + 3


def _text(element: str, shape: tuple[int, ...], direction: str, key: str = "", values: str = "") -> str:
    """Return a module that sorts the rows of an array, with other values beside it if `values` is their type."""
    dims = ",".join(map(str, shape))
    arrays = [f"{t}[{dims}]" for t in (element, values) if t]
    kind = ", type=TOTALORDER" if element.startswith(("f", "b")) else ""
    lines = [f"a = {element}[] parameter(0)", f"b = {element}[] parameter(1)"]
    lines += [f"c = {values}[] parameter(2)", f"d = {values}[] parameter(3)"] if values else []
    if key:
        lines += [f"x = {element}[] {key}(a)", f"y = {element}[] {key}(b)"]
    left, right = ("x", "y") if key else ("a", "b")
    lines.append(f"ROOT r = pred[] compare({left}, {right}), direction={direction}{kind}")
    parameters = [f"p{k} = {a} parameter({k})" for k, a in enumerate(arrays)]
    names = ", ".join(f"p{k}" for k in range(len(arrays)))
    out = arrays[0] if len(arrays) == 1 else f"({', '.join(arrays)})"
    sort = f"ROOT s = {out} sort({names}), dimensions={{{len(shape) - 1}}}, to_apply=less, is_stable=true"
    body, entry = "\n  ".join(lines), "\n  ".join([*parameters, sort])
    return f"HloModule m\nless {{\n  {body}\n}}\nENTRY e {{\n  {entry}\n}}\n"


def _check(text: str, args: list[Any]) -> None:
    module = parse(text)
    executable = compile(module, backend="cuda", options=PLAIN)
    assert [t.kind for t in executable.thunks] == ["kernel", "library", "kernel"]
    with stand_in.installed():
        for _ in range(3):
            assert_same_bits([r.get() for r in executable(*args)], evaluate(module, args))


@needs_emulator
@pytest.mark.parametrize("element", ["f32", "bf16", "s32", "u8"])
@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_keys_of_every_kind(element: str, direction: str) -> None:
    _check(_text(element, (2, LONG), direction), [keys(element, (2, LONG))])


@needs_emulator
def test_values_stay_in_order_where_keys_are_equal() -> None:
    shape = (1, 2, LONG)
    positions = np.tile(np.arange(LONG, dtype=np.int32), (1, 2, 1))
    _check(_text("f32", shape, "GT", values="s32"), [keys("f32", shape, few=True), positions])


@needs_emulator
def test_keys_are_functions_of_the_elements() -> None:
    _check(_text("f32", (LONG,), "LT", key="abs"), [keys("f32", (LONG,))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (_text("f32", (4, 9), "LT").replace(", type=TOTALORDER", ""), "has no key"),
        (_text("f32", (4, 9), "LE"), "has no key"),
        (_text("f32", (4, 9), "LT").replace("dimensions={1}", "dimensions={0}"), "does not sort rows"),
        (_text("f32", (4, 0), "LT"), "does not sort rows"),
        (_text("f32", (4, 9), "LT").replace("compare(a, b)", "compare(a, a)"), "has no key"),
    ],
)
def test_what_the_library_does_not_sort(text: str, reason: str) -> None:
    refusal = sort_refusal(parse(text).entry.root)
    assert refusal is not None
    assert reason in refusal
