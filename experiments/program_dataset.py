"""Programs as a data set of MLflow: which programs a run used, with a digest of their text."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env.suites import Program

__all__ = ["describe_programs"]

_DIGEST = 12


def describe_programs(programs: Sequence[Program], name: str) -> dict[str, Any]:
    """Return the fields of an `mlflow.entities.Dataset`; equal programs have equal digests.

    Args:
        programs: the programs, one row each: name, suite, split, family, description, digest of the HLO text.
        name: of the data set.
    """
    import pandas
    from mlflow.data.pandas_dataset import from_pandas

    rows = [
        {
            "program": p.name, "suite": p.suite, "split": p.split, "family": p.family, "description": p.description,
            "sha256": hashlib.sha256(p.path.read_bytes()).hexdigest(),
        }
        for p in programs
    ]  # fmt: skip
    digest = hashlib.sha256("\n".join(sorted(f"{r['program']} {r['sha256']}" for r in rows)).encode()).hexdigest()
    frame = pandas.DataFrame(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow has several kinds of sources for a folder, and asks which one is meant
        made = from_pandas(frame, source=_folder(programs), name=name[:500], digest=digest[:_DIGEST])
    return dict(made.to_dict())


def _folder(programs: Sequence[Program]) -> str:
    """Return the folder of the manifest, or the one that all programs are in."""
    folders = {p.path.resolve().parent for p in programs}
    while len(folders) > 1:
        deepest = max(folders, key=lambda f: len(f.parts))
        folders = {*(folders - {deepest}), deepest.parent}
    return str(next(iter(folders), Path.cwd()))
