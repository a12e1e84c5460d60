"""One part of the command while it runs: its results so far, which are saved as they come, and the time it has."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError
from compiler.support.files import write_file
from compiler.support.json_reading import read_object
from compiler.support.safe_names import printable
from experiments.gpu.pool import ONE_THREAD, Reply, Request, Worker, run_tasks
from experiments.gpu.settings import Settings
from experiments.provenance import provenance

__all__ = ["GpuResultError", "Job", "result_file"]

SAVE_SECONDS = 5.0
"""How often results are saved while a part runs."""


class GpuResultError(HlogymError, RuntimeError):
    """A result of this command that cannot be read."""


def result_file(folder: Path, part: str) -> Path:
    """Return the file of a part's results."""
    return folder / f"{part}.json"


@dataclass
class Job:
    """The results of one part.

    Attributes:
        settings: of the run.
        part: name of the part.
        deadline: when it must end, by `time.monotonic`.
        facts: what holds for the whole part.
        rows: one entry per task, with a "name".
        errors: what failed: `{"name", "error"}`, and the name of the kernel where it is known.
        skipped: why the part was not run; None if it was.
        is_whole: whether no task was left for want of time.
    """

    settings: Settings
    part: str
    deadline: float
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None
    is_whole: bool = True
    _saved: float = 0.0

    @staticmethod
    def open(settings: Settings, part: str, deadline: float) -> tuple[Job, bool]:
        """Return a part with the results that an earlier run has saved, and whether that run completed it.

        Raises:
            GpuResultError: there is a file of that name that is no result of this command.
        """
        job, path = Job(settings, part, deadline), result_file(settings.out, part)
        if not path.exists():
            return job, False
        data = read_object(path, GpuResultError)
        try:
            if bool(data["stand_in"]) != settings.stand_in:
                return job, False  # times of the stand-in mean nothing
            job.facts, job.rows = dict(data["facts"]), list(data["rows"])
            job.errors = [e for e in data["errors"] if e["name"] != part]  # the part as a whole is tried again
            return job, bool(data["complete"])
        except (KeyError, TypeError, ValueError) as error:
            raise GpuResultError(f"{path} is no result of this command; remove it, or name another folder") from error

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def done(self) -> set[str]:
        """Return the names of the tasks that have results or errors."""
        return {entry["name"] for entry in (*self.rows, *self.errors)}

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Keep the result of a task, and save."""
        self.rows.append({"name": name, **values})
        self._save_sometimes()

    def fail(self, name: str, error: str, **where: Any) -> None:
        """Keep that a task failed, and save and print it."""
        self.errors.append({"name": name, "error": error, **where})
        self.say(f"{name} failed: {(error.splitlines() or ['?'])[0][:200]}")
        self._save_sometimes()

    def record(self, request: Request, reply: Reply) -> None:
        """Keep the result of a task, or its error with the place where it was raised."""
        if "error" in reply:
            self.fail(request["name"], reply["error"], place=reply.get("where", ""))
        else:
            self.add(request["name"], reply)

    def run(
        self,
        requests: Iterable[Request],
        timeout: float,
        count: int = 1,
        environment: dict[str, str] | None = None,
        seconds: float | None = None,
        optional: bool = False,
        stand_in: bool = False,
    ) -> Iterator[tuple[Request, Reply]]:
        """Yield requests with their replies from workers; see `pool.run_tasks`.

        Args:
            requests: the tasks.
            timeout: seconds that one may take.
            count: number of workers.
            environment: of the workers.
            seconds: limit of all tasks together; None for that of the part.
            stand_in: whether the workers have a stand-in even if others have a GPU.
            optional: whether the part may be complete although some of them were not done.
        """
        todo = list(requests)
        end = self.deadline if seconds is None else min(self.deadline, time.monotonic() + seconds)
        variables = {**(ONE_THREAD if count > 1 else {}), **(environment or {})}
        ended = 0

        def make() -> Worker:
            return Worker(stand_in or self.settings.stand_in, variables)

        for found in run_tasks(todo, min(count, len(todo)), make, timeout, lambda: max(0.0, end - time.monotonic())):
            ended += 1
            yield found
        if ended < len(todo) and not optional:
            self.is_whole = False

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(printable(f"[{self.part}, {self.left():.0f} s left] {text}"), flush=True)

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save(complete=False)

    def save(self, complete: bool) -> None:
        """Write the results; `complete` says that no task is left."""
        self._saved = time.monotonic()
        where = {**provenance(), "command": f"python -m experiments.gpu --parts {self.part}"}
        if self.settings.commit:
            where["commit"] = self.settings.commit
        facts = {
            "kind": "gpu",
            "part": self.part,
            "complete": complete,
            "stand_in": self.settings.stand_in,
            "skipped": self.skipped,
            "provenance": where,
            "facts": self.facts,
            "rows": self.rows,
            "errors": self.errors,
        }
        write_file(result_file(self.settings.out, self.part), json.dumps(facts, indent=1) + "\n")
