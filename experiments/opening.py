"""The opening of test programs by `hlogym evaluate`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from env.suites import open_test_programs

__all__ = ["opened_for_evaluation"]


@contextmanager
def opened_for_evaluation(policy: Path, results: Path) -> Iterator[None]:
    """Open test programs for the evaluation of a policy.

    Openings are recorded in the folder of results, and in the folder of the run if the policy lies in one.
    """
    run = policy.resolve().parent
    folders = [results, *([run] if policy.name in ("policy", "best") else [])]
    with open_test_programs("evaluate", _described(policy), folders):
        yield


def _described(policy: Path) -> str:
    """Return a policy's folder and the start of the hash of its weights, which identifies it when it has moved."""
    weights = policy / "policy.safetensors"
    if not weights.is_file():
        weights = policy / "policy.json"  # of a whole policy, which has the checksums of its parts
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:12] if weights.is_file() else "no weights"
    return f"{policy} ({digest})"
