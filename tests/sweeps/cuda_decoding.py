"""Predicted times of attention with few queries and many keys on an H100, without a GPU.

python -m tests.sweeps.cuda_decoding [--out results/cuda/decoding]

Each attention is compiled by default, as one kernel (the choice `generated`) and op by op (`separate`), which leaves
products to a library. Keys and values are caches of [keys, heads, size], as models keep them, or [heads, keys, size].
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compiler import CompilationSession
from compiler.backends.cuda.program_times import PredictedTimes
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.runtime.thunks import Thunk
from compiler.text import parse
from experiments.provenance import provenance
from tests.codegen.grouped_attention import CacheOrder, grouped_attention

TIMES = PredictedTimes("h100")


@dataclass(frozen=True)
class Form:
    """Attention of some queries of several heads per head of keys.

    Attributes:
        type: element type.
        heads: heads of keys.
        groups: heads of queries per head of keys.
        queries, keys, size: of a head.
        cache: the order of the caches.
    """

    type: str
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    cache: CacheOrder = "keys first"

    def text(self) -> str:
        """Return the program."""
        return grouped_attention(self.type, self.heads, self.groups, self.queries, self.keys, self.size, self.cache)


CACHES: tuple[CacheOrder, ...] = ("keys first", "heads first")
FORMS = [
    Form(t, h, g, q, keys, 128, cache)
    for t in ("f32", "bf16")
    for h, g, q, keys in ((8, 4, 1, 4096), (8, 4, 4, 4096), (8, 4, 16, 4096), (32, 1, 1, 1024), (8, 8, 1, 32768))
    for cache in CACHES
]


@dataclass(frozen=True)
class Row:
    """The predicted microseconds of one attention.

    Attributes:
        form: the attention.
        kernels: kinds of the default's kernels.
        default: with the default.
        one: as one kernel; None if it is no attention by default.
        separate: op by op; None likewise.
        memory: that the memory takes at least.
    """

    form: Form
    kernels: tuple[str, ...]
    default: float
    one: float | None
    separate: float | None
    memory: float


def row_of(form: Form) -> Row:
    """Predict the times of a form."""
    module = parse(form.text())
    executable = _session(form).finish()
    default = _microseconds(executable.thunks)
    one, separate = (_with_choice(form, name) for name in (GENERATED, "separate"))
    size = sum(s.byte_size for s in (*module.entry.parameter_shapes, module.entry.root.shape))
    kinds = tuple(k.kind for k in executable.kernels)
    return Row(form, kinds, default, one, separate, 1e6 * size / TIMES.gpu.memory_bandwidth)


def _session(form: Form) -> CompilationSession:
    """Return a session with the default decisions up to kernels."""
    session = CompilationSession(parse(form.text()), backend="cuda")
    session.run_passes()
    session.run_loop_policy()
    session.run_fusion_policy()
    return session


def _with_choice(form: Form, name: str) -> float | None:
    session = _session(form)
    sites = [s for s in session.kernel_sites() if s.spec is not None and s.spec.kind == "attention"]
    if not sites:
        return None
    session.set_kernel(sites[0], KernelChoice(name))
    return _microseconds(session.finish().thunks)


def _microseconds(thunks: Sequence[Thunk]) -> float:
    return round(1e6 * TIMES.program(thunks).seconds, 1)


def report(rows: Sequence[Row], source: dict[str, object]) -> str:
    """Return the table as Markdown."""
    lines = [
        "# Attention with few queries and many keys on a GPU",
        "",
        f"`{source['command']}`, commit {source['commit']}, {source['machine']}, {source['date']}. Microseconds "
        "predicted for an H100 in a graph, not measured; memory: those that reading keys and values takes at least.",
        "",
        "| type | heads | queries | keys | cache | default | kernels | one kernel | op by op | memory |",
        "|---|---|---:|---:|---|---:|---|---:|---:|---:|",
    ]
    for r in rows:
        f = r.form
        one, separate = ("" if x is None else f"{x:.1f}" for x in (r.one, r.separate))
        lines.append(
            f"| {f.type} | {f.heads * f.groups} over {f.heads} | {f.queries} | {f.keys} | {f.cache} | {r.default:.1f} "
            f"| {', '.join(r.kernels)} | {one} | {separate} | {r.memory:.1f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Predict the times and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="path of the table without its ending")
    options = parser.parse_args()
    source = {**provenance(), "command": "python -m tests.sweeps.cuda_decoding"}
    rows = [row_of(f) for f in FORMS]
    text = report(rows, source)
    print(text)
    if options.out:
        data = {"provenance": source, "rows": [asdict(r) for r in rows]}
        options.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
