"""What every command of the command line says: interrupted, given wrong input, and on a noisy machine.

python -m tests.sweeps.commands [--only COMMAND ...] [--scenarios SCENARIO ...] [--out results/reach/commands.md]

Each command runs in a process of its own, in a folder with two small programs, a policy and a finished training run. An
interrupted command gets SIGINT at the start, and again in the middle of its work. The noisy machine has a busy loop on
each core. The report has what was typed, the exit status, and what was printed; faults are tracebacks, wrong exit
statuses, and errors without a message. What was found is kept beside the report as JSON: a later run replaces the
commands and the scenarios that it repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from agents.export import export_policy
from agents.network import TorchPointerNetwork
from compiler.learned.fusion_policy import network_shape
from env.isolated import ROOT
from experiments.interruption import INTERRUPTED
from experiments.provenance import provenance
from tests.env.small_programs import write_suite

SCENARIOS = ("interrupted", "wrong", "noisy")
STARTING = 0.8
"""Seconds after which a command is interrupted while Python imports it."""
TOO_EARLY = ("init_import_site", "experiments/start.py", "experiments/quiet_imports.py")
"""What a traceback contains if Python itself was still starting."""
ENDING = 600.0
"""Seconds within which a command must end."""
LINES = 24
"""How many lines of an output the report shows."""
SMALL = ("--set", "n_steps=16", "--set", "batch_size=16", "--set", "hidden=8", "--set", "n_epochs=1",
         "--set", "eval_suite=suite")  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command of the command line, and how it is disturbed.

    Attributes:
        right: arguments with which it works.
        wrong: arguments that it must refuse.
        middle: interrupt it so many seconds after its start; 0: it is too short to be interrupted in its work.
        long: arguments of the interrupted run; empty: those of `right`.
        appears: a pattern of files; it is interrupted when one exists, and after `middle` seconds at the latest.
        noisy: whether it reports times, so that it has to mark those of a noisy machine.
        slow: whether the noisy run takes minutes; it is left out unless it is asked for.
        status: exit status of the run with `right`.
    """

    right: tuple[str, ...]
    wrong: tuple[tuple[str, ...], ...]
    middle: float = 0.0
    long: tuple[str, ...] = ()
    appears: str = ""
    noisy: bool = False
    slow: bool = False
    status: int = 0


CHAIN = "suite/chain.hlo"
NEED_A_RUN = {"train", "export", "report", "list"}
COMMANDS: dict[str, Command] = {
    "run": Command(
        ("run", CHAIN, "--check", "--profile"),
        (("run",), ("run", "nowhere.hlo"), ("run", "suite"), ("run", "broken.hlo"),
         ("run", CHAIN, "--policy", "prioritty"),
         ("run", CHAIN, "--inputs", "broken.hlo"), ("run", CHAIN, "--backend", "tpu"), ("run", CHAIN, "--sead", "1")),
        2.5,
        noisy=True,
    ),
    "opt": Command(
        ("opt", CHAIN, "--stats"),
        (("opt", CHAIN, "--passes", "dce,cee"), ("opt", CHAIN, "--order", "policy"), ("opt",)),
    ),
    "compile": Command(
        ("compile", CHAIN, "-o", "aot"), (("compile", CHAIN), ("compile", CHAIN, "-o", "broken.hlo/x")), 2.5,
    ),
    "tune": Command(
        ("tune", CHAIN, "-o", "plan.json", "--budget", "3"),
        (("tune", CHAIN), ("tune", CHAIN, "-o", "suite"), ("tune", CHAIN, "-o", "p.json", "--search", "anealing"),
         ("tune", CHAIN, "-o", "p.json", "--budget", "0"), ("tune", CHAIN, "-o", CHAIN)),
        30.0,
        ("tune", "softmax", "-o", "plan.json", "--budget", "500"),
        noisy=True,
    ),
    "bench": Command(
        ("bench", CHAIN, "--rounds", "4"),
        (("bench",), ("bench", "sweet"), ("bench", "suite", "--against", "tvm"),
         ("bench", "suite", "--only", "nothing*")),
        40.0,
        ("bench", "quickstart", "--against", "xla", "-o", "rows.json"),
        "rows.json",
        noisy=True,
    ),
    "view": Command(
        ("view", CHAIN, "-o", "view.html", "--times"), (("view", "nowhere", "-o", "view.html"),), 2.5, noisy=True
    ),
    "reduce": Command(
        ("reduce", CHAIN, "-o", "small.hlo", "--passes", "dce"),
        (("reduce", CHAIN, "-o", "small.hlo"), ("reduce", CHAIN, "-o", CHAIN),
         ("reduce", CHAIN, "-o", "s.hlo", "--passes", "x")),
        3.0,
        ("reduce", CHAIN, "-o", "small.hlo"),
        status=1,  # there is nothing to reduce
    ),
    "doctor": Command(
        ("doctor",), (("doctor", "--cost-model", "nowhere", "--calibrate"),), 8.0, ("doctor", "--calibrate")
    ),
    "demo": Command(
        ("demo", "--minutes", "0.1", "--budget", "1", "--folder", "demo"),
        (("demo", "--minutes", "0"), ("demo", "--folder", "broken.hlo")),
        20.0,
        noisy=True,
        slow=True,
    ),
    "train": Command(
        ("train", "--suite", "suite", "--timesteps", "32", "--name", "short", *SMALL),
        (("train", "--suite", "nowhere"), ("train", "--env", "hlogym/Fusin-v0"), ("train", "--agent", "dqn"),
         ("train", "--set", "gama=1"), ("train", "--name", "finished", "--suite", "suite"), ("train", "--name", "a/b"),
         ("train", "--timesteps", "0"), ("train", "--suite", "broken.hlo")),
        60.0,
        ("train", "--suite", "suite", "--env", "hlogym/Fusion-v0", "--timesteps", "100000", "--name", "long",
         "--checkpoint-every", "16", *SMALL),
        "runs/long/checkpoints/step-*",
        noisy=True,
    ),
    "tune-agent": Command(
        ("tune-agent", "--suite", "suite", "--trials", "1", "--timesteps", "32", "--set", "eval_suite=suite"),
        (("tune-agent", "--agent", "ppo"), ("tune-agent", "-o", "suite")),
        60.0,
        ("tune-agent", "--suite", "suite", "--timesteps", "100000", "--set", "eval_suite=suite"),
        "runs/optuna.db",
    ),
    "evaluate": Command(
        ("evaluate", "policy", "--suite", CHAIN, "--baselines", "none", "--budget", "1", "--rounds", "4"),
        (("evaluate",), ("evaluate", "unknown"), ("evaluate", "policy", "--suite", "sweet"), ("evaluate", "suite"),
         ("evaluate", "policy", "--baselines", "lucky"), ("evaluate", "models:/nothing/1")),
        60.0,
        ("evaluate", "policy", "--suite", "quickstart", "--baselines", "none", "--budget", "2", "--rounds", "4"),
        noisy=True,
    ),
    "export": Command(
        ("export", "finished", "-o", "exported"),
        (("export", "finished"), ("export", "fnished", "-o", "x"), ("export", "finished", "-o", "suite"),
         ("export", "models:/nothing/1", "-o", "x")),
    ),
    "policies": Command(("policies",), (("policies", "-o", "suite"),)),
    "report": Command(("report", "-o", "report.html"), (("report", "--results", "nowhere"), ("report", "-o", "suite"))),
    "suites": Command(
        ("suites",),
        (("suites", "bild"), ("suites", "build", "--families", "nothing", "-o", "built"),
         ("suites", "check", "--shard", "2/2")),
        20.0,
        ("suites", "build", "-o", "built"),
    ),
    "list": Command(("list", "runs"), (("list", "everything"), ("list", "programs", "--suite", "sweet"))),
}  # fmt: skip


@dataclass
class Said:
    """What a command printed, and how it ended."""

    typed: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float
    faults: list[str] = field(default_factory=list)
    commit: str = ""
    date: str = ""


class Place:
    """A folder in which the commands run.

    Args:
        folder: an empty folder.
        trained: whether to train a run there, which commands that take runs need.
    """

    def __init__(self, folder: Path, trained: bool = True) -> None:
        self.folder = folder
        write_suite(folder / "suite")
        (folder / "broken.hlo").write_text("ENTRY e {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] negatee(x)\n}\n")
        torch.manual_seed(0)
        export_policy(TorchPointerNetwork(network_shape(hidden=8, rounds=1)), folder / "policy", {"timesteps": 0})
        if not trained:
            return
        done = self.type("train", "--suite", "suite", "--env", "hlogym/Fusion-v0", "--timesteps", "16", "--name",
                         "finished", *SMALL)  # fmt: skip
        if done.status:
            raise RuntimeError(done.err)

    def type(self, *arguments: str, interrupt: float = 0.0, appears: str = "") -> Said:
        """Run a command, and interrupt it if it takes longer than `interrupt` seconds or the file appears."""
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "HOME": str(self.folder), "COLUMNS": "110", "BROWSER": "true",
        }  # fmt: skip
        environment.pop("MLFLOW_TRACKING_URI", None)
        start = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "experiments.cli", *arguments], cwd=self.folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
        ) as process:  # fmt: skip
            while interrupt and process.poll() is None and time.monotonic() - start < interrupt:
                if appears and next(self.folder.glob(appears), None) is not None:
                    break
                time.sleep(0.02)
            if interrupt:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
            try:
                out, err = process.communicate(timeout=ENDING)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
        said = Said(arguments, process.returncode, out, err, time.monotonic() - start)
        early = interrupt and any(sign in err for sign in TOO_EARLY)
        if ("Traceback" in out + err and not early) or "bug in hlogym" in err:
            said.faults.append("a traceback, or a bug")
        return said


def interrupted(place: Place, command: Command) -> Iterator[Said]:
    """Interrupt a command while it is imported and in the middle of its work."""
    delays = [(STARTING, ""), *([(command.middle, command.appears)] if command.middle else [])]
    for delay, appears in delays:
        said = place.type(*(command.long or command.right), interrupt=delay, appears=appears)
        if any(sign in said.err for sign in TOO_EARLY):
            said.err = "(Python itself was still starting)"
        elif said.status not in (INTERRUPTED, 0):
            said.faults.append(f"status {said.status} instead of {INTERRUPTED}")
        if said.status == INTERRUPTED and "stopped" not in said.err:
            said.faults.append("it does not say that it was stopped")
        yield said


def wrong(place: Place, command: Command) -> Iterator[Said]:
    """Give a command what it must refuse."""
    for arguments in command.wrong:
        said = place.type(*arguments)
        if said.status not in (1, 2):
            said.faults.append(f"status {said.status} instead of 1 or 2")
        if not said.err.strip():
            said.faults.append("no message")
        yield said


def noisy(place: Place, command: Command) -> Iterator[Said]:
    """Run a command while every core is busy."""
    with busy():
        said = place.type(*command.right)
    if said.status != command.status:
        said.faults.append(f"status {said.status} instead of {command.status}")
    if command.noisy and "noisy" not in said.out + said.err:
        said.faults.append("times of a noisy machine are not marked")
    yield said


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy with a loop."""
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop, start_new_session=True) for _ in os.sched_getaffinity(0)]
    try:
        # They have no part in the processes of the command, which is a child of this one.
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()


def merged(file: Path, found: Sequence[tuple[str, str, Said]]) -> list[tuple[str, str, Said]]:
    """Return the runs of a file, with those of the same command and scenario replaced, and write them to the file."""
    known: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    repeated = {(name, scenario) for name, scenario, _ in found}
    rows = [r for r in known if (r["command"], r["scenario"]) not in repeated]
    rows += [{"command": name, "scenario": scenario, **asdict(said)} for name, scenario, said in found]
    order = {key: n for n, key in enumerate((c, s) for c in COMMANDS for s in SCENARIOS)}
    rows.sort(key=lambda r: order[r["command"], r["scenario"]])
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return [
        (r["command"], r["scenario"], Said(tuple(r["typed"]), *(r[f.name] for f in fields(Said)[1:]))) for r in rows
    ]


def report(found: Sequence[tuple[str, str, Said]], facts: Sequence[str]) -> str:
    """Return the report in Markdown."""
    lines = ["# What every command says", "", *facts, ""]
    faults = [(name, said) for name, _, said in found if said.faults]
    lines += [f"{len(found)} runs of {len({n for n, _, _ in found})} commands, {len(faults)} with a fault.", ""]
    lines += [f"- `hlogym {' '.join(said.typed)}`: {'; '.join(said.faults)}" for _, said in faults]
    last = ("", "")
    for name, scenario, said in found:
        if name != last[0]:
            lines += ["", f"## hlogym {name}"]
        if (name, scenario) != last:
            lines += ["", f"### {_TITLES[scenario]}"]
        last = name, scenario
        text = [*said.out.rstrip().splitlines(), *said.err.rstrip().splitlines()]
        cut = [*text[: LINES // 2], f"... ({len(text) - LINES} lines)", *text[-(LINES // 2) :]]
        shown = text if len(text) <= LINES + 1 else cut
        typed = " ".join(a if a and " " not in a else repr(a) for a in said.typed)
        ended = f"(status {said.status} after {said.seconds:.1f} s)"
        lines += ["", "```text", f"$ hlogym {typed}", *(line.rstrip() for line in shown), ended, "```"]
    return "\n".join(lines).rstrip() + "\n"


_TITLES = {"interrupted": "Interrupted", "wrong": "Wrong input", "noisy": "On a noisy machine"}


def main() -> int:
    """Run from the command line; return exit status 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), choices=COMMANDS, help="the commands to run")
    parser.add_argument(
        "--scenarios", nargs="*", default=list(SCENARIOS), choices=SCENARIOS, help="how to disturb them"
    )
    parser.add_argument("--slow", action="store_true", help="also run commands of minutes on the noisy machine")
    parser.add_argument("--out", type=Path, default=Path("results/reach/commands.md"), help="the report")
    options = parser.parse_args()
    run = {"interrupted": interrupted, "wrong": wrong, "noisy": noisy}
    found: list[tuple[str, str, Said]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, prefix="hlogym-commands-") as folder:
        place = Place(Path(folder), not NEED_A_RUN.isdisjoint(options.only))
        for name in options.only:
            for scenario in options.scenarios:
                if scenario == "noisy" and COMMANDS[name].slow and not options.slow:
                    continue
                for said in run[scenario](place, COMMANDS[name]):
                    said.out, said.err = (t.replace(str(place.folder), "/home/me/work") for t in (said.out, said.err))
                    found.append((name, scenario, said))
                    print(f"{name} {scenario}: status {said.status}, {said.faults or 'as it should'}", flush=True)
    facts = provenance()
    for _, _, said in found:
        said.commit, said.date = facts["commit"], facts["date"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found = merged(options.out.with_suffix(".json"), found)
    shown = {
        "command": "python -m tests.sweeps.commands",
        "commits": ", ".join(dict.fromkeys(said.commit for _, _, said in found)),
        "dates": f"{min(said.date for _, _, said in found)} to {max(said.date for _, _, said in found)}",
        "machine": facts["machine"],
    }
    lines = [f"- {k}: {v}" for k, v in shown.items()]
    options.out.write_text(report(found, lines), encoding="utf-8")
    print(json.dumps({"runs": len(found), "faults": sum(bool(s.faults) for _, _, s in found)}))
    return 1 if any(said.faults for _, _, said in found) else 0


if __name__ == "__main__":
    sys.exit(main())
