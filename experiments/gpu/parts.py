"""The parts of the command, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from experiments.gpu.job import Job

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: also of its file.
        seconds: what it may take.
        title: what its table is called.
        needs_gpu: whether it uses a GPU.
    """

    name: str
    seconds: float
    title: str
    needs_gpu: bool = True

    @property
    def run(self) -> Callable[[Job], None]:
        """The function that fills a job; its module is imported now, so that no part depends on another's imports."""
        function: Callable[[Job], None] = importlib.import_module(f"experiments.gpu.{self.name}").run
        return function


PARTS = (
    Part("environment", 40, "Device"),
    Part("correctness", 150, "Programs compared with the interpreter"),
    Part("races", 170, "Beside XLA, Inductor and cuBLAS"),
    Part("cartpole", 60, "Cartpole"),
    Part("choices", 60, "The best of the measured choices of each kernel"),
    Part("kernel_times", 30, "Single kernels"),
    Part("sanitizer", 60, "compute-sanitizer"),
    Part("training", 90, "A short training on measured time"),
    Part("model_fit", 90, "The model of device times", needs_gpu=False),
)
