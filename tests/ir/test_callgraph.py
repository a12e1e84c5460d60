"""Programs whose calls nest deeply, or double at each level, take linear time or are refused with one clear error."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import compile
from compiler.api import CompileOptions
from compiler.errors import HloSyntaxError, UnsupportedError
from compiler.interpreter import evaluate
from compiler.ir import HloModule, Opcode
from compiler.ir.callgraph import MAX_NESTING, CallGraph, check_call_graph
from compiler.ir.computation import has_side_effect
from compiler.ir.shape import MAX_TUPLE_DEPTH, MAX_TUPLE_LEAVES
from compiler.ir.verifier import verify
from compiler.passes import run_pass
from compiler.passes.control_flow.call_inliner import CallInliner
from compiler.passes.infrastructure.registry import make_pass
from compiler.passes.pipelines.default import default_pipeline
from compiler.support.recursion import deep_recursion, on_deep_stack
from compiler.text import parse

LESS = """less { p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(2)
  ROOT c = pred[] compare(i, n), direction=LT }"""


def chain(levels: int, leaf: str = "sine(x)", callers_first: bool = False) -> str:
    """Return nested calls, with an addition at each level."""
    functions = [f"c0 {{\n x = f32[4] parameter(0)\n ROOT r = f32[4] {leaf}\n}}"]
    functions += [
        f"c{k} {{\n x = f32[4] parameter(0)\n y = f32[4] add(x, x)\n ROOT r = f32[4] call(y), to_apply=c{k - 1}\n}}"
        for k in range(1, levels)
    ]
    entry = f"ENTRY e {{\n x = f32[4] parameter(0)\n ROOT r = f32[4] call(x), to_apply=c{levels - 1}\n}}"
    parts = [entry, *reversed(functions)] if callers_first else [*functions, entry]
    return "HloModule m\n" + "\n".join(parts)


def doubling(levels: int, call: str = "call({}), to_apply=c{}") -> str:
    """Return computations each of which calls the next one twice."""
    functions = ["c0 {\n x = f32[4] parameter(0)\n ROOT r = f32[4] sine(x)\n}"]
    for k in range(1, levels):
        once, twice = call.format("x", k - 1), call.format("a", k - 1)
        functions.append(f"c{k} {{ x = f32[4] parameter(0) a = f32[4] {once} ROOT r = f32[4] {twice} }}")
    last = call.format("x", levels - 1)
    return "HloModule m\n" + "\n".join(functions) + f"\nENTRY e {{ x = f32[4] parameter(0) ROOT r = f32[4] {last} }}"


def loops(levels: int) -> str:
    """Return nested loops, each of which runs once."""
    bodies = []
    for k in range(levels):
        inner = "y = f32[4] sine(x)"
        if k:
            inner = f"""z = s32[] constant(1) t = (s32[], f32[4]) tuple(z, x)
              w = (s32[], f32[4]) while(t), condition=less, body=b{k - 1} y = f32[4] get-tuple-element(w), index=1"""
        bodies.append(f"""b{k} {{ p = (s32[], f32[4]) parameter(0) i = s32[] get-tuple-element(p), index=0
          x = f32[4] get-tuple-element(p), index=1 one = s32[] constant(1) j = s32[] add(i, one)
          {inner} ROOT r = (s32[], f32[4]) tuple(j, y) }}""")
    return f"""HloModule m
{LESS}
{chr(10).join(bodies)}
ENTRY e {{ x = f32[4] parameter(0) z = s32[] constant(1) t = (s32[], f32[4]) tuple(z, x)
  w = (s32[], f32[4]) while(t), condition=less, body=b{levels - 1} ROOT y = f32[4] get-tuple-element(w), index=1 }}"""


def branches(levels: int) -> str:
    """Return nested conditionals."""
    functions = ["c0 {\n x = f32[4] parameter(0)\n ROOT y = f32[4] sine(x)\n}"]
    functions += [
        f"""c{k} {{ x = f32[4] parameter(0) s = f32[1] slice(x), slice={{[0:1]}} q = f32[] reshape(s)
        z = f32[] constant({k}) p = pred[] compare(q, z), direction=LT
        ROOT y = f32[4] conditional(p, x, x), true_computation=c{k - 1}, false_computation=leaf }}"""
        for k in range(1, levels)
    ]
    entry = f"ENTRY e {{ x = f32[4] parameter(0) ROOT y = f32[4] call(x), to_apply=c{levels - 1} }}"
    leaf = "leaf {\n x = f32[4] parameter(0)\n ROOT y = f32[4] cosine(x)\n}"
    return "HloModule m\n" + "\n".join([leaf, *functions, entry])


def maps(levels: int, twice: bool = False) -> str:
    """Return nested maps."""
    functions = ["f0 {\n x = f32[] parameter(0)\n ROOT r = f32[] sine(x)\n}"]
    for k in range(1, levels):
        again = f"map(a), dimensions={{}}, to_apply=f{k - 1}" if twice else "negate(a)"
        functions.append(f"""f{k} {{ x = f32[] parameter(0) a = f32[] map(x), dimensions={{}}, to_apply=f{k - 1}
          ROOT r = f32[] {again} }}""")
    entry = f"ENTRY e {{ x = f32[4] parameter(0) ROOT r = f32[4] map(x), dimensions={{0}}, to_apply=f{levels - 1} }}"
    return "HloModule m\n" + "\n".join([*functions, entry])


def reducer(levels: int) -> str:
    """Return a reduce whose reducer calls a function that calls a function..."""
    functions = ["f0 { x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] add(x, y) }"]
    functions += [
        f"f{k} {{ x = f32[] parameter(0) y = f32[] parameter(1) ROOT r = f32[] call(x, y), to_apply=f{k - 1} }}"
        for k in range(1, levels)
    ]
    entry = f"""ENTRY e {{ x = f32[4] parameter(0) z = f32[] constant(0)
      s = f32[] reduce(x, z), dimensions={{0}}, to_apply=f{levels - 1}
      ROOT r = f32[4] broadcast(s), dimensions={{}} }}"""
    return "HloModule m\n" + "\n".join([*functions, entry])


X = np.array([0.25, -1.0, 3.0, 0.5], np.float32)


def _runs(text: str) -> None:
    """Check that every operation works on a program, with the interpreter's results."""
    module = parse(text)
    verify(module)
    assert parse(str(module)).fingerprint() == module.clone().fingerprint() == module.fingerprint()
    (want,) = evaluate(module, [X])
    optimised = module.clone()
    run_pass(default_pipeline(), optimised)
    np.testing.assert_allclose(evaluate(optimised, [X])[0], want, rtol=1e-5)
    np.testing.assert_allclose(compile(module)(X)[0], want, rtol=1e-5)
    np.testing.assert_allclose(compile(module, options=CompileOptions(optimize=False))(X)[0], want, rtol=1e-5)


def _is_refused(text: str, match: str) -> None:
    """Check that a program is refused at once with one message, but can be parsed, verified and printed."""
    module = parse(text)
    verify(module)
    assert parse(str(module)).fingerprint() == module.fingerprint()
    for work in WORK:
        with pytest.raises(UnsupportedError, match=match) as caught:
            work(module.clone())
        assert "\n" not in str(caught.value)


WORK: tuple[Callable[[HloModule], Any], ...] = (
    lambda m: run_pass(make_pass("dce"), m),
    lambda m: evaluate(m, [X]),
    compile,
    lambda m: compile(m, options=CompileOptions(optimize=False)),
    lambda m: compile(m, backend="cuda"),
    lambda m: compile(m, backend="interpreter")(X),
)


@pytest.mark.parametrize(
    "text",
    [chain(300), chain(300, callers_first=True), doubling(7), loops(40), branches(60), maps(60), reducer(300)],
    ids=["chain", "callers first", "doubling", "loops", "branches", "maps", "reducer"],
)
def test_what_nests_deeper_than_anybody_writes_runs(text: str) -> None:
    _runs(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (doubling(40), "has [0-9]+ instructions, and at most 1000000"),
        (doubling(1500), r"has more than 10\^[0-9]+ instructions"),
        (doubling(60, "conditional(t, {0}, {0}), true_computation=c{1}, false_computation=c{1}").replace(
            "x = f32[4] parameter(0)", "x = f32[4] parameter(0) t = pred[] constant(true)"), "instructions"),
        (maps(60, twice=True), "instructions"),
        (loops(1000), "nest 1000 levels deep"),
        (branches(1000), "nest 999 levels deep"),
        (maps(1000), "nest 1000 levels deep"),
    ],
    ids=["doubling", "doubling 1500 times", "doubling branches", "doubling maps", "loops", "branches", "maps"],
)  # fmt: skip
def test_what_would_grow_or_nest_without_bound_is_refused(text: str, match: str) -> None:
    _is_refused(text, match)


def test_twenty_thousand_calls_are_inlined_in_linear_memory() -> None:
    module = parse(chain(20_000))
    tracemalloc.start()
    assert run_pass(CallInliner(), module, verify=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(i.opcode is not Opcode.CALL for i in module.entry.instructions)
    assert len(module.computations) == 1 and len(module.entry) == 20_001
    assert peak < 300 << 20


def test_twenty_thousand_calls_are_read_checked_printed_and_run() -> None:
    module = parse(chain(20_000, leaf="negate(x)", callers_first=True))
    verify(module)
    assert len(str(module)) > 20_000
    assert CallGraph.of(module.entry).calls == 20_000
    small = np.full(4, 2.0**-140, np.float32)
    (got,) = evaluate(module, [small])
    assert np.all(np.isneginf(got))


def test_nested_calls_run_where_torch_evaluates_frames() -> None:
    dynamo = pytest.importorskip("torch._dynamo")
    module = parse(chain(6_000, leaf="negate(x)", callers_first=True))
    (got,) = dynamo.run(lambda: evaluate(module, [np.full(4, 2.0**-140, np.float32)]))()
    assert np.all(np.isneginf(got))


def test_errors_on_a_deep_stack_are_those_of_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        on_deep_stack(lambda: 1 // 0, 10_000)
    assert on_deep_stack(threading.current_thread, 10) is threading.current_thread()
    assert on_deep_stack(threading.current_thread, 10_000) is not threading.current_thread()
    assert threading.stack_size() == 0


def test_the_call_graph_counts_what_is_written_out() -> None:
    graph = CallGraph.of(parse(doubling(4)).entry)
    # c0 has 2 instructions, each of the next 3 plus twice its predecessor, the entry 2 plus the last.
    sizes = [2]
    for _ in range(3):
        sizes.append(3 + 2 * sizes[-1])
    assert (graph.instructions, graph.nesting, graph.calls) == (2 + sizes[-1], 0, 4)
    assert CallGraph.of(parse(loops(7)).entry).nesting == 7
    check_call_graph(parse(loops(MAX_NESTING)))
    with pytest.raises(UnsupportedError):
        check_call_graph(parse(loops(MAX_NESTING + 1)))


def test_inlining_stops_before_a_module_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.passes.control_flow.call_inliner.MAX_INSTRUCTIONS", 3000)
    module = parse(doubling(16))
    CallInliner().run(module)  # without the check of the call graph
    verify(module)
    assert 2000 < module.instruction_count <= 3000
    np.testing.assert_allclose(evaluate(module, [X])[0], evaluate(parse(doubling(16)), [X])[0])
    small = parse(doubling(6))
    assert CallInliner(max_ops=8).run(small)
    left = [i for c in small.computations for i in c.instructions if i.opcode is Opcode.CALL]
    assert left and all(len(i.attributes["to_apply"]) > 8 for i in left)
    np.testing.assert_allclose(evaluate(small, [X])[0], evaluate(parse(doubling(6)), [X])[0])


def test_effects_are_found_however_deep_and_often_they_are_called() -> None:
    text = doubling(200).replace("ROOT r = f32[4] sine(x)", "k = token[] after-all() o = token[] outfeed(x, k), "
                                 "outfeed_shape=f32[4] ROOT r = f32[4] sine(x)", 1)  # fmt: skip
    for given, effect in ((doubling(200), False), (text, True)):
        module = parse(given)
        assert module.entry.has_side_effect is effect
        assert has_side_effect(module.entry.root) is effect


def test_threads_may_raise_the_limit_on_recursion_together() -> None:
    inside, done = threading.Barrier(2), threading.Event()
    failures: list[BaseException] = []

    def nested(levels: int) -> int:
        return 0 if levels == 0 else 1 + nested(levels - 1)

    def first() -> None:
        with deep_recursion():
            inside.wait()
        done.set()

    def second() -> None:
        try:
            with deep_recursion():
                inside.wait()
                done.wait()  # the other thread is done, and must not have reset the limit
                assert nested(20_000) == 20_000
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
    with pytest.raises(RecursionError):
        nested(20_000)


# ---- tuples


def _nested_tuple(levels: int) -> str:
    lines = [f"t{k} = tuple(t{k - 1})" for k in range(1, levels)]
    reads = [f"g{k} = get-tuple-element(g{k - 1}), index=0" for k in range(1, levels + 1)]
    return f"""HloModule m
    ENTRY e {{ x = f32[4] parameter(0) t0 = (f32[4]) tuple(x) {chr(10).join(lines)}
    g0 = copy(t{levels - 1}) {chr(10).join(reads)} ROOT r = f32[4] negate(g{levels}) }}"""


def test_tuples_nest_up_to_a_limit() -> None:
    _runs(_nested_tuple(MAX_TUPLE_DEPTH))
    for levels in (MAX_TUPLE_DEPTH + 1, 10_000):
        with pytest.raises(HloSyntaxError, match=f"tuples nest deeper than {MAX_TUPLE_DEPTH} levels"):
            parse(_nested_tuple(levels))
        text = "(" * levels + "f32[4]" + ")" * levels
        with pytest.raises(HloSyntaxError, match="deeper than"):
            parse(f"HloModule m\nENTRY e {{ ROOT p = {text} parameter(0) }}")
        values = "(" * levels + "{1,2,3,4}" + ")" * levels
        with pytest.raises(HloSyntaxError, match="deeper than"):
            parse(f"HloModule m\nENTRY e {{ ROOT p = {text} constant({values}) }}")


def test_tuples_of_tuples_do_not_double_for_ever() -> None:
    lines = "\n".join(f"t{k} = tuple(t{k - 1}, t{k - 1})" for k in range(1, 100))
    with pytest.raises(HloSyntaxError, match=f"a tuple has {2 * MAX_TUPLE_LEAVES} leaves"):
        parse(f"HloModule m\nENTRY e {{ t0 = f32[] parameter(0) {lines} }}")


def test_a_tuple_of_thousands_takes_linear_time_to_change() -> None:
    """Two thousand elements are all replaced; searching the tuple for each would take four million steps per pass."""
    count = 2000
    values = "\n".join(f"z{k} = f32[4] constant({{{k},0,0,0}})\nv{k} = f32[4] add(x, z{k})" for k in range(count))
    names = ", ".join(f"v{k}" for k in range(count))
    module = parse(f"HloModule m\nENTRY e {{ x = f32[4] parameter(0)\n{values}\nROOT t = tuple({names}, v0) }}")
    root = module.entry.root
    for k in range(count):
        old = module.entry.find(f"v{k}")
        assert old is not None
        new = module.entry.add(Opcode.NEGATE, [old])
        for user in [u for u in old.users if u is not new]:
            user.replace_operands(old, new)
    assert [o.operands[0].name for o in root.operands] == [*(f"v{k}" for k in range(count)), "v0"]
    first, last = root.operands[0], root.operands[-2]
    root.replace_operand(0, last)
    assert root in first.users and root.operands[0] is root.operands[-2] is last and root.operands[-1] is first
    root.replace_operand(count, last)
    assert root not in first.users
    verify(module)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("text", [chain(20_000), chain(5_000, callers_first=True), reducer(5_000)], ids=str.__len__)
def test_thousands_of_calls_run(text: str) -> None:
    _runs(text)
