"""The dataset of measured kernels: JSON lines, one per kernel, which can be read without this machine.

Each line holds the kernel as HLO text, so that features can be computed again when their definition changes.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compiler.analysis.cost_model import cpu
from compiler.backends.registry import find_backend
from compiler.codegen.schedules.kernel_choice import KernelChoice
from compiler.errors import HlogymError
from compiler.runtime.kernel_sites import KernelSite, KernelTarget
from compiler.support.json_reading import parse_object
from compiler.text import parse

__all__ = ["ChoiceTime", "DatasetError", "KernelTimes", "read_dataset", "site_of"]

FORMAT = 1


class DatasetError(HlogymError, ValueError):
    """A dataset that cannot be read."""


@dataclass(frozen=True)
class ChoiceTime:
    """The time of one choice of a kernel.

    Attributes:
        choice: what was measured.
        threads: number of threads that ran it.
        seconds: time of one execution.
        noise: how much slower the second fastest sample was, relative to the fastest.
        halves: that time by every other round, and by the rounds between: two measurements, so that what is chosen by
            one can be valued by the other; None if they were not kept.
    """

    choice: KernelChoice
    threads: int
    seconds: float
    noise: float
    halves: tuple[float, float] | None = None


@dataclass(frozen=True)
class KernelTimes:
    """One kernel and the times of some of its choices.

    Attributes:
        fingerprint: what the kernel computes.
        hlo: the kernel as a module.
        program: a program that has the kernel.
        family: its family.
        split: "train" or "validation".
        fusion: the policy whose fusions made the kernel: "default" or "random".
        cores: number of cores of the machine that measured it.
        times: the choices, measured in turns; the default is among them.
        code: for each of `times`, CODE_FEATURES of its machine code; empty if they were not kept.
    """

    fingerprint: str
    hlo: str
    program: str
    family: str
    split: str
    fusion: str
    cores: int
    times: tuple[ChoiceTime, ...]
    code: tuple[tuple[float, ...], ...] = ()

    def with_threads(self, numbers: Sequence[int]) -> KernelTimes:
        """Return the kernel with the times on some numbers of threads only."""
        kept = [n for n, t in enumerate(self.times) if t.threads in numbers]
        code = tuple(self.code[n] for n in kept) if self.code else ()
        return replace(self, times=tuple(self.times[n] for n in kept), code=code)

    def to_json(self) -> dict[str, Any]:
        """Return the kernel as plain data."""
        times = [[t.choice.to_json(), t.threads, t.seconds, t.noise, *(t.halves or ())] for t in self.times]
        names = ("fingerprint", "hlo", "program", "family", "split", "fusion", "cores")
        return {**{n: getattr(self, n) for n in names}, "times": times, **({"code": self.code} if self.code else {})}

    @staticmethod
    def from_json(data: dict[str, Any]) -> KernelTimes:
        """Read what `to_json` wrote; raise DatasetError for anything else."""
        try:
            times = tuple(map(_time, data["times"]))
            facts = {n: str(data[n]) for n in ("fingerprint", "hlo", "program", "family", "split", "fusion")}
            code = tuple(tuple(map(float, row)) for row in data.get("code", ()))
            return KernelTimes(**facts, cores=int(data["cores"]), times=times, code=code)
        except (KeyError, TypeError, ValueError) as e:
            raise DatasetError(f"a line of the dataset is no kernel: {e}") from e


def _time(data: Sequence[Any]) -> ChoiceTime:
    choice, threads, seconds, noise, *halves = data
    both = (float(halves[0]), float(halves[1])) if halves else None
    return ChoiceTime(KernelChoice.from_json(choice), int(threads), float(seconds), float(noise), both)


def read_dataset(path: Path) -> tuple[dict[str, Any], list[KernelTimes], set[str]]:
    """Return the provenance of a dataset, its kernels, and the names of the programs that it has seen.

    It may be compressed with gzip. An unfinished last line, which an interrupted collection leaves, is ignored.

    Raises:
        DatasetError: there is no such file, or it is no dataset.
    """
    header: dict[str, Any] = {}
    kernels: dict[str, KernelTimes] = {}
    programs: set[str] = set()
    for line in _lines(path):
        if "format" in line:
            header = line
        elif "done" in line:
            programs.update(map(str, line["done"]))
        else:
            kernel = KernelTimes.from_json(line)
            kernels.setdefault(kernel.fingerprint, kernel)
    if header.get("format") != FORMAT:
        raise DatasetError(f"{path} is no dataset of kernel times of format {FORMAT}; collect it again")
    return header, list(kernels.values()), programs


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise DatasetError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from e
    for number, line in enumerate(text.split("\n")[:-1], 1):  # the last one is empty, or unfinished
        yield parse_object(line, f"{path}, line {number}", DatasetError)


def append_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Append objects to a dataset, after removing an unfinished last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        end = file.tell()
        if end:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1 if not _ends_line(file, end) else end
            file.truncate(whole)
        file.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode())


def _ends_line(file: Any, end: int) -> bool:
    file.seek(end - 1)
    last: bytes = file.read(1)
    file.seek(0)
    return last == b"\n"


def site_of(kernel: KernelTimes) -> KernelSite:
    """Return the site of a kernel of the dataset, alone in its module, for the machine that measured it."""
    backend = find_backend("cpu")
    target = KernelTarget("cpu", str(backend.language), backend.default_schedule, cpu(kernel.cores))
    return KernelSite(parse(kernel.hlo).entry.root, target)
