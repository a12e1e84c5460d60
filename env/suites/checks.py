"""Checks of a suite: the entries of its manifest, and the programs in its files. Each returns a list of problems."""

from __future__ import annotations

import difflib
import math
import os
import posixpath
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import ml_dtypes
import numpy as np

from compiler.errors import HlogymError, HloSyntaxError, UnsupportedError
from compiler.interpreter.custom_calls import CUSTOM_CALLS
from compiler.interpreter.machine import describe, find_evaluator
from compiler.ir import HloModule, Opcode, Trait
from compiler.ir.shape import Shape
from compiler.ir.verifier import check_module
from compiler.runtime.executable import parameter_leaves
from compiler.support.safe_names import why_no_name
from compiler.text import parse
from env.suites.input_specs import INPUT_SPECS
from env.suites.program_files import read_hlo_text
from env.suites.suite import Split, Tolerance

__all__ = ["content_problems", "duplicate_names", "entry_problems", "input_problems", "path_problem"]

KNOWN_FIELDS = ("name", "file", "split", "description", "inputs", "tolerance", "chaotic", "family")
SHOWN_FINDINGS = 3
_SPLITS: tuple[Split, ...] = get_args(Split)
_IDLE = frozenset({Opcode.PARAMETER, Opcode.CONSTANT, Opcode.TUPLE, Opcode.GET_TUPLE_ELEMENT, Opcode.AFTER_ALL})
_DRAWABLE = ((-(1 << 63), 1 << 63), (0, 1 << 64))
_SIGMAS = 6.0
"""About two in a billion normal values are farther from the mean."""


# ---- entries of a manifest


def entry_problems(entry: Any) -> list[str]:
    """Return what is wrong with an entry of "programs"; its file is not opened."""
    if not isinstance(entry, dict):
        return [f"a program must be an object, not {entry!r:.80}"]
    found = [f"{name!r} is missing" for name in ("name", "file", "split") if name not in entry]
    if "name" in entry and (reason := why_no_name(entry["name"])) is not None:
        found.append(reason)
    if "file" in entry and not isinstance(entry["file"], str):
        found.append(f"file must be a string, not {entry['file']!r:.80}")
    if "split" in entry and entry["split"] not in _SPLITS:
        found.append(f"split is {entry['split']!r:.80}, not one of {', '.join(_SPLITS)}")
    for name, kind in (("description", str), ("chaotic", bool), ("family", str)):
        if not isinstance(entry.get(name, kind()), kind):
            found.append(f"{name} must be a {'string' if kind is str else 'boolean'}, not {entry[name]!r:.80}")
    for name in sorted(
        entry.keys() - set(KNOWN_FIELDS)
    ):  # other fields are ignored, unless they look like a misspelling
        near = difflib.get_close_matches(name, KNOWN_FIELDS, n=1, cutoff=0.85)
        found += [f"there is no field {name!r}; did you mean {n!r}?" for n in near]
    if "tolerance" in entry:
        found += _tolerance_problems(entry["tolerance"])
    if "inputs" in entry:
        found += _spec_list_problems(entry["inputs"])
    return found


def _tolerance_problems(value: Any) -> list[str]:
    found = _record_problems("tolerance", value, Tolerance)
    if found:
        return found
    for name, number in value.items():
        if any(n < 0 for n in (number if isinstance(number, list) else [number]) if n is not None):
            found.append(f"{name} of the tolerance must not be negative, is {number!r:.80}")
    if value.get("mismatch_fraction", 0) > 1:
        found.append("mismatch_fraction of the tolerance must be between 0 and 1")
    return found


def _spec_list_problems(value: Any) -> list[str]:
    if not isinstance(value, list):
        return [f"inputs must be a list, not {value!r:.80}"]
    return [f"input {n}: {problem}" for n, spec in enumerate(value) for problem in _spec_problems(spec)]


def _spec_problems(spec: Any) -> list[str]:
    kind = spec.get("kind") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or kind not in INPUT_SPECS:
        return [f"kind is {kind!r:.80}, not one of {', '.join(INPUT_SPECS)}"]
    values = {k: v for k, v in spec.items() if k != "kind"}
    found = _record_problems(f"a {kind} input", values, INPUT_SPECS[kind])
    if found:
        return found
    if values.get("std", 0) < 0:
        return [f"std must not be negative, is {values['std']!r:.80}"]
    if "low" in values and not values["low"] < values["high"]:
        return [f"low must be below high, but {values['low']!r:.40} is not below {values['high']!r:.40}"]
    if kind == "randint" and not any(a <= values["low"] and values["high"] <= b for a, b in _DRAWABLE):
        return [f"integers from {values['low']} to {values['high'] - 1} do not fit into 64 bits"]
    return []


def _record_problems(what: str, value: Any, kind: type[Any]) -> list[str]:
    """Return how an object differs from the fields of a dataclass of numbers."""
    known = {f.name: f for f in fields(kind)}
    if not isinstance(value, dict):
        return [f"{what} must be an object, not {value!r:.80}"]
    if unknown := sorted(value.keys() - known.keys()):
        return [f"{what} has {', '.join(known)}, not {', '.join(map(repr, unknown))}"]
    found = [
        f"{what} needs {name!r}"
        for name, f in known.items()
        if name not in value and f.default is MISSING and f.default_factory is MISSING
    ]
    return found + [f"{name} of {what} {reason}" for name, v in value.items() if (reason := _no_number(known[name], v))]


def _no_number(field: Field[Any], value: Any) -> str | None:
    """Return why a value does not fit a field that is annotated as a number; other fields are not checked."""
    annotation = str(field.type)
    if annotation == "int":
        return None if type(value) is int and abs(value) <= 1 << 64 else f"must be an integer, is {value!r:.80}"
    words = annotation.split(" | ")
    if "float" not in words or (value is None and "None" in words):
        return None
    if "tuple[float, ...]" in words and isinstance(value, list):
        return None if all(map(_is_finite, value)) else f"must contain finite numbers, is {value!r:.80}"
    return None if _is_finite(value) else f"must be a finite number, is {value!r:.80}"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def duplicate_names(names: Iterable[str]) -> list[str]:
    """Return the names that occur again, or look the same as an earlier one."""
    seen: dict[str, str] = {}
    found = []
    for name in names:
        shown = unicodedata.normalize("NFC", name)
        if shown in seen:
            found.append(name)
        seen[shown] = name
    return found


# ---- files


def path_problem(folder: Path, file: str) -> str | None:
    """Return why a file named in a manifest cannot belong to its suite, or None."""
    normal = posixpath.normpath(file.replace("\\", "/"))
    if not file or "\0" in file or normal.startswith(("/", "../")) or normal in (".", "..") or Path(file).is_absolute():
        return f"file {file!r:.80} must name a file inside the suite's folder"
    try:
        there = (folder / file).is_file()
    except OSError:  # a name that is too long
        there = False
    return None if there else f"there is no file {file!r:.80}"


@dataclass(frozen=True)
class _Facts:
    """Facts about the program in a file."""

    problems: tuple[str, ...]
    parameters: tuple[Shape, ...] = ()


def content_problems(path: Path) -> list[str]:
    """Return why the program in a file cannot be compiled and measured here.

    The result is cached until the file changes.
    """
    try:
        status = path.stat()
    except OSError as error:
        return [f"cannot read {path}: {error.strerror}"]
    if not path.is_file():
        return [f"{path} is not a file"]
    return list(_facts(path, status.st_size, status.st_mtime_ns).problems)


@lru_cache(maxsize=10_000)
def _facts(path: Path, size: int, changed: int) -> _Facts:
    del size, changed  # part of the key
    try:
        text = read_hlo_text(path)
    except HloSyntaxError as error:
        return _Facts((f"{path}: {error.message}",))
    except HlogymError as error:
        return _Facts((str(error) if str(path) in str(error) else f"{path}: {error}",))
    except OSError as error:
        return _Facts((f"cannot read {path}: {error.strerror}",))
    try:
        module = parse(text, filename=str(path))
        findings = check_module(module)
    except HloSyntaxError as error:
        return _Facts((f"{path}:{error.line}:{error.column}: {error.message}",))
    except Exception as error:  # whatever the parser raises, the rest of the suite is checked too
        return _Facts((f"{path} cannot be read: {type(error).__name__}: {error}"[:500],))
    if findings:
        shown = "; ".join(findings[:SHOWN_FINDINGS])
        more = f" (and {len(findings) - SHOWN_FINDINGS} more)" if len(findings) > SHOWN_FINDINGS else ""
        return _Facts((f"{path} is not valid HLO: {shown}{more}",))
    return _Facts(tuple(_module_problems(module)), tuple(parameter_leaves(module)))


def _module_problems(module: HloModule) -> list[str]:
    for name, what in (("replica_count", "replicas"), ("num_partitions", "partitions")):
        count = str(module.header.get(name, "1"))
        if count != "1":
            return [f"it is written for {count} {what}, but hlogym measures on one device"]
    found = [problem for p in module.entry.parameters if (problem := _parameter_problem(p.name, p.shape))]
    works = False
    for computation in module.post_order():
        for i in computation.instructions:
            if i.opcode in _IDLE:
                continue
            works = True
            if i.opcode.has(Trait.HOST):
                found.append(f"{describe(i)} exchanges data with a host, which is not supported")
            elif i.opcode.has(Trait.COLLECTIVE) and _among_several(i.attr("replica_groups")):
                found.append(f"{describe(i)} needs several devices")
            elif i.opcode is Opcode.CUSTOM_CALL and i.attr("custom_call_target") not in CUSTOM_CALLS:
                found.append(f"{describe(i)}: no backend knows the custom call {i.attr('custom_call_target')!r:.80}")
            else:
                try:
                    find_evaluator(i)
                except UnsupportedError as error:
                    found.append(str(error))
    if not works:
        found.append("it computes nothing, so there is no kernel to measure")
    return found[:SHOWN_FINDINGS] or _memory_problems(module)


def _parameter_problem(name: str, shape: Shape) -> str | None:
    if all(s.is_array for s in shape.leaves()):
        return None
    return f"parameter %{name} is {shape}; only arrays and tuples of arrays can be drawn at random"


def _among_several(groups: Any) -> bool:
    """Check whether replica groups have several devices; `{{0}}` and `{}` do not."""
    return groups is not None and any(c in str(groups) for c in "123456789")


def _memory_problems(module: HloModule) -> list[str]:
    needed = sum(s.byte_size for s in module.entry.parameter_shapes)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    if needed <= installed:
        return []
    return [f"its arguments take {needed / 2**30:,.0f} GiB, and this machine has {installed / 2**30:,.0f}"]


# ---- inputs against parameters


def input_problems(path: Path, specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how valid input specs do not fit the parameters of the program in a file."""
    status = path.stat()
    facts = _facts(path, status.st_size, status.st_mtime_ns)
    if facts.problems:
        return []
    if len(specs) != len(facts.parameters):
        return [f"{len(specs)} input specs for {len(facts.parameters)} parameters"]
    pairs = zip(specs, facts.parameters, strict=True)
    return [f"input {n}: {problem}" for n, (spec, s) in enumerate(pairs) if (problem := _range_problem(spec, s.dtype))]


def _range_problem(spec: Mapping[str, Any], dtype: np.dtype[Any]) -> str | None:
    """Return how the values of a spec do not fit a type, in which they would wrap, or become infinite or NaN."""
    if spec["kind"] == "normal":
        mean, std = spec.get("mean", 0.0), spec.get("std", 1.0)
        low, high = mean - _SIGMAS * std, mean + _SIGMAS * std
        drawn = f"normal values of mean {mean} and deviation {std}"
    else:
        low, high = spec["low"], spec["high"] - (spec["kind"] == "randint")
        drawn = f"values from {low} to {high}"
    least, most = _limits(dtype)
    if math.isfinite(high - low) and least <= low and high <= most:
        return None
    return f"{drawn} do not fit {dtype}, which holds {least} to {most}"


def _limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype == np.bool_:
        return 0, 1
    real = dtype.type(0).real.dtype if np.issubdtype(dtype, np.complexfloating) else dtype
    try:
        whole = ml_dtypes.iinfo(real)  # type: ignore[no-untyped-call]
    except ValueError:
        broken = ml_dtypes.finfo(real)  # type: ignore[no-untyped-call]
        return float(broken.min), float(broken.max)
    return int(whole.min), int(whole.max)
