"""The command line of `python -m experiments.gpu`."""

from __future__ import annotations

import argparse
import io
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from compiler.errors import BackendError, HlogymError, UnknownNameError
from compiler.support.files import check_folder, write_file
from env.suites import load_suite
from experiments.gpu.job import GpuResultError, Job, result_file
from experiments.gpu.page import page
from experiments.gpu.parts import PARTS, Part
from experiments.gpu.pool import Worker
from experiments.gpu.settings import SUITES, Settings

__all__ = ["main", "run_parts"]

PAGE, ARCHIVE = "gpu.md", "gpu.zip"
START_SECONDS = 120.0
LEAST_SECONDS = 3.0
"""With less time than this no part begins."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu",
        description="Check and measure everything on one GPU, in parts that may be run again until all are complete.",
    )
    parser.add_argument("action", nargs="?", choices=("run", "page"), default="run", help="run the parts, or only "
                        "write the tables of results that are there (default: %(default)s)")  # fmt: skip
    parser.add_argument("--out", "--from", dest="out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--parts", help=f"comma-separated names of {', '.join(p.name for p in PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=520.0, help="limit of the run (default: %(default)s)")
    parser.add_argument("--stand-in", action="store_true", help="small sizes without a GPU, kernels in the emulator")
    parser.add_argument("--programs", help="comma-separated names of programs (default: all)")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that the training needs")
    parser.add_argument("--workers", type=int, default=0, help="processes that check programs (default: one per core)")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and schedules (default: %(default)s)")
    parser.add_argument("--commit", default="", help="commit of the code, for results of a copy without its history")
    o = parser.parse_args(arguments)
    if o.action == "page":
        write_page(o.out)
        print(f"tables: {o.out / PAGE}", flush=True)
        return
    if not o.seconds > 0:
        parser.error(f"--seconds must be positive, not {o.seconds:g}")
    programs = tuple(filter(None, (o.programs or "").split(",")))
    check_programs(programs)
    settings = Settings(o.out.absolute(), o.seconds, o.stand_in, programs, o.wheels, o.workers, o.seed, o.commit)
    parts = chosen_parts(o.parts)
    check_folder(settings.out)
    if not settings.stand_in and any(p.needs_gpu for p in parts):
        check_device(settings)
    # A run that is killed leaves the page and the archive of the parts that it has done.
    run_parts(settings, parts, lambda: write_page(settings.out))
    write_page(settings.out)
    print(f"tables: {settings.out / PAGE}; all files: {settings.out / ARCHIVE}", flush=True)


def check_programs(names: Sequence[str]) -> None:
    """Raise UnknownNameError, which suggests similar names, if no suite has a program of one of these names."""
    known = {p.name: p for suite in SUITES for p in load_suite(suite).programs} if names else {}
    for name in names:
        if name not in known:
            raise UnknownNameError("program", name, known)


def chosen_parts(names: str | None) -> list[Part]:
    """Return the parts with these comma-separated names, or all, in their own order.

    Raises:
        UnknownNameError: there is no such part.
    """
    known = {p.name: p for p in PARTS}
    wanted = list(known) if names is None else [n for n in names.split(",") if n]
    for name in wanted:
        if name not in known:
            raise UnknownNameError("part", name, known)
    return [p for p in PARTS if p.name in wanted]


def run_parts(settings: Settings, parts: Sequence[Part], after_each: Callable[[], None] = lambda: None) -> None:
    """Run the parts that are not complete, one after the other; what fails in one does not stop the others.

    Args:
        settings: of the run.
        parts: in their order.
        after_each: is called after each part that ran.

    Raises:
        OSError: the folder of the results cannot be written.
        GpuResultError: it has a file of that name that is no result of this command.
    """
    check_folder(settings.out)
    end = time.monotonic() + settings.seconds
    for part in parts:
        left = end - time.monotonic()
        job, complete = Job.open(settings, part.name, time.monotonic() + min(part.seconds, left))
        if complete:
            job.say("complete; remove its file to run it again")
        elif left < LEAST_SECONDS:
            job.say("not begun: no time is left; run the command again")
        else:
            _run_part(part, job)
            after_each()


def check_device(settings: Settings) -> None:
    """Raise BackendError if workers cannot use a GPU."""
    worker = Worker(settings.stand_in)
    reply = worker.ask({"op": "ping"}, START_SECONDS)
    worker.close()
    if "error" in reply:
        raise BackendError(f"no GPU can be used here: {reply['error']}; with --stand-in, kernels run in the emulator")


def _run_part(part: Part, job: Job) -> None:
    job.say(part.title)
    try:
        part.run(job)
    except GpuResultError:
        raise
    except Exception as error:  # the other parts still run
        if not isinstance(error, HlogymError):
            traceback.print_exc()
        job.is_whole = False
        job.errors.append({"name": part.name, "error": f"{type(error).__name__}: {error}"})
        job.say(f"failed: {error}")
    job.save(complete=job.is_whole)
    ended = f"skipped: {job.skipped}" if job.skipped else f"{len(job.rows)} rows, {len(job.errors)} errors"
    job.say(ended if job.is_whole else f"{ended}; not complete, run the command again")


def write_page(folder: Path) -> None:
    """Write the tables of the results in a folder to its page, and both to one archive, which is easy to copy."""
    tables = page(folder)
    write_file(folder / PAGE, tables)
    files = {PAGE: tables.encode()}
    for part in PARTS:
        path = result_file(folder, part.name)
        if path.exists():
            files[path.name] = path.read_bytes()
    packed = io.BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    write_file(folder / ARCHIVE, packed.getvalue())
