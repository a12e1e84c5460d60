"""The programs written natively for JAX and PyTorch compute what their HLO says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("jax")

from compiler.interpreter import evaluate
from compiler.text import parse
from env.suites import KERNELS, MODELS, load_suite, random_inputs
from experiments.cartpole.arguments import disagreement, draw
from experiments.cartpole.measure import build, c_program
from experiments.natives import tables
from experiments.natives.lower import write_suites
from experiments.natives.peers import native_difference
from experiments.natives.worker import NativeWorker

ALL = [(suite, name) for suite in ("kernels", "models") for name in getattr(tables, suite.upper())]
_SIMILAR = (
    "bias_gelu",
    "chain",
    "column_moments",
    "rms_norm",
    "sigmoid",
    "cross_entropy",
    "row_sums",
    "column_softmax",
)
"""Kernels that differ little in how they are written from others that are tested."""
SMALL = [
    (suite, name)
    for suite, name in ALL
    if ("128x256" in name or "small" in name or "ppo" in name) and not name.startswith(_SIMILAR)
] + [
    ("kernels", "top_k_2_of_8192x16"), ("kernels", "batched_product_512x16x16"), ("kernels", "attention_4x4x64x32"),
    ("kernels", "global_avg_pool_8x256x14x14"), ("kernels", "scatter_add_65536_to_1024"),
]  # fmt: skip


def peer_outputs(peer: str, suite: str, name: str, folder: Path) -> list[npt.NDArray[Any]]:
    worker = NativeWorker(peer)
    loaded = worker.handle({"op": "load", "suite": suite, "program": name, "seed": 0})
    assert loaded["seconds"] > 0, loaded
    assert worker.handle({"op": "sample", "repeats": 1})["seconds"] > 0
    file = folder / f"{peer}.npz"
    assert worker.handle({"op": "outputs", "file": str(file)}) == {}
    with np.load(file) as archive:
        return [archive[f"out{n}"] for n in range(len(archive.files))]


def check(suite: str, name: str, folder: Path) -> None:
    program = load_suite(suite).find(name)
    module = parse(program.text())
    shapes = [(s.dtype, s.dimensions) for s in module.entry.parameter_shapes]
    want = [np.asarray(o) for o in evaluate(module, random_inputs(program, shapes, 0))]
    native = tables.find_native(suite, name)
    assert [(np.dtype(i.dtype), i.dims) for i in native.inputs] == [(d, tuple(dims)) for d, dims in shapes]
    for peer in ("xla", "eager"):
        assert native_difference(peer_outputs(peer, suite, name, folder), want, native.rtol) is None


@pytest.mark.parametrize(("suite", "name"), SMALL)
def test_small_native_programs_equal_the_interpreter(suite: str, name: str, tmp_path: Path) -> None:
    check(suite, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), [pair for pair in ALL if pair not in SMALL])
def test_native_programs_equal_the_interpreter(suite: str, name: str, tmp_path: Path) -> None:
    check(suite, name, tmp_path)


def test_the_suites_are_the_lowered_functions(tmp_path: Path) -> None:
    import jax

    if json.loads((KERNELS / "manifest.json").read_text())["lowered_with"] != f"jax {jax.__version__}":
        pytest.skip("another version of JAX lowers to another text")
    write_suites(tmp_path)
    for suite in (KERNELS, MODELS):
        written = {file.name: file.read_text() for file in (tmp_path / suite.name).iterdir()}
        assert written == {file.name: file.read_text() for file in suite.iterdir()}


def test_the_suites_have_the_required_size() -> None:
    assert len(tables.KERNELS) >= 40
    assert len(tables.MODELS) >= 20
    forward = {name.removesuffix("_forward") for name in tables.MODELS if name.endswith("_forward")}
    trained = {name.removesuffix("_train") for name in tables.MODELS if name.endswith("_train")}
    assert forward - trained == {"ppo_policy"}  # its training step is ppo_update


def test_a_worker_reports_errors() -> None:
    worker = NativeWorker("eager")
    assert worker.handle({"op": "ping"}) == {}
    reply = worker.handle({"op": "load", "suite": "kernels", "program": "nothing", "seed": 0})
    assert reply == {"error": "KeyError: 'nothing'"}


def test_the_c_program_simulates_the_same_cartpoles(tmp_path: Path) -> None:
    from env.suites.lowering import lower_to_text
    from env.suites.quickstart_programs import cartpole_naive

    arrays = draw(60)
    want = [np.asarray(o) for o in evaluate(parse(lower_to_text(cartpole_naive, *arrays)), arrays)]
    got = c_program(build(tmp_path), *arrays)()
    assert want[2].sum() > 2048  # every environment ended about twice
    assert np.array_equal(got[2], want[2])
    assert disagreement(got, want) == 0
