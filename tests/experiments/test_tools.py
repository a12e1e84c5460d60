"""Peers compute the interpreter's results, and `reduce` keeps the fault."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from compiler.errors import BackendError, UnknownNameError
from compiler.ir import HloModule, Opcode
from compiler.passes import PASSES
from compiler.plan import CompilationPlan
from compiler.text import parse
from env.measurement import Measurer
from env.reference import Reference
from env.suites import Program, load_suite
from experiments.inputs import entry_inputs, read_module
from experiments.peers import make_peer
from experiments.reduce import ReduceError, reduce_for_backend, reduce_for_passes
from experiments.torch_program import to_torch
from tests.env.small_programs import CHAIN, LOOP, write_suite

UNSUPPORTED = {"log_softmax_gather": "gather", "softmax_cross_entropy_grad": "gather", "cartpole_naive": "shift"}


@pytest.mark.parametrize("text", [CHAIN, LOOP])
@pytest.mark.parametrize("peer", ["xla", "eager"])
def test_peers_agree_with_the_interpreter(peer: str, text: str) -> None:
    if peer == "xla":
        pytest.importorskip("jaxlib")
    module = parse(text)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 1.5, s.dimensions).astype(np.float32) for s in module.entry.parameter_shapes]
    contestant = make_peer(peer, parse(text), arrays)
    assert Reference.of(module, arrays).difference(contestant.outputs()) is None
    assert contestant.sample(2) > 0


@pytest.mark.parametrize("program", load_suite("quickstart").programs, ids=lambda p: p.name)
def test_pytorch_agrees_with_the_interpreter_or_names_the_unsupported_op(program: Program) -> None:
    module = read_module(program)
    if program.name in UNSUPPORTED:
        with pytest.raises(BackendError, match=UNSUPPORTED[program.name]):
            to_torch(module, compiled=False)
        return
    if program.chaotic:
        return  # two hundred steps take long and cover no other ops
    arrays = entry_inputs(program, module, 0)
    got = [t.numpy() for t in to_torch(module, compiled=False)(*(torch.from_numpy(a) for a in arrays))]
    assert Reference.of(module, arrays).difference(got, program.tolerance) is None


def test_an_unknown_peer_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="'xla'"):
        make_peer("xlb", parse(CHAIN), [])


class _Faulty(Measurer):
    """Reports wrong results for every program with a tanh."""

    def check(self, program: Program, plan: CompilationPlan | None, text: str | None = None) -> str | None:
        assert text is not None
        parse(text)
        return "wrong: 3 of 5 elements differ" if " tanh(" in text else None


def test_reduce_for_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = write_suite(tmp_path / "suite")
    monkeypatch.setattr("experiments.reduce.Measurer", _Faulty)
    reduce_for_backend(str(suite / "chain.hlo"), tmp_path / "small.hlo", "cpu", None, 0)
    small = parse((tmp_path / "small.hlo").read_text())
    assert [i.opcode.text for i in small.entry.post_order()] == ["parameter", "tanh"]
    with pytest.raises(ReduceError, match="there is nothing to reduce"):
        reduce_for_backend(str(suite / "loop.hlo"), tmp_path / "none.hlo", "cpu", None, 0)


@dataclass(frozen=True)
class _Spoiler:
    """A faulty pass that replaces cosine by sine."""

    name: ClassVar[str] = "spoiler"

    def run(self, module: HloModule) -> bool:
        found = [i for c in module.computations for i in c.instructions if i.opcode is Opcode.COSINE]
        for i in found:
            assert i.parent is not None
            i.parent.replace(i, i.parent.add(Opcode.SINE, i.operands))
        return bool(found)


def test_reduce_for_passes_finds_the_faulty_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write_suite(tmp_path / "suite")
    monkeypatch.setitem(PASSES, "spoiler", _Spoiler)
    reduce_for_passes(str(suite / "loop.hlo"), tmp_path / "small.hlo", "cse,spoiler,dce", 0)
    text = (tmp_path / "small.hlo").read_text()
    assert text.startswith("// passes: spoiler\n")
    assert "the fault: wrong:" in capsys.readouterr().out
    left = [i.opcode.text for c in parse(text).computations for i in c.instructions]
    assert left == ["parameter", "cosine"]
    with pytest.raises(ReduceError, match="there is nothing to reduce"):
        reduce_for_passes(str(suite / "chain.hlo"), tmp_path / "none.hlo", "cse,spoiler,dce", 0)


def test_a_peer_runs_a_program_with_input_output_aliases() -> None:
    pytest.importorskip("jaxlib")
    module = parse(
        "HloModule m, input_output_alias={ {}: (0, {}, must-alias) }\n"
        "ENTRY e { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }"
    )
    x = np.arange(4, dtype=np.float32)
    peer = make_peer("xla", module, [x])
    peer.sample(3)
    np.testing.assert_array_equal(peer.outputs()[0], -x)


def test_a_peer_runs_a_program_that_calls_lapack() -> None:
    pytest.importorskip("jaxlib")
    program = load_suite("jax").find("cholesky_and_triangular_solve_gradient")
    module = read_module(program)
    arrays = entry_inputs(program, module, 0)
    assert Reference.of(module, arrays).difference(make_peer("xla", module, arrays).outputs()) is None
