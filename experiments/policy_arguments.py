"""Policies named on the command line: by name, as a folder, as a training run, or by URI of MLflow's registry."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import PolicyError, UnknownNameError
from compiler.learned.policy_folder import is_policy_folder
from compiler.policy import policy_names
from compiler.support.safe_names import shell_command

if TYPE_CHECKING:
    from experiments.run_folder import RunFolder

__all__ = ["find_policy"]

SCHEME = "models:/"
READABLE = ":rules"
"""Ending that asks for the readable form of a policy."""
_ID_LENGTH = 32  # of MLflow's run ids


def find_policy(name: str, runs: Path = Path("runs")) -> str:
    """Return a policy of the command line as `compile` takes it: a name, or a folder.

    A training run means its best policy on the validation programs if it has one, otherwise its last.

    Args:
        name: the name of a policy, with options in braces; the folder of a policy; the name or the folder of a training
            run, or its id in MLflow; `models:/NAME/VERSION` or `models:/NAME@ALIAS` in MLflow's registry.
        runs: the folder of training runs and of the local MLflow store.

    Raises:
        PolicyError: the run has no policy yet.
        TrackingError: MLflow has no such model or run, or does not answer.
    """
    if name.startswith(SCHEME):
        from experiments.registry import local_policy

        return local_policy(name, runs)
    bare = name.removesuffix(READABLE)
    if bare.partition("{")[0] in policy_names() or is_policy_folder(Path(bare)):
        return name
    from experiments.run_folder import find_run  # with the settings of agents, which takes a second

    try:
        found = _policy_of(find_run(runs, bare))
    except UnknownNameError:
        if not _is_run_id(bare):
            return name
        found = _downloaded(bare, runs)
    return found + name[len(bare) :]


def _policy_of(run: RunFolder) -> str:
    if not is_policy_folder(run.recommended):
        raise PolicyError(
            f"the run {run.name} has no policy yet; finish it with "
            f"{shell_command('hlogym', 'train', '--resume', '--name', run.name, *run.runs_option)}, or export its last "
            f"checkpoint with {shell_command('hlogym', 'export', run.name, *run.runs_option, '-o', 'DIR')}"
        )
    return str(run.recommended)


def _is_run_id(name: str) -> bool:
    return len(name) == _ID_LENGTH and all(c in "0123456789abcdef" for c in name)


def _downloaded(run_id: str, runs: Path) -> str:
    from experiments.tracking import download_policy

    folder = tempfile.mkdtemp(prefix="hlogym-policy-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(download_policy(runs, run_id, Path(folder)))
