"""The languages of kernels, each with its printer and default schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.analysis.cost_model import cpu
from compiler.codegen.nest import loop_ir as lir
from compiler.codegen.printing.print_c import print_c
from compiler.codegen.printing.print_cuda import print_cuda
from compiler.codegen.schedules import bind_c as cpu_binding
from compiler.codegen.schedules import bind_cuda as gpu_binding
from compiler.codegen.schedules.observed import BindStage, bind_in_stages
from compiler.codegen.schedules.schedule import Schedule
from compiler.errors import BackendError, UnknownNameError
from compiler.support.processor import vector_unit
from compiler.support.threads import program_threads


@dataclass(frozen=True)
class PrintedKernel:
    """The source of one kernel, its launch dimensions and dynamic shared memory; 0 if kernels are plain functions."""

    source: str
    grid: int = 0
    block: int = 0
    shared_bytes: int = 0


@dataclass(frozen=True)
class Language:
    """A language of kernels.

    Attributes:
        name: the value of `KernelSpec.language`.
        default_schedule: the schedule of kernels for which none is chosen.
        bind: function that binds a nest to a device of the language; raises UnsupportedError where it cannot.
        print_kernel: function that prints a bound kernel under a symbol.
        check: raises UnsupportedError if a nest has no kernel with a schedule, if possible without making it; None: it
            is bound and printed.
        check_choice: raises UnsupportedError if a nest has none by a schedule that was chosen for it, which has to be
            possible as it is; None: `check` does.
        threads: returns the number of threads that share the tiles of a loop kernel; None if the size of its tiles does
            not depend on it.
        scans: whether cumulative reductions have kernels.
        sorts: whether sorts and topk have kernels, if maybe not all of them.
        products: whether matrix products have generated kernels.
        staged: whether large reductions to few results are divided into stages, because the threads of one kernel do
            not wait for each other.
        tiles: whether matrix products and attention are divided into tiles for the blocks of a GPU.
        stages: what `bind` does one after the other, if it is divided.
        run_stages: function by which `bind` runs its stages.
    """

    name: str
    default_schedule: Schedule
    bind: Callable[[lir.Kernel, Schedule], lir.Kernel]
    print_kernel: Callable[[lir.Kernel, str], PrintedKernel]
    check: Callable[[lir.Kernel, Schedule], None] | None = None
    check_choice: Callable[[lir.Kernel, Schedule], None] | None = None
    threads: Callable[[], int] | None = None
    scans: bool = False
    sorts: bool = False
    products: bool = False
    staged: bool = False
    tiles: bool = False
    stages: tuple[BindStage, ...] = ()
    run_stages: Callable[[Sequence[BindStage], lir.Kernel, Schedule], lir.Kernel] = bind_in_stages


LANGUAGES: dict[str, Language] = {}


def register_language(language: Language) -> Language:
    """Register a language under its name; raise ValueError if another language has that name."""
    if LANGUAGES.get(language.name, language) != language:
        raise ValueError(f"two languages are called {language.name!r}")
    LANGUAGES[language.name] = language
    return language


def find_language(name: str) -> Language:
    """Return the language of a name; raise UnknownNameError, which suggests similar names, if there is none."""
    if name not in LANGUAGES:
        raise UnknownNameError("kernel language", name, LANGUAGES)
    return LANGUAGES[name]


def default_schedule(language: str) -> Schedule:
    """Return the default schedule of a language."""
    return find_language(language).default_schedule


def _print_c(kernel: lir.Kernel, symbol: str) -> PrintedKernel:
    return PrintedKernel(print_c(kernel, symbol))


def _print_cuda(kernel: lir.Kernel, symbol: str) -> PrintedKernel:
    source, launch = print_cuda(kernel, symbol)
    return PrintedKernel(source, launch.grid, launch.block, launch.shared_bytes)


def _check_cuda(kernel: lir.Kernel, schedule: Schedule) -> None:
    if not gpu_binding.binds_surely(kernel, schedule):
        _print_cuda(gpu_binding.bind_cuda(kernel, schedule), "k")  # GPUs lack some atomic updates, and sorts


def _schedule_of_c() -> Schedule:
    """Return the default schedule for this machine: a product is not divided for threads that programs do not get.

    Each part of a product packs its columns again.
    """
    schedule = Schedule(unit=vector_unit())
    try:
        return schedule.with_values({"product.tasks": 1}) if program_threads() == 1 else schedule
    except BackendError:  # a wrong setting is reported where programs are compiled
        return schedule


C = register_language(
    Language(
        "c", _schedule_of_c(), cpu_binding.bind_c, _print_c, cpu_binding.check_binding,
        cpu_binding.check_room, lambda: cpu().units,
        scans=True, sorts=True, products=True, stages=cpu_binding.BIND_STAGES, run_stages=cpu_binding.run_stages,
    )
)  # fmt: skip
# Rows are kept in registers, of which a GPU has more than shared memory. A thread runs one position of a loop.
CUDA = register_language(
    Language(
        "cuda", Schedule(block=0, cache=2, lanes=1), gpu_binding.bind_cuda, _print_cuda, _check_cuda,
        scans=True, sorts=True, products=True, tiles=True, staged=True,
    )
)  # fmt: skip
