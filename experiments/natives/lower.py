"""Write the suites kernels and models: lower the JAX functions of `experiments.natives` to HLO text, with manifests.

    python -m experiments.natives.lower [--out DIR]

Needs JAX (`pip install 'hlogym[jax]'`); reading the suites does not. All programs are held out from training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from compiler.support.files import write_file
from env.suites.loading import KERNELS, MODELS
from env.suites.lowering_command import run_lowering
from experiments.module_command import plain_errors

_SUITES = KERNELS.parent


def write_suites(out: Path) -> None:
    """Write both suites to folders in `out`."""
    import jax
    import ml_dtypes  # noqa: F401  # NumPy then knows bfloat16 by its name
    import numpy as np

    from env.suites.lowering import lower_to_text
    from experiments.natives import tables

    for folder, table in ((KERNELS.name, tables.KERNELS), (MODELS.name, tables.MODELS)):
        entries: list[dict[str, Any]] = []
        for name, native in table.items():
            arrays = [np.broadcast_to(np.zeros((), i.dtype), i.dims) for i in native.inputs]
            write_file(out / folder / f"{name}.hlo", lower_to_text(native.jax, *arrays))
            described = (native.jax.__doc__ or "").strip().partition("\n")[0]
            usable = described if native.jax.__module__.startswith("experiments.") else ""
            entries.append(
                {
                    "name": name,
                    "file": f"{name}.hlo",
                    "split": "extra",
                    "description": usable or name.replace("_", " "),
                    "inputs": [i.spec.to_json() for i in native.inputs],
                }
            )
        lines = ",\n".join(f"  {json.dumps(described)}" for described in entries)
        head = json.dumps({"lowered_with": f"jax {jax.__version__}"}).removesuffix("}")
        write_file(out / folder / "manifest.json", f'{head}, "programs": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    with plain_errors():
        sys.exit(run_lowering(__doc__, _SUITES, write_suites))
