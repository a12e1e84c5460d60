"""Loading a suite checks it as a whole, and one error reports every problem."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import env.suites.checks
from compiler.text import parse
from env.measurement import Measurer, MeasurerOptions
from env.suites import (
    JAX,
    KERNELS,
    LINEAR_ALGEBRA,
    MODELS,
    QUICKSTART,
    ManifestError,
    Normal,
    Program,
    Randint,
    Uniform,
    load_suite,
    program_in,
    random_inputs,
)
from env.suites.checks import content_problems, input_problems

GOOD = "HloModule good\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negate(x)\n}\n"


def of_type(kind: str) -> str:
    return (
        f"HloModule m\nENTRY e {{\n  x = {kind}[4] parameter(0)\n  ROOT y = {kind}[2] slice(x), slice={{[0:2]}}\n}}\n"
    )


def write(folder: Path, *entries: Any, **files: str) -> Path:
    """Write a suite folder; entries are completed from a valid one, files are given by stem."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"good": GOOD, **files}.items():
        (folder / f"{name}.hlo").write_text(text)
    base = {"name": "good", "file": "good.hlo", "split": "train"}
    completed = [{**base, **e} if isinstance(e, dict) else e for e in entries]
    (folder / "manifest.json").write_text(json.dumps({"programs": completed}))
    return folder


def problems(folder: Path) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as caught:
        load_suite(folder)
    assert str(folder) in str(caught.value)
    return caught.value.problems


@pytest.mark.parametrize("folder", [QUICKSTART, JAX, LINEAR_ALGEBRA, KERNELS, MODELS], ids=lambda f: f.name)
def test_the_suites_that_come_with_hlogym_have_no_problems(folder: Path) -> None:
    """Check what loading them leaves out: the contents of their programs."""
    entries = json.loads((folder / "manifest.json").read_text())["programs"]
    for entry in entries:
        path = folder / entry["file"]
        assert content_problems(path) == []
        assert input_problems(path, entry["inputs"]) == []


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "{}", '{"programs": {}}', '{"programs": []}', "[" * 100_000])
def test_files_that_are_not_manifests(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        load_suite(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "program number 0: a program must be an object"),
        ({"name": ""}, "must not be empty"),
        ({"name": 3}, "must be a string"),
        ({"name": "x" * 300}, "at most 250"),
        ({"name": "../../evil"}, "absolute path"),
        ({"name": "a\nb"}, "control character"),
        ({"name": "a\x1b[2J"}, "control character"),
        ({"file": 3}, "file must be a string"),
        ({"file": ""}, "inside the suite's folder"),
        ({"file": "."}, "inside the suite's folder"),
        ({"file": "../secret.hlo"}, "inside the suite's folder"),
        ({"file": "a/../../secret.hlo"}, "inside the suite's folder"),
        ({"file": "..\\secret.hlo"}, "inside the suite's folder"),
        ({"file": "/etc/passwd"}, "inside the suite's folder"),
        ({"file": "a\0b"}, "inside the suite's folder"),
        ({"file": "x" * 300}, "there is no file"),
        ({"file": "nowhere.hlo"}, "there is no file 'nowhere.hlo'"),
        ({"split": "tests"}, "split is 'tests'"),
        ({"split": ["train"]}, "split is"),
        ({"description": 3}, "description must be a string"),
        ({"chaotic": 1}, "chaotic must be a boolean"),
        ({"tolerence": {"rtol": 1}}, "did you mean 'tolerance'"),
        ({"tolerance": 3}, "tolerance must be an object"),
        ({"tolerance": {"relative": 1}}, "tolerance has rtol"),
        ({"tolerance": {"rtol": "1e-3"}}, "rtol of tolerance must be a finite number"),
        ({"tolerance": {"rtol": True}}, "rtol of tolerance must be a finite number"),
        ({"tolerance": {"atol": -1e-9}}, "must not be negative"),
        ({"tolerance": {"atol": [0, -1e-9]}}, "must not be negative"),
        ({"tolerance": {"atol": [0, "1"]}}, "atol of tolerance must contain finite numbers"),
        ({"tolerance": {"mismatch_fraction": [0]}}, "mismatch_fraction of tolerance must be a finite number"),
        ({"tolerance": {"mismatch_fraction": 1.5}}, "between 0 and 1"),
        ({"inputs": 3}, "inputs must be a list"),
        ({"inputs": [3]}, "input 0: kind is None"),
        ({"inputs": [{}]}, "input 0: kind is None"),
        ({"inputs": [{"kind": ["normal"]}]}, "input 0: kind is"),
        ({"inputs": [{"kind": "gaussian"}]}, "kind is 'gaussian'"),
        ({"inputs": [{"kind": "uniform", "low": 1}]}, "needs 'high'"),
        ({"inputs": [{"kind": "normal", "sigma": 1}]}, "normal input has mean, std"),
        ({"inputs": [{"kind": "normal", "std": -1}]}, "std must not be negative"),
        ({"inputs": [{"kind": "normal", "mean": "0"}]}, "mean of a normal input must be a finite number"),
        ({"inputs": [{"kind": "normal", "mean": None}]}, "mean of a normal input must be a finite number"),
        ({"inputs": [{"kind": "uniform", "low": 2, "high": 1}]}, "low must be below high"),
        ({"inputs": [{"kind": "uniform", "low": 1, "high": 1}]}, "low must be below high"),
        ({"inputs": [{"kind": "randint", "low": 3, "high": 3}]}, "low must be below high"),
        ({"inputs": [{"kind": "randint", "low": 9, "high": 3}]}, "low must be below high"),
        ({"inputs": [{"kind": "randint", "low": 0.0, "high": 3}]}, "low of a randint input must be an integer"),
        ({"inputs": [{"kind": "randint", "low": False, "high": 3}]}, "low of a randint input must be an integer"),
        ({"inputs": [{"kind": "randint", "low": -1, "high": 1 << 64}]}, "do not fit into 64 bits"),
        ({"inputs": [{"kind": "normal"}, {"kind": "normal"}]}, "2 input specs for 1 parameters"),
        ({"inputs": []}, "0 input specs for 1 parameters"),
    ],
)
def test_what_is_wrong_with_an_entry(tmp_path: Path, entry: Any, message: str) -> None:
    (tmp_path / "secret.hlo").write_text(GOOD)
    (found,) = problems(write(tmp_path / "suite", entry))
    assert message in found
    assert len(found) < 300


@pytest.mark.parametrize(
    "text", ['{"rtol": NaN}', '{"atol": Infinity}', '{"rtol": 1e999}', '{"rtol": 1, "rtol": 2}']
)  # fmt: skip
def test_values_that_are_not_json_numbers(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"tolerance": "HERE"})
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"HERE"', text))
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        load_suite(tmp_path)


FITS = [
    ("f32", {"kind": "uniform", "low": -3e38, "high": 3e38}, True),
    ("f32", {"kind": "uniform", "low": 0, "high": 1e39}, False),
    ("f64", {"kind": "uniform", "low": -1e308, "high": 1e308}, False),  # their difference is infinite
    ("f16", {"kind": "normal", "mean": 0, "std": 100}, True),
    ("f16", {"kind": "normal", "mean": 0, "std": 20000}, False),
    ("f8e4m3fn", {"kind": "normal"}, True),
    ("f8e4m3fn", {"kind": "uniform", "low": 0, "high": 1000}, False),
    ("bf16", {"kind": "randint", "low": 0, "high": 10}, True),
    ("c64", {"kind": "normal"}, True),
    ("c64", {"kind": "normal", "std": 1e39}, False),
    ("pred", {"kind": "randint", "low": 0, "high": 2}, True),
    ("pred", {"kind": "randint", "low": 0, "high": 3}, False),
    ("pred", {"kind": "normal"}, False),
    ("s8", {"kind": "randint", "low": -128, "high": 128}, True),
    ("s8", {"kind": "randint", "low": -129, "high": 0}, False),
    ("u8", {"kind": "randint", "low": 0, "high": 257}, False),
    ("u8", {"kind": "uniform", "low": -1, "high": 1}, False),
    ("u32", {"kind": "normal"}, False),
    ("s32", {"kind": "normal"}, True),
    ("s32", {"kind": "randint", "low": 0, "high": 1 << 31}, True),
    ("s32", {"kind": "randint", "low": 0, "high": (1 << 31) + 1}, False),
    ("u64", {"kind": "randint", "low": 0, "high": 1 << 64}, True),
    ("s64", {"kind": "randint", "low": -(1 << 63), "high": 1 << 63}, True),
    ("s4", {"kind": "randint", "low": -8, "high": 8}, True),
    ("s4", {"kind": "randint", "low": 0, "high": 9}, False),
]


@pytest.mark.parametrize(("kind", "spec", "fits"), FITS)
def test_values_must_fit_the_type(tmp_path: Path, kind: str, spec: dict[str, Any], fits: bool) -> None:
    folder = write(tmp_path, {"file": "typed.hlo", "inputs": [spec]}, typed=of_type(kind))
    if not fits:
        (found,) = problems(folder)
        assert "input 0" in found
        assert "do not fit" in found
        return
    (program,) = load_suite(folder).programs
    (shape,) = parse(program.text()).parameter_shapes
    (drawn,) = random_inputs(program, [(shape.dtype, (1000,))], seed=0)
    wide = drawn.astype(np.complex128)
    assert np.isfinite(wide).all()
    if spec["kind"] == "randint":
        assert spec["low"] <= int(drawn.min()) <= int(drawn.max()) < spec["high"]


@pytest.mark.parametrize(("spec", "values"), [(Uniform(1, 2), (1, 2)), (Randint(3, 5), (3, 4)), (Normal(5, 0), (5, 5))])
def test_specs_draw_within_their_bounds(spec: Any, values: tuple[float, float]) -> None:
    program = Program("p", "s", "train", Path(), "", (spec,))
    (drawn,) = random_inputs(program, [(np.float32, (100,))], seed=1)
    assert values[0] <= drawn.min() <= drawn.max() <= values[1]


CANNOT_RUN = {
    "infeed": (
        "HloModule m\nENTRY e {\n  t = token[] after-all()\n  i = (f32[4], token[]) infeed(t)\n"
        "  ROOT r = f32[4] get-tuple-element(i), index=0\n}\n",
        "host",
    ),
    "outfeed": (
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  t = token[] after-all()\n"
        "  ROOT o = token[] outfeed(x, t), outfeed_shape=f32[4]\n}\n",
        "host",
    ),
    "several devices": (
        "HloModule m, replica_count=2\nadd { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
        "ENTRY e {\n  x = f32[4] parameter(0)\n"
        "  ROOT r = f32[4] all-reduce(x), replica_groups={{0,1}}, to_apply=add\n}\n",
        "2 replicas",
    ),
    "partitions": (GOOD.replace("HloModule good", "HloModule good, num_partitions=8"), "8 partitions"),
    "custom call": (
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n"
        '  ROOT r = f32[4] custom-call(x), custom_call_target="mine"\n}\n',
        "'mine'",
    ),
    "token parameter": (
        "HloModule m\nENTRY e {\n  p = (f32[4], token[]) parameter(0)\n  x = f32[4] get-tuple-element(p), index=0\n"
        "  ROOT r = f32[4] negate(x)\n}\n",
        "only arrays and tuples of arrays",
    ),
    "identity": ("HloModule m\nENTRY e {\n  ROOT x = f32[4] parameter(0)\n}\n", "computes nothing"),
    "constants": (
        "HloModule m\nENTRY e {\n  x = f32[4] parameter(0)\n  c = f32[] constant(1)\n"
        "  ROOT t = (f32[4], f32[]) tuple(x, c)\n}\n",
        "computes nothing",
    ),
    "huge": (GOOD.replace("f32[4]", "f32[1000000000000000]"), "GiB"),
    "syntax": ("HloModule m\nENTRY e {\n  ROOT p = f32[4] parameter(0\n}\n", "p.hlo:"),
    "unknown op": (GOOD.replace("negate", "negat"), "p.hlo:4:"),
    "empty": ("", "p.hlo:1:"),
    "wrong shape": (GOOD.replace("y = f32[4]", "y = f32[5]"), "not valid HLO"),
    "nested": ("HloModule m\nENTRY e {\n  ROOT x = f32[] " + "negate(" * 5000 + ")" * 5000 + "\n}\n", "p.hlo"),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT_RUN)
@pytest.mark.parametrize("manifest", [True, False])
def test_programs_that_cannot_be_measured_are_reported(tmp_path: Path, case: str, manifest: bool) -> None:
    text, message = CANNOT_RUN[case]
    folder = tmp_path / "suite"
    if manifest:
        write(folder, {}, {"name": "p", "file": "p.hlo"}, p=text)
    else:
        folder.mkdir()
        (folder / "good.hlo").write_text(GOOD)
        (folder / "p.hlo").write_text(text)
    (found,) = problems(folder)
    assert found.startswith("program 'p': ")
    assert message in found


def test_collectives_of_one_device_can_be_measured(tmp_path: Path) -> None:
    text, _ = CANNOT_RUN["several devices"]
    alone = text.replace(", replica_count=2", "").replace("{{0,1}}", "{{0}}")
    assert len(load_suite(write(tmp_path, {"file": "p.hlo"}, p=alone)).programs) == 1


def test_files_that_are_not_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.hlo").write_bytes(b"HloModule \xff\xfe")
    (tmp_path / "b.hlo").mkdir()
    os.mkfifo(tmp_path / "c.hlo")
    (tmp_path / "d.hlo").symlink_to(tmp_path / "nowhere")
    (tmp_path / "good.hlo").write_text(GOOD)
    found = problems(tmp_path)
    assert [f[:11] for f in found] == [f"program '{n}'" for n in "abcd"]
    for text, reason in zip(found, ("holds no program", "is not a file", "is not a file", "cannot read"), strict=True):
        assert reason in text


def test_file_names_must_be_program_names(tmp_path: Path) -> None:
    for name in ("a\x1b[2J.hlo", "b\n.hlo", " c.hlo"):
        (tmp_path / name).write_text(GOOD)
    found = problems(tmp_path)
    assert len(found) == 3
    assert all("rename the file" in f for f in found)


def test_duplicate_names(tmp_path: Path) -> None:
    found = problems(write(tmp_path, {"name": "caf\u00e9"}, {"name": "b"}, {"name": "cafe\u0301"}, {"name": "b"}))
    assert len(found) == 2
    assert all("several programs called" in f for f in found)
    upper = write(tmp_path / "upper", {"name": "a"}, {"name": "A"})
    assert len(load_suite(upper).programs) == 2


def test_all_problems_are_one_error(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {"name": "one", "split": "no", "tolerance": {"rtol": -1}}, {"name": "two", "file": "gone.hlo"},
        {"name": "three", "file": "bad.hlo"}, {"name": "four"}, {"name": "four"},
        bad="HloModule m\nENTRY e {\n}\n",
    )  # fmt: skip
    found = problems(folder)
    assert [f.partition(":")[0] for f in found] == [
        "program 'one'", "program 'one'", "program 'two'", "program 'three'",
        "there are several programs called 'four'",
    ]  # fmt: skip
    with pytest.raises(ManifestError, match="has 5 problems") as caught:
        load_suite(folder)
    assert all(f in str(caught.value) for f in found)
    many = write(tmp_path / "many", *({"name": f"p{n}", "split": "no"} for n in range(100)))
    with pytest.raises(ManifestError, match="has 100 problems") as caught:
        load_suite(many)
    assert str(caught.value).count("\n") == 21
    assert "and 80 more" in str(caught.value)


def test_a_file_is_read_again_only_after_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(text: str, **more: Any) -> Any:
        read.append(text)
        return parse(text, **more)

    monkeypatch.setattr(env.suites.checks, "parse", counted)
    folder = write(tmp_path, {})
    for _ in range(3):
        load_suite(folder)
    assert len(read) == 1
    (folder / "good.hlo").write_text(GOOD.replace("negate", "negate_it"))
    assert "negate_it" in problems(folder)[0]
    assert len(read) == 2


def test_one_program_of_a_folder_does_not_depend_on_the_others(tmp_path: Path) -> None:
    folder = write(tmp_path, {"inputs": [{"kind": "uniform", "low": 1, "high": 2}]}, {"name": "b", "split": "no"}, 3)
    assert program_in(folder / "good.hlo").inputs == (Uniform(1, 2),)
    (folder / "other.hlo").write_text(GOOD)
    assert program_in(folder / "other.hlo").inputs == ()
    write(folder, {"inputs": [{"kind": "uniform", "low": 2, "high": 1}]})
    with pytest.raises(ManifestError, match="low must be below high"):
        program_in(folder / "good.hlo")
    (folder / "manifest.json").write_text('{"name": "a web application", "start_url": "/"}')
    assert program_in(folder / "good.hlo").inputs == ()


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.errors import UnknownNameError

    write(tmp_path, {})
    monkeypatch.chdir(tmp_path)
    for name in ("", " ", "train,", ",good"):
        with pytest.raises(UnknownNameError):
            load_suite(name)
    assert load_suite(".").name == tmp_path.name


def test_a_folder_with_a_comma_in_its_name_is_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "a,b", {})
    assert [p.name for p in load_suite(str(folder)).programs] == ["good"]


def test_arrays_of_tuples_are_drawn_by_one_spec_each(tmp_path: Path) -> None:
    pair = (
        "HloModule pair\nENTRY e {\n  p = (f32[4], (s32[4], f32[4])) parameter(0)\n"
        "  a = f32[4] get-tuple-element(p), index=0\n  ROOT y = f32[4] negate(a)\n}\n"
    )
    specs = [{"kind": "normal"}, {"kind": "randint", "low": 0, "high": 9}, {"kind": "uniform", "low": 1, "high": 2}]
    entry = {"name": "pair", "file": "pair.hlo", "inputs": specs}
    program = load_suite(write(tmp_path / "good", entry, pair=pair)).find("pair")
    assert len(program.inputs) == 3
    few = write(tmp_path / "few", {**entry, "inputs": specs[:1]}, pair=pair)
    assert "1 input specs for 3 parameters" in str(problems(few))
    with Measurer(options=MeasurerOptions(rounds=3)) as measurer:
        assert measurer.measure_reference(program).failure is None
