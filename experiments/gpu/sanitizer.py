"""A sample of programs under compute-sanitizer: memcheck (addresses) and racecheck (shared memory)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from env.isolated import NEUTRAL_FOLDER, child_environment, python_command
from env.suites import find_program
from experiments.gpu.device import open_device
from experiments.gpu.job import Job
from experiments.gpu.programs import inputs_of

__all__ = ["main", "run", "summary_of"]

TOOLS = ("memcheck", "racecheck")
SAMPLE = (
    "softmax_128x256", "layer_norm_128x256", "column_sums_128x256", "row_maximum_128x256", "chain_f32_128x256",
    "transpose_add_128x256", "cumsum_rows_128x256", "cross_entropy_128x256", "column_softmax_128x256",
    "product_relu_64x256x128", "attention_4x4x64x32", "batched_product_512x16x16", "top_k_2_of_8192x16",
    "scatter_add_65536_to_1024", "conv_3x3_small_1x16x14x14",
)  # fmt: skip
FAULT = 9
"""Exit status of compute-sanitizer where it found something."""
MOST_LINES = 60


def run(job: Job) -> None:
    """Run the sample under each tool; skipped where there is no GPU or no tool."""
    tool = find_tool()
    if job.settings.stand_in or tool is None:
        job.skipped = "there is no GPU" if job.settings.stand_in else "compute-sanitizer is not installed"
        return
    names = job.settings.programs or SAMPLE
    for number, check in enumerate(TOOLS):
        if check in job.done():
            continue
        seconds = job.left() / (len(TOOLS) - number)
        command = [tool, "--tool", check, "--error-exitcode", str(FAULT), *_ours(names)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False,
                                  cwd=NEUTRAL_FOLDER, env=child_environment())  # fmt: skip
        except subprocess.TimeoutExpired as late:
            said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
            job.fail(check, f"not done within {seconds:.0f} s", programs=programs_of(said))
            continue
        if done.returncode not in (0, FAULT):
            job.fail(check, (done.stderr or done.stdout).strip()[-1000:] or f"exit status {done.returncode}")
            continue
        faults = done.stdout.splitlines()[:MOST_LINES] if done.returncode == FAULT else []
        job.add(check, {"programs": programs_of(done.stdout), "summary": summary_of(done.stdout), "faults": faults})


def find_tool() -> str | None:
    """Return the path of compute-sanitizer: on PATH, or in CUDA's folder."""
    folders = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    path = os.pathsep.join([os.environ.get("PATH", ""), *(str(Path(f) / "bin") for f in folders if f)])
    return shutil.which("compute-sanitizer", path=path)


def _ours(names: Sequence[str]) -> list[str]:
    return python_command("from experiments.gpu.sanitizer import main; main()", *names)


def programs_of(output: str) -> list[str]:
    """Return the programs that ran, from what `main` and the tool printed."""
    return [line.partition(" ")[2] for line in output.splitlines() if line.startswith("program ")]


def summary_of(output: str) -> str:
    """Return the tool's last line of summary, or nothing."""
    lines = [line.lstrip("= ").strip() for line in output.splitlines() if "SUMMARY" in line]
    return lines[-1] if lines else ""


def main() -> None:
    """Run the programs that are named on the command line once each, and print their names."""
    from compiler.api import compile as compile_hlo
    from compiler.text import parse

    with open_device(stand_in=False) as device:
        for name in sys.argv[1:]:
            program = find_program(name)
            module = parse(program.text())
            compile_hlo(module, device.backend)(*inputs_of(program, module, 0))
            device.wait()
            print(f"program {name}", flush=True)
