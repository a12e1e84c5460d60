"""Overhead of the runtime and of the compiler, beside JAX: calls of small programs, and compile times.

python -m experiments.benchmarks.overhead [--rounds 9] [--out results/kernels/overhead.md]

Needs JAX. Calls are timed from Python: ours with numpy arrays, JAX's with its own arrays until the first result is
ready, `hlogym.jit` with either. Compile times: ours from HLO text to an executable, with kernels that are not in the
cache on disk (cold), that are (warm), and that this process has generated before (again); XLA's from its own
representation of the same text, without a cache. All are medians of interleaved samples.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from compiler import CompilationPlan, CompilationSession, compile, parse
from compiler.api import decide_all
from compiler.frontends.jax import lower
from compiler.jit import jit
from compiler.plan_replays import PlanReplays
from compiler.policy import resolve_policy
from compiler.runtime.kernel_memo import forget_kernels
from env.statistics import geometric_mean
from env.suites import Program, load_suite
from experiments.console import duration
from experiments.module_command import plain_errors
from experiments.provenance import provenance
from experiments.results import markdown_table, write_text

SMALL = ("quickstart/softmax", "quickstart/bias_gelu", "quickstart/layer_norm_forward", "quickstart/adam_step",
         "jax/heat_equation")  # fmt: skip
MODELS = (
    "models/mlp_classifier_train", "models/transformer_block_forward", "models/gpt_forward", "models/resnet_forward",
    "models/ppo_update", "jax/lstm_scan_gradient", "quickstart/cartpole_naive",
)  # fmt: skip
FIRST = "HloModule first\nENTRY main { x = f32[4] parameter(0) ROOT y = f32[4] negate(x) }"
CALLS_PER_SAMPLE = 2000
PLANNED = (
    "quickstart/layer_norm_forward", "models/mlp_classifier_train", "models/transformer_block_forward",
    "models/ppo_update", "quickstart/cartpole_naive",
)  # fmt: skip
PLANS = 16
"""Plans of each of these programs."""


def _functions() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    x = np.ones(8, np.float32)
    return {
        "x + 1, f32[8]": (lambda x: x + 1, [x]),
        "(a + b) * c, f32[8]": (lambda a, b, c: (a + b) * c, [x, x + 1, x + 2]),
        "sum of f32[]": (lambda a, b: a + b, [np.array(1, np.float32), np.array(2, np.float32)]),
        "8 arguments, 8 results": (lambda *a: [v * 2 for v in a], [x + k for k in range(8)]),
        "softmax, f32[4,16]": (_softmax, [np.ones((4, 16), np.float32)]),
    }


def _softmax(x: Any) -> Any:
    import jax

    return jax.nn.softmax(x)


def _call_jax(function: Callable[..., Any], arrays: list[Any]) -> None:
    found = function(*arrays)
    (found[0] if isinstance(found, list) else found).block_until_ready()


def _sample(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS_PER_SAMPLE):
        function()
    return (time.perf_counter() - start) / CALLS_PER_SAMPLE


def call_rows(rounds: int) -> list[list[str]]:
    """Return a row of seconds per call for each small program."""
    import jax

    rows = [["program", "hlogym", "jax", "hlogym / jax", "hlogym.jit, numpy", "hlogym.jit, jax", "hlogym.jit / jax"]]
    for name, (function, arrays) in _functions().items():
        executable, jitted, ours_jitted = compile(lower(function, *arrays)), jax.jit(function), jit(function)
        on_device = [jax.numpy.asarray(a) for a in arrays]
        for found, wanted in zip(executable(*arrays), jax.tree.leaves(jitted(*on_device)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        contestants: list[Callable[[], object]] = [
            partial(executable, *arrays), partial(_call_jax, jitted, on_device),
            partial(ours_jitted, *arrays), partial(_call_jax, ours_jitted, on_device),
        ]  # fmt: skip
        samples: list[list[float]] = [[] for _ in contestants]
        for _ in range(rounds):
            for sample, contestant in zip(samples, contestants, strict=True):
                sample.append(_sample(contestant))
        ours, theirs, with_numpy, with_jax = map(median, samples)
        times = [duration(with_numpy), duration(with_jax), f"{with_jax / theirs:.2f}"]
        rows.append([name, duration(ours), duration(theirs), f"{ours / theirs:.2f}", *times])
    return rows


class XlaCompiler:
    """XLA's compiler for the CPU."""

    def __init__(self) -> None:
        from jax._src import xla_bridge
        from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name compiles HLO text

        importlib.import_module("jaxlib.cpu._lapack").initialize()
        self._jax, self._hlo = _jax, hlo
        self._client: Any = xla_bridge.get_backend("cpu")

    def seconds(self, text: str) -> float:
        """Return the seconds in which XLA compiles a module, without those of parsing its text."""
        parsed = self._hlo.hlo_module_from_text(text)
        computation = self._hlo.XlaComputation(parsed.as_serialized_hlo_module_proto())
        mlir = self._jax.mlir.xla_computation_to_mlir_module(computation)
        devices = self._jax.DeviceList((self._client.devices()[0],))
        start = time.perf_counter()
        self._client.compile_and_load(mlir, devices, self._jax.CompileOptions())
        return time.perf_counter() - start


def _compile_seconds(text: str, in_new_process: bool = True, plan: CompilationPlan | None = None) -> float:
    if in_new_process:
        forget_kernels()
    start = time.perf_counter()
    compile(text, plan=plan)
    return time.perf_counter() - start


def _programs(names: tuple[str, ...]) -> list[Program]:
    known = {f"{suite}/{p.name}": p for suite in ("quickstart", "jax", "models") for p in load_suite(suite).programs}
    return [known[name] for name in names]


def compile_rows(names: tuple[str, ...], rounds: int) -> tuple[list[list[str]], str]:
    """Return a row of compile times for each program, and a line on their ratios."""
    xla = XlaCompiler()
    rows = [["program", "instructions", "cold", "warm", "again", "xla", "cold / xla", "warm / xla"]]
    ratios: list[tuple[float, float]] = []
    for program in _programs(names):
        text = program.text()
        samples: list[tuple[float, float, float, float]] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["HLOGYM_CACHE"] = folder
                compile(FIRST)  # builds the runtime, once per cache
                ours = _compile_seconds(text), _compile_seconds(text), _compile_seconds(text, in_new_process=False)
                samples.append((*ours, xla.seconds(text)))
        cold, warm, again, theirs = (median(s) for s in zip(*samples, strict=True))
        ratios.append((cold / theirs, warm / theirs))
        seconds = [f"{1e3 * s:.0f} ms" for s in (cold, warm, again, theirs)]
        rows.append([program.name, str(text.count(" = ")), *seconds, *(f"{r:.2f}" for r in ratios[-1])])
    means = [geometric_mean(list(r)).value for r in zip(*ratios, strict=True)]
    return rows, f"Geometric mean of the ratios: cold {means[0]:.2f}, warm {means[1]:.2f}."


def _nearby_plans(text: str, count: int) -> list[CompilationPlan]:
    """Return plans that differ from the default one in a few fusions, as a search by changes measures them."""
    start = CompilationSession(parse(text))
    decide_all(start, resolve_policy("heuristic", start.backend))
    rng, plans = random.Random(0), []
    for _ in range(count):
        session = start.fork()
        undone = rng.randrange(4)
        for _ in range(undone):
            session.undo()
        for _ in range(undone + 1):
            if actions := session.actions():
                session.apply(rng.choice(actions))
        plans.append(session.plan)
    return plans


def plan_rows(names: tuple[str, ...], rounds: int) -> list[list[str]]:
    """Return a row of seconds per plan for each program: alone, as in a new process, and sharing what they can."""
    rows = [["program", "plans", "alone", "shared", "alone / shared"]]
    for program in _programs(names):
        text = program.text()
        plans = _nearby_plans(text, PLANS)
        for plan in plans:
            compile(text, plan=plan)  # so that all kernels are in the cache
        samples: list[tuple[float, float]] = []
        for _ in range(rounds):
            alone = sum(_compile_seconds(text, plan=plan) for plan in plans)
            forget_kernels()
            replays, start = PlanReplays(), time.perf_counter()
            for plan in plans:
                replays.compile(text, "cpu", plan)
            samples.append((alone / len(plans), (time.perf_counter() - start) / len(plans)))
        alone, shared = (median(s) for s in zip(*samples, strict=True))
        seconds = f"{1e3 * alone:.1f} ms", f"{1e3 * shared:.1f} ms"
        rows.append([program.name, str(len(plans)), *seconds, f"{alone / shared:.1f}"])
    return rows


def _first_seconds(rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HLOGYM_CACHE"] = folder
            samples.append(_compile_seconds(FIRST))
    return median(samples)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="interleaved samples per row (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("results/kernels/overhead.md"), help="results file (default: %(default)s)"
    )
    options = parser.parse_args()
    command = " ".join(["python -m experiments.benchmarks.overhead", *sys.argv[1:]])
    facts = "".join(f"- {k}: {v}\n" for k, v in {**provenance(), "command": command}.items())
    calls = call_rows(options.rounds)
    small, small_ratios = compile_rows(SMALL, options.rounds)
    models, model_ratios = compile_rows(MODELS, options.rounds)
    first = _first_seconds(options.rounds)
    sections = [
        f"# Overhead of calls and of compiling\n\n{facts}",
        "Medians of interleaved samples; a ratio is our time divided by the other.\n",
        "## Calls of small programs\n",
        "Around the call from Python: ours with numpy arrays, JAX's with its own, until the first result is ready; "
        "`hlogym.jit` with either.\n",
        markdown_table(calls),
        "## Compiling small programs\n",
        "From HLO text to an executable; cold: no kernel is in the cache on disk, warm: all are, again: this process "
        "has generated them before, as when plans of one program are measured. XLA parses no text and has no cache. "
        f"{small_ratios} The first program in an empty cache takes {1e3 * first:.0f} ms, because the "
        "runtime is built too.\n",
        markdown_table(small),
        f"## Compiling models\n\n{model_ratios}\n",
        markdown_table(models),
        "## Compiling plans of one program\n",
        "Time per plan, on average over plans that differ from the default one in a few fusions; all kernels are in "
        "the cache. Alone: `compile` as in a new process; shared: as workers of environments and searches replay them, "
        "where plans share passes, legality and kernels.\n",
        markdown_table(plan_rows(PLANNED, options.rounds)),
    ]
    write_text(options.out, "\n".join(sections))


if __name__ == "__main__":
    with plain_errors():
        main()
