"""Suites: manifests and files agree, inputs are reproducible, and unknown names come with the nearest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler.errors import UnknownNameError
from compiler.text import parse
from env.program_json import program_from_json, program_to_json
from env.reference import drawn_reference
from env.suites import (
    JAX,
    QUICKSTART,
    ManifestError,
    Normal,
    Program,
    Randint,
    Tolerance,
    Uniform,
    find_program,
    load_suite,
    random_inputs,
)

PROGRAMS = load_suite("quickstart").programs
NUMPY_TYPES = {"f32": np.float32, "s32": np.int32, "u32": np.uint32}
TINY = """HloModule tiny
ENTRY main {
  x = f32[2]{0} parameter(0)
  ROOT y = f32[2]{0} negate(x)
}
"""


def parameter_shapes(text: str) -> list[tuple[Any, tuple[int, ...]]]:
    entry = text[text.index("\nENTRY") :]
    found = {
        int(number): (NUMPY_TYPES[kind], tuple(int(d) for d in dims.split(",") if d))
        for kind, dims, number in re.findall(r"= (\w+)\[([\d,]*)\]\S* parameter\((\d+)\)", entry)
    }
    return [found[number] for number in range(len(found))]


def write_manifest(folder: Path, **changes: Any) -> Path:
    (folder / "tiny.hlo").write_text(TINY)
    entry = {"name": "tiny", "file": "tiny.hlo", "split": "train", "inputs": [{"kind": "uniform", "low": 1, "high": 2}]}
    (folder / "manifest.json").write_text(json.dumps({"programs": [entry | changes]}))
    return folder


def test_the_manifest_names_every_file_once() -> None:
    assert sorted(p.path.name for p in PROGRAMS) == sorted(p.name for p in QUICKSTART.glob("*.hlo"))
    assert len({p.name for p in PROGRAMS}) == len(PROGRAMS)
    assert all(p.description for p in PROGRAMS)


def test_splits_share_no_program_and_leave_only_extras_out() -> None:
    splits = {name: {p.name for p in load_suite(name).programs} for name in ("train", "validation", "test")}
    assert all(splits.values())
    assert sum(map(len, splits.values())) == len(set().union(*splits.values()))
    left_out = {p.name for p in PROGRAMS} - set().union(*splits.values())
    assert left_out == {"seed_broadcast_add_before", "seed_broadcast_add_after"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_inputs_fit_the_entry_parameters(program: Program) -> None:
    shapes = parameter_shapes(program.text())
    assert len(program.inputs) == len(shapes)
    arrays = random_inputs(program, shapes, seed=3)
    assert [(a.dtype, a.shape) for a in arrays] == [(np.dtype(t), dims) for t, dims in shapes]
    for array, spec in zip(arrays, program.inputs, strict=True):
        match spec:
            case Uniform(low, high):
                assert array.min() >= np.float32(low)
                assert array.max() <= np.float32(high)
            case Randint(low, high):
                assert array.min() >= low
                assert array.max() < high
            case Normal():
                assert np.isfinite(array).all()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_are_complete(program: Program) -> None:
    text = program.text()
    assert "{...}" not in text  # an elided constant
    assert "custom-call" not in text
    assert "f64[" not in text


def test_inputs_depend_on_the_seed_and_nothing_else() -> None:
    program = find_program("mlp_train_step")
    shapes = parameter_shapes(program.text())
    first, again, other = (random_inputs(program, shapes, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_without_a_manifest_inputs_follow_the_types(tmp_path: Path) -> None:
    (tmp_path / "tiny.hlo").write_text(TINY)
    program = find_program(tmp_path / "tiny.hlo")
    types = (np.bool_, np.int8, ml_dtypes.int4, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.complex64, np.float64)
    arrays = random_inputs(program, [(t, (500,)) for t in types], seed=0)
    assert [a.dtype for a in arrays] == [np.dtype(t) for t in types]
    assert set(arrays[0].tolist()) == {False, True}
    assert arrays[1].min() >= 0
    assert 90 <= arrays[1].max() < 100
    assert arrays[2].astype(int).max() == 7
    assert abs(np.std(arrays[3].astype(np.float32)) - 1) < 0.1
    assert np.std(arrays[5].imag) > 0.5


def test_a_folder_or_a_file_is_a_suite(tmp_path: Path) -> None:
    (tmp_path / "b.hlo").write_text(TINY)
    (tmp_path / "a.hlo").write_text(TINY)
    assert [p.name for p in load_suite(tmp_path).programs] == ["a", "b"]
    (single,) = load_suite(str(tmp_path / "b.hlo")).programs
    assert single.text() == TINY


def test_a_folder_with_a_manifest_is_loaded_by_it(tmp_path: Path) -> None:
    (program,) = load_suite(write_manifest(tmp_path, tolerance={"rtol": 0.1}, chaotic=True)).programs
    assert program.split == "train"
    assert program.inputs == (Uniform(1, 2),)
    assert program.tolerance == Tolerance(rtol=0.1)
    assert program.chaotic


def test_a_tolerance_has_an_absolute_part_for_each_output(tmp_path: Path) -> None:
    values = {"atol": [1e-3, 0], "mismatch_fraction": 0.01}
    (program,) = load_suite(write_manifest(tmp_path, tolerance=values)).programs
    assert program.tolerance == Tolerance(atol=(1e-3, 0), mismatch_fraction=0.01)
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))).tolerance == program.tolerance
    assert hash(program)


@pytest.mark.parametrize("program", [*PROGRAMS, *load_suite("jax").programs], ids=lambda p: p.name)
def test_outputs_distinguish_right_from_wrong(program: Program) -> None:
    module = parse(program.text())
    shapes = [(s.dtype, s.dimensions) for s in module.parameter_shapes]
    assert drawn_reference(module, lambda number: random_inputs(program, shapes, number)).unchecked is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "tests"}, "split is 'tests'"),
        ({"file": "other.hlo"}, "no file 'other.hlo'"),
        ({"inputs": [{"kind": "gaussian"}]}, "kind is 'gaussian'"),
        ({"inputs": [{"kind": "normal", "sigma": 1}]}, "normal input has mean, std"),
        ({"inputs": [{"kind": "uniform", "low": 1}]}, "high"),
        ({"tolerance": {"relative": 1}}, "relative"),
    ],
)
def test_a_bad_manifest_is_reported_with_file_and_reason(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        load_suite(write_manifest(tmp_path, **changes))
    assert "manifest.json" in str(caught.value)


def test_specs_for_another_number_of_parameters_are_refused(tmp_path: Path) -> None:
    (program,) = load_suite(write_manifest(tmp_path)).programs
    with pytest.raises(ManifestError, match="1 input specs for 2 parameters"):
        random_inputs(program, [(np.float32, (2,))] * 2, seed=0)


def test_unknown_names_are_reported_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cartpole_naive'") as caught:
        find_program("cartpole_naiv")
    assert "cartpole_naive" in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean 'validation'"):
        load_suite("validatoin")
    with pytest.raises(UnknownNameError):
        load_suite("no_such_file.hlo")


def test_the_script_reproduces_the_files(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from env.suites.lower_quickstart import write_suite

    lowered_with = json.loads((QUICKSTART / "manifest.json").read_text())["lowered_with"]
    if lowered_with != f"jax {jax.__version__}":
        pytest.skip(f"the suite was lowered with {lowered_with}, here is {jax.__version__}")
    jax.clear_caches()  # what was lowered before would change the names
    written = write_suite(tmp_path)
    assert {p.name for p in written} == {p.name for p in QUICKSTART.iterdir()}
    for path in written:
        assert path.read_text() == (QUICKSTART / path.name).read_text(), path.name


def test_xlas_parser_accepts_every_program() -> None:
    pytest.importorskip("jax")
    from jax._src.lib import hlo  # type: ignore[attr-defined]  # the only parser XLA exposes to Python

    for program in PROGRAMS:
        assert hlo.hlo_module_from_text(program.text()).name


def test_the_jax_suite_is_complete_and_its_splits_are_disjoint() -> None:
    suite = load_suite("jax")
    assert sorted(p.path.name for p in suite.programs) == sorted(p.name for p in JAX.glob("*.hlo"))
    parts = [{p.name for p in load_suite(f"jax/{s}").programs} for s in ("train", "validation", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(suite.programs)
    assert all(len(part) >= 20 for part in parts)


def test_every_jax_program_parses_and_has_inputs_for_its_parameters() -> None:
    for program in load_suite("jax").programs:
        shapes = parse(program.text()).parameter_shapes
        inputs = random_inputs(program, [(s.dtype, s.dimensions) for s in shapes], seed=0)
        assert [a.shape for a in inputs] == [s.dimensions for s in shapes], program.name


def test_suites_are_joined_by_commas() -> None:
    both = load_suite("jax/test, test")
    assert {p.name for p in both.programs} == {p.name for n in ("jax/test", "test") for p in load_suite(n).programs}
    with pytest.raises(ManifestError, match="several programs called"):
        load_suite("train,train")
