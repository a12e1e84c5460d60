"""The work of copy elision, counted in executed lines, is linear in the number of loops."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from compiler.runtime import coalesce
from compiler.runtime.thunk_emitter import ThunkEmitter
from compiler.text import parse


def loops_in_a_row(count: int) -> str:
    """Return a program of loops with unknown trip counts, each of which starts from the results of the previous one."""
    state = "(s32[], s32[], f32[8], f32[8])"
    parts = [f"t = {state} parameter(0)", "i = s32[] get-tuple-element(t), index=0"]
    parts += ["n = s32[] get-tuple-element(t), index=1"]
    body = [
        *parts, "a = f32[8] get-tuple-element(t), index=2", "b = f32[8] get-tuple-element(t), index=3",
        "o = s32[] constant(1)", "j = s32[] add(i, o)", "c = f32[8] tanh(a)", "d = f32[8] add(c, b)",
        f"ROOT r = {state} tuple(j, n, b, d)",
    ]  # fmt: skip
    test = [*parts, "ROOT p = pred[] compare(i, n), direction=LT"]
    entry = ["a0 = f32[8] parameter(0)", "b0 = f32[8] parameter(1)", "n = s32[] parameter(2)", "z = s32[] constant(0)"]
    for k in range(count):
        entry.append(f"t{k} = {state} tuple(z, n, a{k}, b{k})")
        entry.append(f"w{k} = {state} while(t{k}), condition=c{k}, body=b{k}")
        entry.append(f"a{k + 1} = f32[8] get-tuple-element(w{k}), index=2")
        entry.append(f"b{k + 1} = f32[8] get-tuple-element(w{k}), index=3")
    entry.append(f"ROOT r = (f32[8], f32[8]) tuple(a{count}, b{count})")
    called = [f"{name}{k} {{\n{chr(10).join(x)}\n}}" for k in range(count) for name, x in (("b", body), ("c", test))]
    return "\n".join(["HloModule loops", *called, "ENTRY e {", *entry, "}"])


def executed_lines(count: int) -> int:
    """Return the number of lines of `coalesce` that are executed for one program."""
    program = ThunkEmitter("c").emit(parse(loops_in_a_row(count)))
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        del arg
        if frame.f_code.co_filename != coalesce.__file__:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        coalesce.coalesce(program.thunks, program.results)
        coalesce.timeline(program.thunks, program.results).intervals()
    finally:
        sys.settrace(before)
    return lines


def test_the_work_is_linear_in_the_number_of_loops() -> None:
    assert executed_lines(80) < 4 * 1.6 * executed_lines(20)
