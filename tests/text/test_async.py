"""Async ops: short forms, operands and results bound by updates, computations defined after their callers."""

from typing import Any

import pytest

from compiler.errors import HloSyntaxError
from compiler.ir import Opcode
from compiler.ir.verifier import verify
from compiler.text import parse
from tests.text.reference import assert_round_trip, reprint

NEGATE = "f {\n p = f32[8] parameter(0)\n ROOT r = f32[8] negate(p)\n}\n"
PAIR = "g {\n p = f32[8] parameter(0)\n q = f32[8] parameter(1)\n ROOT r = (f32[8], f32[8]) tuple(p, q)\n}\n"
# A name that the parser would generate.
SINE = "async_wrapped {\n p = f32[8] parameter(0)\n ROOT r = f32[8] sine(p)\n}\n"
LOOP = """body {
 s = (f32[8], ((f32[8]), f32[8], u32[])) parameter(0)
 st = ((f32[8]), f32[8], u32[]) get-tuple-element(s), index=1
 up = ((f32[8]), f32[8], u32[]) async-update(st), calls=f
 dn = f32[8] async-done(up), calls=f
 nx = ((f32[8]), f32[8], u32[]) async-start(dn), calls=f
 ROOT t = tuple(dn, nx)
}
cond {
 s = (f32[8], ((f32[8]), f32[8], u32[])) parameter(0)
 ROOT p = pred[] constant(false)
}
"""
ENTRIES = {
    "calls": (NEGATE + PAIR + SINE, """ENTRY e {
 x = f32[8] parameter(0)
 y = f32[8] parameter(1)
 s = ((f32[8]), f32[8], u32[]) call-start(x), to_apply=f
 a = f32[8] call(y), to_apply=async_wrapped
 d = f32[8] call-done(s)
 t = ((), (), u32[]) call-start(), to_apply=g, async_execution_thread="side"
 u = ((f32[8]), (), u32[]) call-update(t, d)
 v = ((f32[8], f32[8]), (f32[8]), u32[]) call-update(u, a)
 ROOT k = (f32[8], f32[8]) call-done(v)
}
"""),
    "loop": (NEGATE + LOOP, """ENTRY e {
 x = f32[8] parameter(0)
 s = ((f32[8]), f32[8], u32[]) async-start(x), calls=f
 i = tuple(x, s)
 l = (f32[8], ((f32[8]), f32[8], u32[])) while(i), condition=cond, body=body
 z = ((f32[8]), f32[8], u32[]) get-tuple-element(l), index=1
 ROOT d = f32[8] async-done(z), calls=f
}
"""),
    "short": (NEGATE + SINE, """ENTRY e {
 x = f32[8] parameter(0)
 y = f32[8] fusion(x), kind=kLoop, calls=f
 s = ((f32[8]), f32[8], u32[]) fusion-start(y), kind=kLoop, calls=async_wrapped
 u = ((f32[8]), f32[8], u32[]) fusion-update(s)
 ROOT d = f32[8] fusion-done(u)
}
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_computations_may_stand_below_what_starts_them(name: Any) -> None:
    callees, entry = ENTRIES[name]
    above, below = parse(f"HloModule m\n{callees}{entry}"), parse(f"HloModule m\n{entry}{callees}")
    verify(above)
    verify(below)
    assert below.fingerprint() == above.fingerprint()
    assert len(below.computations) == len(above.computations)
    for module in (above, below):
        assert str(parse(str(module))) == str(module)


def test_what_xla_reads_of_a_start_it_reads_of_our_print() -> None:
    callees, entry = ENTRIES["short"]
    assert_round_trip(f"HloModule m\n{callees}{entry}")


@pytest.mark.parametrize("start", ["call-start(x), to_apply=f", "async-start(x), calls=w"])
def test_a_start_runs_all_that_it_calls_on_its_thread(start: Any) -> None:
    wrapper = "w {\n p = f32[8] parameter(0)\n ROOT c = f32[8] call(p), to_apply=f\n}\n" if "=w" in start else ""
    text = (
        f"HloModule m\n{NEGATE}{wrapper}ENTRY e {{\n x = f32[8] parameter(0)\n"
        f' s = ((f32[8]), f32[8], u32[]) {start}, async_execution_thread="side"\n ROOT d = f32[8] async-done(s)\n}}'
    )
    module = assert_round_trip(text)
    verify(module)
    theirs = parse(reprint(text))
    for computation in (module.find("f"), theirs.find("f")):
        assert computation is not None and computation.attributes == {"execution_thread": "side"}


def test_operands_and_result_of_a_short_form_may_be_bound_late() -> None:
    module = parse(
        "HloModule m\nENTRY e {\n x = f32[2,3] parameter(0)\n y = f32[3,4] parameter(1)\n"
        " s = ((), (), u32[]) dot-start(), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        " u = ((f32[2,3]), (), u32[]) dot-update(s, x)\n v = ((f32[2,3], f32[3,4]), (), u32[]) dot-update(u, y)\n"
        " ROOT d = f32[2,4] dot-done(v)\n}"
    )
    verify(module)
    start: Any = module.entry.find("s")
    root = start.attr("calls").root
    assert root.opcode is Opcode.DOT and len(root.operands) == 2 and str(root.shape) == "f32[2,4]"


BROKEN = {
    "started a negate, not a sine": "s = ((f32[8]), f32[8], u32[]) negate-start(x)\n ROOT d = f32[8] sine-done(s)",
    "calls f, not g": "s = ((f32[8]), f32[8], u32[]) async-start(x), calls=f\n ROOT d = f32[8] async-done(s), calls=g",
    "runs on thread 'main', not 'side'": "s = ((f32[8]), f32[8], u32[]) async-start(x), calls=f\n"
    ' ROOT d = f32[8] async-done(s), async_execution_thread="side"',
    "cannot continue an async-done": "s = ((f32[8]), f32[8], u32[]) negate-start(x)\n d = f32[8] negate-done(s)\n"
    " ROOT k = f32[8] negate-done(d)",
    "needs the async instruction": "ROOT d = f32[8] negate-done()",
    "must declare its shape": "s = f32[8] negate-start(x)\n ROOT d = f32[8] negate-done(s)",
    "no computation named 'async_wrapped'": "s = ((f32[8]), f32[8], u32[]) negate-start(x)\n"
    " d = f32[8] negate-done(s)\n ROOT c = f32[8] call(d), to_apply=async_wrapped",
}


@pytest.mark.parametrize("message", BROKEN)
def test_what_a_chain_repeats_must_agree(message: Any) -> None:
    with pytest.raises(HloSyntaxError, match=message):
        parse(f"HloModule m\n{NEGATE}{PAIR}ENTRY e {{\n x = f32[8] parameter(0)\n {BROKEN[message]}\n}}")
