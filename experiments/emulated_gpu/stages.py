"""The stages of learning: search, imitation, policy gradient, and the folder of the policy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.network import TorchPointerNetwork
from compiler.analysis.cost_model import device_model
from compiler.fusion.state import FusionState
from compiler.learned.fusion_policy import LearnedFusionPolicy, load_policy, save_policy
from compiler.learned.whole_folder import write_whole
from compiler.text import parse
from experiments.console import error_console
from experiments.emulated_gpu.comparison import Starts
from experiments.emulated_gpu.learning import imitate, make_network, numpy_network, reinforce
from experiments.emulated_gpu.mapping import Searched, drawn, search_suite, with_loops
from experiments.emulated_gpu.plans import open_session
from experiments.emulated_gpu.samples import Sample, samples_of
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.provenance import provenance
from experiments.results import write_text

__all__ = ["CURVES", "DEVICE", "KINDS", "WHOLE", "gain", "learn", "policy_folder"]

DEVICE = "gpu"
"""The device model of the emulated GPU."""
KINDS = ("imitation", "policy gradient")
WHOLE, CURVES = "policy", "curves.jsonl"
NAME = "emulated-gpu"
_OF_TESTS = ("test_per_family", "search_test")
"""Settings that do not change what is learned."""


def policy_folder(work: Path, kind: str, seed: int) -> Path:
    """Return where the policy of a seed lies."""
    return work / f"seed-{seed}" / kind.replace(" ", "-")


def learn(settings: EmulatedSettings, work: Path) -> None:
    """Search, train the seeds that have not been trained, and write the policy that is best on validation programs."""
    train = search_suite(drawn(settings.train, settings.train_per_family), settings, work / "train.jsonl")
    validation = search_suite(
        drawn(settings.validation, settings.validation_per_family), settings, work / "validation.jsonl"
    )
    loops = search_suite(
        with_loops(settings.train, settings.loops_per_family), settings, work / "loops.jsonl", only_loops=True
    )
    curves = _Curves(work / CURVES, settings)
    if len(curves.seeds()) < settings.seeds:
        samples, states = samples_of([*train, *loops], settings.backend), _starts(train, settings)
        error_console.print(f"{len(samples)} decisions of {len(train)} programs, and of {len(loops)} with loops")
        for seed in range(settings.seeds):
            if seed not in curves.seeds():
                _train_seed(seed, samples, states, validation, settings, work, curves)
                curves.write()
    scores = curves.scores()
    (kind, seed, completion), best = max(scores.items(), key=lambda k: k[1])
    facts = {
        **{k: v for k, v in provenance().items() if k in ("commit", "date", "machine")},
        "command": "python -m experiments.emulated_gpu learn", "settings": asdict(settings), "validation": best,
        "kind": kind, "seed": seed, "completion": completion,
    }  # fmt: skip
    chosen = load_policy(policy_folder(work, kind, seed))
    part = work / "part"
    save_policy(part, chosen.network.shape, chosen.network.weights, {"kind": kind, "seed": seed}, completion, DEVICE)
    write_whole(work / WHOLE, NAME, "1", {"fusion": part}, [settings.backend], provenance=facts)
    error_console.print(f"{kind} of seed {seed}, completed by {completion}: {best:.3f}x the rules on validation")


def _train_seed(
    seed: int,
    samples: Sequence[Sample],
    states: Sequence[tuple[FusionState, float]],
    validation: Sequence[Searched],
    settings: EmulatedSettings,
    work: Path,
    curves: _Curves,
) -> None:
    network = make_network(settings, seed)
    for epoch, (loss, regret) in enumerate(imitate(network, samples, settings, seed)):
        curves.add(seed, KINDS[0], epoch + 1, loss=loss, regret=regret)
    _keep(network, settings, work, KINDS[0], seed, validation, curves)
    for step, value in enumerate(reinforce(network, states, settings, seed)):
        curves.add(seed, KINDS[1], step + 1, **{"return": math.exp(value)})
    if settings.iterations:
        _keep(network, settings, work, KINDS[1], seed, validation, curves)


class _Curves:
    """What training noted, in a file: one line per epoch, iteration and validation, after a line with the settings."""

    def __init__(self, path: Path, settings: EmulatedSettings) -> None:
        self._path = path
        own = asdict(settings)
        self._head = {"settings": {n: v for n, v in own.items() if n not in ("seeds", "test", *_OF_TESTS)}}
        self._rows: list[dict[str, Any]] = []
        self._whole: set[int] = set()
        if path.is_file():
            head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if head == self._head:
                self._rows, self._whole = rows, {r["seed"] for r in rows}

    def seeds(self) -> set[int]:
        """Return the seeds that have been trained."""
        return self._whole

    def add(self, seed: int, stage: str, step: int, **values: Any) -> None:
        """Note values of a step of training; step 0 is the validation after a stage."""
        self._rows.append({"seed": seed, "stage": stage, "step": step, **values})

    def write(self) -> None:
        """Write the file; all seeds so far count as trained."""
        self._whole = {r["seed"] for r in self._rows}
        write_text(self._path, "\n".join(map(json.dumps, [self._head, *self._rows])) + "\n")

    def scores(self) -> dict[tuple[str, int, str], float]:
        """Return the gain on validation programs by kind of training, seed and completion."""
        return {(r["stage"], r["seed"], r["completion"]): r["validation"] for r in self._rows if "validation" in r}


def _keep(
    network: TorchPointerNetwork,
    settings: EmulatedSettings,
    work: Path,
    kind: str,
    seed: int,
    validation: Sequence[Searched],
    curves: _Curves,
) -> None:
    """Write the policy of a network, and note its gain on validation programs with each completion."""
    shown = numpy_network(network)
    save_policy(
        policy_folder(work, kind, seed), shown.shape, shown.weights, {"kind": kind, "seed": seed},
        settings.completion, DEVICE,
    )  # fmt: skip
    for completion in (settings.completion, settings.other_completion):
        policy = LearnedFusionPolicy(shown, device=device_model(DEVICE), completion=completion)
        value = gain(policy, validation, settings)
        curves.add(seed, kind, 0, validation=value, completion=completion)
        error_console.print(
            f"seed {seed}, {kind}, completed by {completion}: {value:.4f}x the rules on {len(validation)} programs"
        )


def gain(policy: LearnedFusionPolicy, searched: Sequence[Searched], settings: EmulatedSettings) -> float:
    """Return the geometric mean of the predicted speedup of a policy over the rules."""
    logs = [math.log(s.found.rules / Starts(s.program, settings.backend).of_policy(policy)) for s in searched]
    return math.exp(sum(logs) / max(1, len(logs)))


def _starts(searched: Sequence[Searched], settings: EmulatedSettings) -> list[tuple[FusionState, float]]:
    """Return the start of fusion of the programs in which fusions gain, with the predicted seconds of the rules."""
    starts = []
    for s in searched:
        if s.found.script:
            state = open_session(parse(s.program.text()), settings.backend, s.found.loops).fusion
            starts.append((state, s.found.rules))
    return starts
