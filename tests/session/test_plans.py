"""Untrusted plans: invalid values are rejected when read, and a failed replay leaves the session unchanged."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from compiler import compile
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.codegen.schedules.schedule import LOCAL_BYTES
from compiler.codegen.templates.loop_kernel import make_loop_kernel
from compiler.errors import PlanError
from compiler.fusion.actions import FusionAction
from compiler.interpreter import evaluate
from compiler.ir import Opcode
from compiler.loops import KernelLoops
from compiler.plan import CompilationPlan, FusionStep, LoopChoice
from compiler.runtime.kernel_sites import KernelSite
from compiler.session import CompilationSession
from compiler.text import parse
from tests.fuzz.plan_programs import LOOPS, WIDE, plan_program

COLUMNS = """
HloModule columns
add { a = f64[] parameter(0) b = f64[] parameter(1) ROOT s = f64[] add(a, b) }
ENTRY main {
  x = f64[40,90000] parameter(0)
  zero = f64[] constant(0)
  ROOT sums = f64[90000] reduce(x, zero), dimensions={0}, to_apply=add
}
"""


@cache
def _plan() -> CompilationPlan:
    session = CompilationSession(parse(WIDE))
    session.run_passes()
    session.run_fusion_policy(_Fusing())
    session.set_kernel(session.kernels()[0].name, {"tile": 16})
    return session.plan


class _Fusing:
    """A policy that takes the first action three times."""

    def choose(self, state: Any) -> FusionAction | None:
        return state.actions()[0] if len(state.history) < 3 and state.actions() else None


NESTED: Any = []
for _ in range(100_000):
    NESTED = [NESTED]


def _choice(knob: str, value: object, kernel: str = "x") -> dict[str, Any]:
    """Return the kernel choices of a plan in JSON."""
    return {"main": {kernel: {"implementation": "generated", "schedule": {knob: value}}}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("fingerprint", 3), ("fingerprint", "abc"), ("fingerprint", "Z" * 64), ("base", None), ("base", "1"),
        ("backend", "a backend"), ("backend", ["cpu"]), ("passes", "dce"), ("passes", [1]),
        ("passes", ["dce"] * 100_000), ("passes", ["a\nb"]), ("passes", ["\ud800"]), ("loops", {}), ("loops", [1]),
        ("loops", [{"id": "a", "position": True, "choice": "keep"}]),
        ("loops", [{"id": "a", "position": 0.0, "choice": "keep"}]), ("loops", [{"id": "a", "position": 0}]),
        ("loops", [{"id": "a", "position": 0, "choice": "keep", "more": 1}]), ("places", {"main": {"x": True}}),
        ("places", {"main": {"x": 1, "y": 1}}), ("places", {"elsewhere": {"x": 1}}), ("places", []),
        ("sequences", ["main", "main"]), ("sequences", [""]), ("kernels", {"main": {"x": {"tile": 8}}}),
        ("kernels", _choice("tile", True)), ("kernels", _choice("tile", 1e9)), ("kernels", _choice("size", 1)),
        ("kernels", {"main": {"x": 3}}), ("kernels", {"main": 3}), ("kernels", {"main": {"x": {"implementation": 1}}}),
        ("kernels", {"elsewhere": {"x": {}}}), ("kernels", _choice("columns", 4_000_000)),
        ("kernels", _choice("block", 33)), ("fusions", [NESTED]),
        ("kernels", NESTED), ("places", {"main": NESTED}),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, str) else None,
)  # fmt: skip
def test_an_invalid_value_is_rejected_when_the_plan_is_read(field: str, value: object) -> None:
    data = {**_plan().to_dict(), field: value}
    with pytest.raises(PlanError) as caught:
        CompilationPlan.from_json(data, "my.json")
    assert str(caught.value).startswith(f"my.json: {field}") and len(str(caught.value)) < 400


@pytest.mark.parametrize("backend", ["tpu", "auto"])
def test_a_plan_for_an_unknown_backend_is_rejected_on_replay(backend: str) -> None:
    plan = CompilationPlan.from_json({**_plan().to_dict(), "backend": backend})
    session = CompilationSession(parse(WIDE))
    with pytest.raises(PlanError, match=f"unknown backend '{backend}'; there are cpu, cuda, interpreter"):
        session.replay(plan)
    assert session.plan == CompilationSession(parse(WIDE)).plan


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "producer-consumer", "consumers": ["a", "b"], "made": ["f", "g"]}, "takes one consumer"),
        ({"kind": "producer-into-all-users", "consumers": ["a", "a"], "made": ["f", "g"]}, "named twice"),
        ({"kind": "producer-consumer", "consumers": ["a"], "made": []}, "made must name 1"),
        ({"kind": ["sibling"]}, "kind must be one of"),
        ({"consumers": "x"}, "consumers must be a list of names"),
        ({"producer": 1}, "producer must be a name"),
        ({"producer": "a\x1b[2J"}, "producer must be a name"),
        ({"more": 1}, "unknown entry more"),
    ],
)
def test_an_invalid_fusion_is_rejected_when_the_plan_is_read(change: dict[str, object], why: str) -> None:
    data = _plan().to_dict()
    data["fusions"][1].update(change)
    with pytest.raises(PlanError, match=rf"my\.json: fusions\[1\]: .*{why}"):
        CompilationPlan.from_json(data, "my.json")


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(CompilationPlan)])
@pytest.mark.parametrize(
    "value", [None, 1, True, "x", b"x", object(), [1], {1: 2}, NESTED], ids=lambda v: type(v).__name__
)
def test_a_plan_built_in_python_is_also_checked(field: str, value: object) -> None:
    plan = _plan()
    with pytest.raises(PlanError):
        session = CompilationSession(parse(WIDE))
        session.replay(dataclasses.replace(plan, **cast(Any, {field: value})))


def test_numpy_integers_are_accepted() -> None:
    three: Any = np.uint8(3)
    assert LoopChoice("a", three, "keep") == LoopChoice("a", 3, "keep")
    assert type(LoopChoice("a", three, "keep").position) is int
    session = CompilationSession(parse(WIDE))
    choice: Any = {"columns": np.int32(64)}
    session.set_kernel("c", choice)
    assert json.loads(session.plan.to_json())["kernels"] == _choice("columns", 64, kernel="c")


CHANGES: tuple[Callable[[dict[str, Any]], Any], ...] = (
    lambda d: d.update(base=""),
    lambda d: d.update(base="0" * 64),
    lambda d: d.update(sequences=[*d["sequences"], "more"]),
    lambda d: d["places"]["main"].update(x=10_000),
    lambda d: d["places"]["main"].clear(),
    lambda d: d["fusions"].reverse(),
    lambda d: d["fusions"].append(d["fusions"][-1]),
    lambda d: d["fusions"][-1].update(computation="missing"),
    lambda d: d.update(kernels=_choice("tile", 8, kernel="missing")),
    lambda d: d.update(passes=["no-such-pass"]),
    lambda d: d.update(passes=["while-loop-unroller{factor=1000000000}"]),
    lambda d: d.update(loop_passes=["dce{"]),
    lambda d: d.update(loops=[{"id": "a", "position": 2**70, "choice": "keep"}]),
    lambda d: d.update(loops=[{"id": "a", "position": 0, "choice": "unroll-1000000000"}]),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_that_cannot_be_replayed_leaves_the_session_unchanged(change: Callable[[dict[str, Any]], Any]) -> None:
    data = _plan().to_dict()
    change(data)
    session = CompilationSession(parse(WIDE))
    new = str(session.module), session.plan, session.phase
    with pytest.raises(PlanError):
        session.replay(CompilationPlan.from_json(json.dumps(data)))
    assert (str(session.module), session.plan, session.phase) == new


def test_an_object_that_is_not_a_plan_is_rejected() -> None:
    for given in ("my.json", {"format": 1}, None):
        with pytest.raises(PlanError, match=r"expected a CompilationPlan.*CompilationPlan\.load"):
            CompilationSession(parse(WIDE)).replay(given)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="expected a CompilationPlan"):
        compile(WIDE, plan="my.json")  # type: ignore[arg-type]


# ---- kernels


@pytest.mark.parametrize(
    "choice",
    [{"columns": 4_000_000}, {"columns": 65_537}, {"columns": True}, {"columns": 2.0}, {"columns": None},
     {"columns": 0}, {"lanes": 10**30}, {"tile": -1}, {"tile": 1025}, {"block": 42}, {"block": 2048},
     {"block": -32}, {1: 2}],
    ids=str,
)  # fmt: skip
def test_invalid_kernel_choices_are_rejected(choice: Any) -> None:
    session = CompilationSession(parse(WIDE))
    with pytest.raises(PlanError, match="a kernel"):
        session.set_kernel("c", choice)
    with pytest.raises(PlanError, match="a kernel"):
        compile(WIDE, kernel_selector=_Selector(choice))


class _Selector:
    def __init__(self, choice: Any) -> None:
        self.choice = choice
        self.asked: list[str] = []

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        self.asked.append(site.name)
        return KernelChoice(schedule=self.choice)


def test_columns_that_do_not_fit_into_local_arrays_are_rejected() -> None:
    session = CompilationSession(parse(COLUMNS))
    with pytest.raises(PlanError, match=r"no kernel of %sums .* with generated\{columns=60000\}: .* local arrays"):
        session.set_kernel("sums", {"columns": 60_000})
    session.set_kernel("sums", {"columns": 10_000})
    x = np.random.default_rng(0).standard_normal((40, 90_000))
    (got,) = session.finish()(x)
    np.testing.assert_allclose(got, x.sum(0), rtol=1e-12)


@pytest.mark.parametrize("name", ["x", "zero", "r"])
def test_an_instruction_that_is_not_a_kernel_has_no_choices(name: str) -> None:
    with pytest.raises(PlanError, match=f"%{name}"):
        CompilationSession(parse(WIDE)).set_kernel(name, {"tile": 8})


def test_a_selector_is_called_once_per_kernel() -> None:
    selector = _Selector({"tile": 8})
    executable = compile(WIDE, kernel_selector=selector)
    assert sorted(selector.asked) == sorted(k.name for k in executable.kernels)
    program = plan_program("wide")
    assert program.wanted.difference(executable(*program.inputs)) is None


def test_a_loop_that_carries_too_many_arrays_cannot_be_one_kernel() -> None:
    (site,) = CompilationSession(parse(_carrying(65, 100))).loops()
    assert "kernel" not in site.choices
    (site,) = CompilationSession(parse(_carrying(64, 100))).loops()
    assert "kernel" in site.choices


def _carrying(arrays: int, size: int) -> str:
    """Return HLO text of a loop that carries many arrays."""
    shape = f"(s32[], {', '.join([f'f32[{size}]'] * arrays)})"
    reads = "\n".join(f"x{k} = f32[{size}] get-tuple-element(p), index={k + 1}" for k in range(arrays))
    steps = "\n".join(f"y{k} = f32[{size}] add(x{k}, x{(k + 1) % arrays})" for k in range(arrays))
    new = ", ".join(f"y{k}" for k in range(arrays))
    return f"""
    HloModule carrying
    less {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(12)
      ROOT c = pred[] compare(i, n), direction=LT }}
    step {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1)
      j = s32[] add(i, one) {reads} {steps} ROOT r = {shape} tuple(j, {new}) }}
    ENTRY main {{ x = f32[{size}] parameter(0) zero = s32[] constant(0)
      t = {shape} tuple(zero, {", ".join(["x"] * arrays)})
      w = {shape} while(t), condition=less, body=step
      ROOT y = f32[{size}] get-tuple-element(w), index=1 }}
    """


@pytest.mark.parametrize(
    ("dims", "function", "choice"),
    [
        ("64,48", "tanh", "keep"),
        ("40,48", "tanh", "kernel"),
        ("300,8", "tanh", "kernel"),
        ("64,48", "negate", "kernel"),
    ],
    ids=["crowded", "small", "few", "light"],
)
def test_a_loop_whose_positions_carry_many_elements_with_functions_is_kept(
    dims: str, function: str, choice: str
) -> None:
    shape = f"(s32[], f32[{dims}])"
    module = parse(f"""
    HloModule crowded
    less {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(12)
      ROOT c = pred[] compare(i, n), direction=LT }}
    step {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1)
      x = f32[{dims}] get-tuple-element(p), index=1
      j = s32[] add(i, one) y = f32[{dims}] {function}(x) z = f32[{dims}] add(x, y) ROOT r = {shape} tuple(j, z) }}
    ENTRY main {{ x = f32[{dims}] parameter(0) zero = s32[] constant(0) t = {shape} tuple(zero, x)
      w = {shape} while(t), condition=less, body=step ROOT y = f32[{dims}] get-tuple-element(w), index=1 }}
    """)
    (site,) = CompilationSession(module).loops()
    assert "kernel" in site.choices
    assert KernelLoops().choose_loop(site, module) == choice


@pytest.mark.parametrize(
    ("batch", "states", "function", "choice"),
    [
        (16, 8, "negate", "keep"),
        (16, 4, "negate", "kernel"),
        (64, 8, "exponential", "keep"),
        (16, 8, "exponential", "kernel"),
    ],
)
def test_a_loop_whose_positions_reduce_all_pairs_of_their_states_is_kept(
    batch: int, states: int, function: str, choice: str
) -> None:
    rows, pairs = f"f32[{batch},{states}]", f"f32[{batch},{states},{states}]"
    shape = f"(s32[], {rows}, {pairs})"
    module = parse(f"""
    HloModule pairs
    most {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT m = f32[] maximum(a, b) }}
    less {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 n = s32[] constant(12)
      ROOT c = pred[] compare(i, n), direction=LT }}
    step {{ p = {shape} parameter(0) i = s32[] get-tuple-element(p), index=0 one = s32[] constant(1)
      x = {rows} get-tuple-element(p), index=1 w = {pairs} get-tuple-element(p), index=2
      j = s32[] add(i, one) y = {rows} {function}(x) s = {pairs} broadcast(y), dimensions={{0,1}}
      t = {pairs} add(s, w) least = f32[] constant(-inf)
      z = {rows} reduce(t, least), dimensions={{1}}, to_apply=most ROOT r = {shape} tuple(j, z, w) }}
    ENTRY main {{ x = {rows} parameter(0) w = {pairs} parameter(1) zero = s32[] constant(0)
      t = {shape} tuple(zero, x, w) l = {shape} while(t), condition=less, body=step
      ROOT y = {rows} get-tuple-element(l), index=1 }}
    """)
    (site,) = CompilationSession(module).loops()
    assert "kernel" in site.choices
    assert KernelLoops().choose_loop(site, module) == choice


@pytest.mark.parametrize("language", ["c", "cuda"])
def test_the_state_of_a_large_loop_fits_into_the_stack_of_a_thread(language: str) -> None:
    module = parse(_carrying(40, 3000))
    (loop,) = (i for i in module.entry.instructions if i.opcode is Opcode.WHILE)
    source = make_loop_kernel(loop, language).spec.source
    sizes = [int(n) for n in re.findall(r"^ *float s\d+\[(\d+)\]", source, re.MULTILINE)]
    assert sum(sizes) * 4 <= LOCAL_BYTES
    assert (len(sizes) >= 40) == (language == "c")  # on a GPU they are registers


def test_lanes_that_do_not_fit_into_local_arrays_are_rejected_for_a_loop() -> None:
    text = _carrying(40, 3000)
    session = CompilationSession(parse(text))
    session.run_passes([])
    session.run_loop_policy(KernelLoops())
    (loop,) = (i for i in session.kernels() if i.opcode is Opcode.WHILE)
    with pytest.raises(PlanError, match="local arrays"):
        session.set_kernel(loop.name, {"lanes": 3000})
    session.set_kernel(loop.name, {"lanes": 32})
    x = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    (got,) = session.finish()(x)
    np.testing.assert_allclose(got, evaluate(parse(text), [x])[0], rtol=1e-6)


def test_a_loop_marked_as_one_kernel_falls_back_to_a_loop_if_a_pass_makes_that_impossible() -> None:
    session = CompilationSession(parse(LOOPS))
    session.run_passes([])
    session.run_loop_policy(KernelLoops())
    marked = [i for i in session.kernels() if i.opcode is Opcode.WHILE]
    assert marked
    for body in {loop.attributes["body"]: None for loop in marked}:  # as a pass that ignores the mark could
        (sine,) = (i for i in body.instructions if i.opcode in (Opcode.SINE, Opcode.COSINE))
        turned = body.add(Opcode.REVERSE, [sine], dimensions=(0,))
        back = body.add(Opcode.REVERSE, [turned], dimensions=(0,))
        for user in [u for u in sine.users if u is not turned]:
            user.replace_operands(sine, back)
        again = body.add(Opcode.REVERSE, [body.root.operands[1]], dimensions=(0,))
        body.root = body.add(Opcode.TUPLE, [body.root.operands[0], again])
    module = session.module.clone()
    program = plan_program("loops")
    (got,) = session.finish()(*program.inputs)
    np.testing.assert_allclose(got, evaluate(module, list(program.inputs))[0], rtol=1e-4, atol=1e-5)


# ---- files


def _damaged(tmp_path: Path) -> dict[str, Path]:
    good = _plan().to_json()
    contents = {
        "deep": b"[" * 100_000,
        "deep and whole": b'{"fusions":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "not UTF-8": good.encode("utf-16"),
        "cut off": good[: len(good) // 2].encode(),
        "empty": b"",
        "a number": b"1",
        "many digits": good.replace('"format": 2', '"format": ' + "1" * 5000).encode(),
        "not a number": good.replace('"format": 2', '"format": NaN').encode(),
        "a large number": good.replace('"format": 2', '"format": 1e999').encode(),
        "twice": good.replace('"format": 2', '"format": 2, "format": 2').encode(),
        "zeros": b"\0" * 1000,
    }
    files = {}
    for name, data in contents.items():
        files[name] = tmp_path / f"{name}.json"
        files[name].write_bytes(data)
    return {**files, "nothing": tmp_path / "nothing", "a folder": tmp_path, "a device": Path("/dev/zero")}


def test_a_damaged_file_gives_a_one_line_error(tmp_path: Path) -> None:
    for name, file in _damaged(tmp_path).items():
        with pytest.raises(PlanError) as caught:
            CompilationPlan.load(file)
        message = str(caught.value)
        assert str(file) in message and "\n" not in message and len(message) < 400, name


def test_loading_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(PlanError, match="named pipe"):
        CompilationPlan.load(pipe)


def test_a_plan_is_saved_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plan.json"
    _plan().save(file)
    assert CompilationPlan.load(file) == _plan()
    before = file.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m, pytest.raises(PlanError, match="No space left on device"):
        m.setattr(os, "fsync", full)
        dataclasses.replace(_plan(), passes=("dce",)).save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(PlanError, match="cannot write"):
        _plan().save(tmp_path)


def test_saving_keeps_links_and_permissions(tmp_path: Path) -> None:
    file, link = tmp_path / "plan.json", tmp_path / "link.json"
    _plan().save(file)
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()
    file.chmod(0o640)
    link.symlink_to(file)
    _plan().save(link)
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


def test_concurrent_readers_see_a_complete_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plans = [_plan(), dataclasses.replace(_plan(), passes=("dce",) * 2000)]
    plans[0].save(file)
    stop = threading.Event()

    def save() -> None:
        while not stop.is_set():
            for plan in plans:
                plan.save(file)

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(100):
            assert CompilationPlan.load(file) in plans
    finally:
        stop.set()
        writer.join()


def test_a_fusion_step_requires_an_action() -> None:
    with pytest.raises(PlanError, match="expected a fusion action"):
        FusionStep("x", ("y",))  # type: ignore[arg-type]
