"""Settings of the experiment on the emulated GPU, read from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEFAULT_FILE", "EmulatedSettings"]

DEFAULT_FILE = Path(__file__).parent / "emulated_gpu.yaml"


@dataclass(frozen=True)
class EmulatedSettings:
    """All settings.

    Attributes:
        backend: whose kernels and device model decide; "cuda" is the emulated GPU.
        completion: the fusion policy that takes over where the network stops, while it learns.
        other_completion: another one, with which the trained networks are tried too.
        train, validation: suites to search and train on, and to compare on while learning.
        test: suite of the held-out programs.
        train_per_family, validation_per_family, test_per_family: number of programs of each family at most.
        loops_per_family: number of training programs with loops, of which only the loops are learned.
        search_test: whether the search also runs on the programs of the comparison.
        evaluations: plans that the search of fusions tries per program at most.
        work: the same times the instructions of the program, at most: the rules take time proportional to them.
        instructions: loops are not unrolled beyond so many instructions, and larger programs are left out of training.
        seeds: one training each.
        hidden, rounds: size of the network.
        epochs: passes over the samples of the search, for imitation.
        batch: number of decisions per step of the optimizer.
        learning_rate: of imitation.
        iterations: of policy gradient after imitation; 0: none.
        programs: number of programs per iteration.
        rollouts: number of episodes per program and iteration.
        tuning_rate: learning rate of the policy gradient.
        reuses: passes of the optimizer over the episodes of an iteration.
        clip: greatest change of the ratio of probabilities, as in PPO.
        entropy: weight of the entropy.
    """

    backend: str = "cuda"
    completion: str = "reshapes,default"
    other_completion: str = "default"
    train: str = "corpus/train"
    validation: str = "corpus/validation"
    test: str = "corpus/test"
    train_per_family: int = 3
    validation_per_family: int = 3
    test_per_family: int = 6
    loops_per_family: int = 5
    search_test: bool = True
    evaluations: int = 300
    work: int = 3000
    instructions: int = 250
    seeds: int = 5
    hidden: int = 32
    rounds: int = 2
    epochs: int = 60
    batch: int = 32
    learning_rate: float = 0.003
    iterations: int = 6
    programs: int = 30
    rollouts: int = 4
    tuning_rate: float = 0.0002
    reuses: int = 2
    clip: float = 0.2
    entropy: float = 0.001
