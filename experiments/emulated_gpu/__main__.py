"""Learn loops and fusion by the predicted time of a GPU, and compare on held-out families.

    python -m experiments.emulated_gpu learn [--config F.yaml] [--work FOLDER]
    python -m experiments.emulated_gpu evaluate [--config F.yaml] [--work FOLDER] [--out PAGE.md]

`learn` searches good plans of training and validation programs (the map of the headroom), trains a network per seed by
imitation and by policy gradient, and writes a whole policy to WORK/policy. It continues where it was interrupted.
`evaluate` opens the test programs, which is recorded, and writes the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.emulated_gpu.page import evaluate
from experiments.emulated_gpu.settings import DEFAULT_FILE, EmulatedSettings
from experiments.emulated_gpu.stages import learn
from experiments.module_command import plain_errors
from experiments.settings_file import read_settings

PAGE = Path("results/learning/emulated_gpu.md")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.emulated_gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("stage", choices=("learn", "evaluate"), help="what to do")
    parser.add_argument("--config", type=Path, default=DEFAULT_FILE, help="settings (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("runs/emulated_gpu"), help="folder (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=PAGE, help="page of `evaluate` (default: %(default)s)")
    o = parser.parse_args(arguments)
    settings = read_settings(o.config, EmulatedSettings)
    if o.stage == "learn":
        learn(settings, o.work)
    else:
        evaluate(settings, o.work, o.out, o.config)


if __name__ == "__main__":
    with plain_errors():
        main()
