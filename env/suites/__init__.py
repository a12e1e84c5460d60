"""Suites of programs to train and judge on: HLO files, and a manifest that says what to feed them.

A suite is a folder of `.hlo` files, with or without a `manifest.json`:

    {"programs": [{"name": "softmax", "file": "softmax.hlo", "split": "train", "description": "...",
                   "inputs": [{"kind": "normal", "mean": 0, "std": 1}],
                   "tolerance": {"rtol": 1e-4, "atol": 1e-5, "mismatch_fraction": 0}, "chaotic": false}]}

`inputs` has one entry for each parameter of the entry computation, in order; `tolerance` and `chaotic` may be left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from compiler.errors import HlogymError, UnknownNameError

__all__ = [
    "JAX",
    "LINEAR_ALGEBRA",
    "QUICKSTART",
    "SUITE_NAMES",
    "InputSpec",
    "ManifestError",
    "Normal",
    "Program",
    "Randint",
    "Split",
    "Suite",
    "Tolerance",
    "Uniform",
    "find_program",
    "load_suite",
    "random_inputs",
]

_HERE = Path(__file__).parent
QUICKSTART, JAX, LINEAR_ALGEBRA = _HERE / "quickstart", _HERE / "jax", _HERE / "linear_algebra"
_FOLDERS = {folder.name: folder for folder in (QUICKSTART, JAX, LINEAR_ALGEBRA)}
SUITE_NAMES = ("quickstart", "train", "validation", "test", "jax", "jax/train", "jax/validation", "jax/test",
               "linear_algebra")  # fmt: skip
"""The suites that come with hlogym, and their splits; a split alone is one of the quickstart's."""

Split: TypeAlias = Literal["train", "validation", "test", "extra"]
"""What a program is for: "test" is held out from learning; "extra" belongs to no split."""


class ManifestError(HlogymError, ValueError):
    """A manifest that cannot be used: which file, which program, and what is wrong with it."""


@dataclass(frozen=True)
class Normal:
    """Values from a normal distribution."""

    mean: float = 0.0
    std: float = 1.0

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values; complex types get both parts."""
        values: npt.NDArray[Any] = rng.standard_normal(dims, dtype=np.float32 if dtype.itemsize <= 4 else np.float64)
        if np.issubdtype(dtype, np.complexfloating):
            values = values + 1j * rng.standard_normal(dims)
        return np.asarray(values * self.std + self.mean).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "normal", **asdict(self)}


@dataclass(frozen=True)
class Uniform:
    """Values spread evenly over [low, high)."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values."""
        return np.asarray(rng.uniform(self.low, self.high, dims)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "uniform", **asdict(self)}


@dataclass(frozen=True)
class Randint:
    """Whole numbers from low to high - 1."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator, dtype: np.dtype[Any], dims: Sequence[int]) -> npt.NDArray[Any]:
        """An array of such values."""
        return np.asarray(rng.integers(self.low, self.high, dims)).astype(dtype)

    def to_json(self) -> dict[str, Any]:
        """As a manifest spells it."""
        return {"kind": "randint", **asdict(self)}


InputSpec: TypeAlias = Normal | Uniform | Randint

_SPECS: Mapping[str, type[InputSpec]] = {"normal": Normal, "uniform": Uniform, "randint": Randint}


@dataclass(frozen=True)
class Tolerance:
    """How close outputs must be to the reference's: |a - b| <= atol + rtol |b|, but for a fraction of the elements."""

    rtol: float = 1e-4
    atol: float = 1e-5
    mismatch_fraction: float = 0.0


@dataclass(frozen=True)
class Program:
    """One program of a suite.

    Attributes:
        suite: name of the suite it stands in, or the folder's name.
        inputs: one spec for each entry parameter; empty when no manifest says, and then defaults by type are drawn.
        tolerance: None leaves the comparison to the comparer's own default.
        chaotic: a simulator in which rounding may change a decision, after which some elements differ altogether.
    """

    name: str
    suite: str
    split: Split
    path: Path
    description: str
    inputs: tuple[InputSpec, ...] = ()
    tolerance: Tolerance | None = None
    chaotic: bool = False

    def text(self) -> str:
        """The program's HLO text."""
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Suite:
    """A named list of programs."""

    name: str
    programs: tuple[Program, ...]

    def split(self, name: Split) -> tuple[Program, ...]:
        """The programs of one split."""
        return tuple(p for p in self.programs if p.split == name)

    def find(self, name: str) -> Program:
        """The program of that name.

        Raises:
            UnknownNameError: no program here is called so.
        """
        for program in self.programs:
            if program.name == name:
                return program
        raise UnknownNameError("program", name, (p.name for p in self.programs))


def load_suite(name: str | Path) -> Suite:
    """A suite by name ("jax"), or a split of it ("jax/train"; "train" is the quickstart's), or HLO files.

    Args:
        name: one of SUITE_NAMES, or a folder of HLO files with or without a manifest, or an HLO file; or several of
            these with commas between.

    Raises:
        UnknownNameError: neither a suite's name, nor a folder with HLO files, nor an HLO file.
        ManifestError: the folder's manifest cannot be used.
    """
    if name in SUITE_NAMES:
        return _named_suite(str(name))
    if isinstance(name, str) and "," in name:
        return _joined(name)
    path = Path(name)
    if path.suffix == ".hlo" and path.is_file():
        return Suite(path.stem, (_bare_program(path, path.stem),))
    if path.is_dir() and (suite := _load_folder(path)).programs:
        return suite
    raise UnknownNameError("suite, folder of .hlo files or .hlo file", str(name), SUITE_NAMES)


def _joined(names: str) -> Suite:
    programs = [p for part in names.split(",") for p in load_suite(part.strip()).programs]
    twice = [name for name, count in Counter(p.name for p in programs).items() if count > 1]
    if twice:
        raise ManifestError(f"suites {names}: there are several programs called {twice[0]!r}")
    return Suite(names, tuple(programs))


def find_program(name: str | Path) -> Program:
    """A program of the suites that come with hlogym by name (of two, the quickstart's), or the one in an HLO file.

    Raises:
        UnknownNameError: neither a program's name nor an HLO file.
    """
    path = Path(name)
    if path.suffix == ".hlo" and path.is_file():
        return _bare_program(path, path.stem)
    programs = {p.name: p for folder in reversed(_FOLDERS) for p in _named_suite(folder).programs}
    if str(name) not in programs:
        raise UnknownNameError("program", str(name), programs)
    return programs[str(name)]


def random_inputs(
    program: Program, shapes: Iterable[tuple[npt.DTypeLike, Sequence[int]]], seed: int
) -> list[npt.NDArray[Any]]:
    """Inputs for a program, the same ones for the same seed.

    Args:
        program: whose input specs to follow.
        shapes: numpy dtype and dimensions of every entry parameter, in order.
        seed: of numpy's generator.

    Raises:
        ManifestError: the manifest has specs for another number of parameters.
    """
    wanted = [(np.dtype(dtype), tuple(dims)) for dtype, dims in shapes]
    specs = program.inputs or tuple(_default_spec(dtype) for dtype, _ in wanted)
    if len(specs) != len(wanted):
        raise ManifestError(f"{program.name}: {len(specs)} input specs for {len(wanted)} parameters")
    rng = np.random.default_rng(seed)
    return [spec.draw(rng, dtype, dims) for spec, (dtype, dims) in zip(specs, wanted, strict=True)]


def _default_spec(dtype: np.dtype[Any]) -> InputSpec:
    """Normal values for floats, 0 to 99 for integers (fewer where the type holds fewer), both truth values."""
    if dtype == np.bool_:
        return Randint(0, 2)
    try:
        return Randint(0, min(100, int(ml_dtypes.iinfo(dtype).max) + 1))  # type: ignore[no-untyped-call]
    except ValueError:  # not an integer type
        return Normal()


@cache
def _named_suite(name: str) -> Suite:
    if name in _FOLDERS:
        return _load_folder(_FOLDERS[name])
    folder, _, split = name.rpartition("/")
    whole = _named_suite(folder or QUICKSTART.name)
    return Suite(name, tuple(p for p in whole.programs if p.split == split))


def _load_folder(folder: Path) -> Suite:
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return Suite(folder.name, tuple(_bare_program(path, folder.name) for path in sorted(folder.glob("*.hlo"))))
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))["programs"]
        return Suite(folder.name, tuple(_program(folder, entry) for entry in entries))
    except KeyError as error:
        raise ManifestError(f"{manifest}: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError) as error:
        raise ManifestError(f"{manifest}: {error}") from error


def _bare_program(path: Path, suite: str) -> Program:
    return Program(path.stem, suite, "extra", path, "")


def _program(folder: Path, entry: Mapping[str, Any]) -> Program:
    name, split = entry["name"], entry["split"]
    if split not in get_args(Split):
        raise ManifestError(f"program {name!r}: split is {split!r}, not one of {', '.join(get_args(Split))}")
    path = folder / entry["file"]
    if not path.is_file():
        raise ManifestError(f"program {name!r}: there is no file {entry['file']!r}")
    return Program(
        name=name,
        suite=folder.name,
        split=split,
        path=path,
        description=entry.get("description", ""),
        inputs=tuple(_input_spec(name, spec) for spec in entry.get("inputs", ())),
        tolerance=Tolerance(**entry["tolerance"]) if "tolerance" in entry else None,
        chaotic=entry.get("chaotic", False),
    )


def _input_spec(program: str, spec: Mapping[str, Any]) -> InputSpec:
    values = dict(spec)
    kind = values.pop("kind", None)
    if kind not in _SPECS:
        raise ManifestError(f"program {program!r}: input kind is {kind!r}, not one of {', '.join(_SPECS)}")
    wanted = {field.name for field in fields(_SPECS[kind])}
    if not values.keys() <= wanted:
        raise ManifestError(
            f"program {program!r}: a {kind} input has {', '.join(sorted(wanted))}, not {sorted(values)}"
        )
    return _SPECS[kind](**values)
