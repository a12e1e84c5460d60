"""Learn loops and fusion by the predicted time of a GPU, and compare on held-out families.

    python -m experiments.emulated_gpu rules [--config F.yaml] [--per-family N] [--out PAGE.md]
    python -m experiments.emulated_gpu learn [--config F.yaml] [--work FOLDER]
    python -m experiments.emulated_gpu validate [--config F.yaml] [--work FOLDER] [--out PAGE.md]
    python -m experiments.emulated_gpu evaluate [--config F.yaml] [--work FOLDER] [--out PAGE.md]

`rules` compares the rules of the backend with the former ones on training programs. `learn` searches good plans of
training and validation programs (the map of the headroom), trains a network per seed by imitation and by policy
gradient, and writes a whole policy to WORK/policy. It continues where it was interrupted.
`validate` compares on validation programs and writes a page; `evaluate` does so on the test programs, and records that
they were opened.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.emulated_gpu.page import evaluate
from experiments.emulated_gpu.rules import compare_rules
from experiments.emulated_gpu.settings import DEFAULT_FILE, EmulatedSettings
from experiments.emulated_gpu.stages import learn
from experiments.module_command import plain_errors
from experiments.settings_file import read_settings

PAGE = Path("results/learning/emulated_gpu.md")
VALIDATION_PAGE = Path("results/learning/emulated_gpu_validation.md")
RULES_PAGE = Path("results/headroom/rules_cuda.md")
PAGES = {"rules": RULES_PAGE, "validate": VALIDATION_PAGE, "evaluate": PAGE}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.emulated_gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("stage", choices=("rules", "learn", "validate", "evaluate"), help="what to do")
    parser.add_argument("--config", type=Path, default=DEFAULT_FILE, help="settings (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("runs/emulated_gpu"), help="folder (default: %(default)s)")
    shown = ", ".join(f"{stage}: {page}" for stage, page in PAGES.items())
    parser.add_argument("--out", type=Path, default=None, help=f"page (default: {shown})")
    parser.add_argument(
        "--per-family", type=int, default=10, help="of `rules`: training programs per family (default: %(default)s)"
    )
    o = parser.parse_args(arguments)
    settings = read_settings(o.config, EmulatedSettings)
    if o.stage == "rules":
        command = f"python -m experiments.emulated_gpu rules --per-family {o.per_family}"
        compare_rules(settings, o.per_family, o.out or RULES_PAGE, command)
    elif o.stage == "learn":
        learn(settings, o.work)
    else:
        held_out = o.stage == "evaluate"
        evaluate(settings, o.work, o.out or PAGES[o.stage], o.config, held_out)


if __name__ == "__main__":
    with plain_errors():
        main()
