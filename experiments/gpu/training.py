"""A short training of an agent on measured time, beside random plans and the default plan."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from env.isolated import NEUTRAL_FOLDER, child_environment, python_command
from experiments.gpu.job import Job

__all__ = ["NEEDED", "WHEELS", "missing", "run"]

NEEDED = ("torch", "gymnasium", "stable_baselines3", "sb3_contrib", "farama_notifications", "cloudpickle")
"""The modules that the training imports besides those of the compiler."""
WHEELS = ("gymnasium", "farama-notifications", "stable-baselines3", "sb3-contrib")
"""The wheels that the training needs besides NumPy, PyTorch, pandas, Matplotlib and cloudpickle; all pure Python."""
PROGRAMS = ("layer_norm_backward", "softmax_cross_entropy_grad", "mlp_train_step", "swiglu")
SMALL = ("seed_broadcast_add_before",)
SHARE = 0.3
"""Share of the part's time that the agent trains; random plans take as long, and starting and comparing the rest."""
INSTALL_SECONDS = 60.0
LEAST_SECONDS = 30.0
FOLDER = "site"


def run(job: Job) -> None:
    """Train in a process of its own; skipped where packages are missing and no wheels of them are given."""
    site = job.settings.out / FOLDER
    if missing(()) and job.settings.wheels is not None and not site.exists():
        problem = install(job.settings.wheels, site)
        if problem is not None:
            job.skipped = f"the wheels cannot be installed: {problem}"
            return
    extra = (site,) if site.exists() else ()
    if absent := missing(extra):
        job.skipped = f"not installed here: {', '.join(absent)}; give their wheels with --wheels: {', '.join(WHEELS)}"
        return
    programs = job.settings.programs or (SMALL if job.settings.stand_in else PROGRAMS)
    task = {"programs": programs, "backend": "cpu" if job.settings.stand_in else "cuda", "seed": job.settings.seed,
            "seconds": 5.0 if job.settings.stand_in else job.left() * SHARE}  # fmt: skip
    file = job.settings.out / "training_result.json"
    command = python_command("from experiments.gpu.short_training import main; main()", str(file), json.dumps(task))

    command = with_path(command, extra)
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(LEAST_SECONDS, job.left()), check=False,
                          cwd=NEUTRAL_FOLDER, env=child_environment())  # fmt: skip
    if done.returncode != 0:
        job.fail("training", done.stderr.strip()[-2000:] or f"exit status {done.returncode}")
        return
    found = json.loads(file.read_text(encoding="utf-8"))
    job.facts = {**found["facts"], "programs": ", ".join(programs), "backend": task["backend"]}
    job.rows = found["rows"]


def missing(extra: tuple[Path, ...]) -> list[str]:
    """Return the needed modules that are neither installed nor in one of the folders."""

    def there(name: str) -> bool:
        return importlib.util.find_spec(name) is not None or any((folder / name).is_dir() for folder in extra)

    return [name for name in NEEDED if not there(name)]


def install(wheels: Path, site: Path) -> str | None:
    """Install the wheels of a folder into another, without an index; return why that failed, or None."""
    files = sorted(str(f) for f in wheels.absolute().glob("*.whl"))
    if not files:
        return f"{wheels} has none"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    try:
        done = subprocess.run([*pip, *files], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"pip took longer than {INSTALL_SECONDS:.0f} s"
    return None if done.returncode == 0 else done.stderr.strip()[-500:]


def with_path(command: list[str], extra: tuple[Path, ...]) -> list[str]:
    """Return a command of `python_command` whose import path begins with other folders."""
    at = 4  # the executable, -I, -c and the code; then the number of folders, and the folders
    count = int(command[at])
    return [*command[:at], str(count + len(extra)), *map(str, extra), *command[at + 1 :]]
