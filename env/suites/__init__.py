"""Suites of programs for training and evaluation: HLO files, and a manifest that describes their inputs.

A suite is a folder of `.hlo` files, with or without a `manifest.json`:

    {"programs": [{"name": "softmax", "file": "softmax.hlo", "split": "train", "description": "...",
                   "inputs": [{"kind": "normal", "mean": 0, "std": 1}],
                   "tolerance": {"rtol": 1e-4, "atol": [1e-6, 0], "mismatch_fraction": 0}, "chaotic": false,
                   "family": "rows"}]}

`inputs` has one entry per parameter of the entry computation, in order. `inputs`, `description`, `tolerance`,
`chaotic` and `family` may be left out, and so may each part of a tolerance. `atol` is one number, or one per output.
Files must be inside the folder. Loading a suite checks it as a whole and reports every problem; the contents of the
suites that come with hlogym are checked by its tests instead.
"""

from env.suites.input_specs import InputSpec, Normal, Randint, Uniform
from env.suites.inputs import random_inputs
from env.suites.loading import (
    JAX,
    KERNELS,
    LINEAR_ALGEBRA,
    MODELS,
    QUICKSTART,
    SUITE_NAMES,
    find_program,
    load_suite,
    program_in,
)
from env.suites.sealing import SealedError, open_test_programs, read_openings
from env.suites.suite import ManifestError, Program, Split, Suite, Tolerance

__all__ = [
    "JAX",
    "KERNELS",
    "LINEAR_ALGEBRA",
    "MODELS",
    "QUICKSTART",
    "SUITE_NAMES",
    "InputSpec",
    "ManifestError",
    "Normal",
    "Program",
    "Randint",
    "SealedError",
    "Split",
    "Suite",
    "Tolerance",
    "Uniform",
    "find_program",
    "load_suite",
    "open_test_programs",
    "program_in",
    "random_inputs",
    "read_openings",
]
