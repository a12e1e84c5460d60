"""The stages of learning: search, imitation, policy gradient, and the folder of the policy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

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
from experiments.emulated_gpu.samples import samples_of
from experiments.emulated_gpu.settings import EmulatedSettings
from experiments.provenance import provenance
from experiments.results import write_text

__all__ = ["CURVES", "DEVICE", "KINDS", "WHOLE", "gain", "learn", "policy_folder"]

DEVICE = "gpu"
"""The device model of the emulated GPU."""
KINDS = ("imitation", "policy gradient")
WHOLE, CURVES = "policy", "curves.jsonl"
NAME = "emulated-gpu"


def policy_folder(work: Path, kind: str, seed: int) -> Path:
    """Return where the policy of a seed lies."""
    return work / f"seed-{seed}" / kind.replace(" ", "-")


def learn(settings: EmulatedSettings, work: Path) -> None:
    """Search, train each seed, and write the policy that is best on validation programs."""
    train = search_suite(drawn(settings.train, settings.train_per_family), settings, work / "train.jsonl")
    validation = search_suite(
        drawn(settings.validation, settings.validation_per_family), settings, work / "validation.jsonl"
    )
    loops = search_suite(
        with_loops(settings.train, settings.loops_per_family), settings, work / "loops.jsonl", only_loops=True
    )
    samples, states = samples_of([*train, *loops], settings.backend), _starts(train, settings)
    held = samples_of(validation, settings.backend)
    error_console.print(f"{len(samples)} decisions of {len(train)} programs, {len(held)} of {len(validation)}")
    scores: dict[tuple[str, int, str], float] = {}
    curves: list[dict[str, float | int | str]] = []
    for seed in range(settings.seeds):
        network = make_network(settings, seed)
        for epoch, (loss, regret) in enumerate(imitate(network, samples, settings, seed)):
            curves.append({"seed": seed, "stage": KINDS[0], "step": epoch + 1, "loss": loss, "regret": regret})
        scores |= _kept(network, settings, work, KINDS[0], seed, validation, curves)
        for step, value in enumerate(reinforce(network, states, settings, seed)):
            curves.append({"seed": seed, "stage": KINDS[1], "step": step + 1, "return": math.exp(value)})
        if settings.iterations:
            scores |= _kept(network, settings, work, KINDS[1], seed, validation, curves)
        write_text(work / CURVES, "\n".join(map(json.dumps, curves)) + "\n")
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


def _kept(
    network: TorchPointerNetwork,
    settings: EmulatedSettings,
    work: Path,
    kind: str,
    seed: int,
    validation: Sequence[Searched],
    curves: list[dict[str, float | int | str]],
) -> dict[tuple[str, int, str], float]:
    """Write the policy of a network; return its gain on validation programs by completion, for the curves too."""
    shown = numpy_network(network)
    save_policy(
        policy_folder(work, kind, seed), shown.shape, shown.weights, {"kind": kind, "seed": seed},
        settings.completion, DEVICE,
    )  # fmt: skip
    found = {}
    for completion in (settings.completion, settings.other_completion):
        policy = LearnedFusionPolicy(shown, device=device_model(DEVICE), completion=completion)
        found[kind, seed, completion] = value = gain(policy, validation, settings)
        curves.append({"seed": seed, "stage": kind, "step": 0, "validation": value, "completion": completion})
        error_console.print(
            f"seed {seed}, {kind}, completed by {completion}: {value:.4f}x the rules on {len(validation)} programs"
        )
    return found


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
