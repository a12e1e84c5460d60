"""Make the policy that ships, from measurements to the validated folder, by one command.

    python -m experiments.learning.retrain [--config F.yaml] [--data F.jsonl] [--kernels FOLDER] [-o FOLDER]

Collects deviations from the default plan, fits the parts, writes the folder, validates it against the rules, and writes
it again with the result. Each stage continues where an interrupted run stopped. With `--default`, the policy also
decides where users name none, on the backend that it was validated on; measure on a quiet machine before. The part for
fusion of the policy that ships is what searches ask, too.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.learned.fusion_changes import SHIPPED as SEARCHED
from compiler.learned.whole_folder import SHIPPED, read_whole
from compiler.policy import load_whole
from experiments.console import stdout
from experiments.learning.bandits import DATA, collect_fusions, collect_samples
from experiments.learning.settings import add_settings, given_settings
from experiments.learning.training import (
    next_version,
    read_fusion_rows,
    read_rows,
    train_fusion,
    train_policy,
    write_policy,
)
from experiments.learning.validate import FOLDER, validate_policy, write_validation
from experiments.module_command import plain_errors

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_settings(parser)
    add("--data", type=Path, default=DATA, help="file of measurements (default: %(default)s)")
    add("--kernels", type=Path, default=None, help="folder of a model of kernel times, to be the part for kernels")
    add("-o", "--output", type=Path, default=SHIPPED, help="folder to write (default: that of the policy that ships)")
    add("--version", default=None, help="version (default: one more than that of the folder)")
    add("--keep-sites", action="store_true", help="train fusion only; take the other parts over from the folder")
    add("--sites-only", action="store_true", help="train no part for fusion")
    add("--no-collect", action="store_true", help="train on the measurements there are")
    add("--no-validate", action="store_true", help="write the policy without validation; the rules stay the default")
    add("--default", action="store_true", help="let the policy decide when none is named, if validation allows it")
    add("--page", type=Path, default=FOLDER / "learned.md", help="page of the validation (default: %(default)s)")
    o = parser.parse_args(arguments)
    if o.sites_only and o.keep_sites:
        parser.error("--sites-only and --keep-sites leave nothing to train")
    settings = given_settings(o)
    version = o.version or next_version(o.output)
    extra = {} if o.kernels is None else {"kernels": o.kernels}
    former: Mapping[str, Any] = {}
    trained = None
    if o.keep_sites:
        whole = read_whole(o.output)
        former = whole.provenance
        extra = {**{phase: o.output / phase for phase in whole.parts if phase != "fusion"}, **extra}
    else:
        trained = train_policy(read_rows(o.data) if o.no_collect else collect_samples(settings, o.data), settings)
    if trained is None or not o.sites_only:
        rows = read_fusion_rows(o.data) if o.no_collect else collect_fusions(settings, o.data)
        fusion = train_fusion(rows, settings, former)
        trained = fusion if trained is None else trained.joined(fusion)
    write_policy(o.output, trained, version, extra)
    if o.output == SHIPPED and "fusion" in read_whole(SHIPPED).parts:
        shutil.copytree(SHIPPED / "fusion", SEARCHED, dirs_exist_ok=True)
    stdout.print(f"policy    {o.output} (version {version}: {', '.join(read_whole(o.output).parts)})", soft_wrap=True)
    if o.no_validate:
        return
    s = settings.validate
    found = validate_policy(load_whole(o.output), settings, o.page.with_suffix(".jsonl"))
    command = f"python -m experiments.learning.validate --policy learned --suite {s.suite} --per-family {s.per_family}"
    write_validation(found, f"learned@{version}", command, o.page)
    write_policy(o.output, trained, version, extra, found.to_json(), o.default)
    stdout.print("\n".join(found.lines()), markup=False, soft_wrap=True)


if __name__ == "__main__":
    with plain_errors():
        main()
