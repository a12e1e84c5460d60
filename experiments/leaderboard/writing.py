"""Make the folder of an entry from plans, from an exported policy, or from a policy of the compiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from compiler.learned.policy_folder import copy_policy_folder, describe_policy
from compiler.learned.whole_folder import FORMAT as WHOLE_FORMAT
from compiler.learned.whole_folder import SHIPPED, copy_whole
from compiler.plan import PHASES, CompilationPlan
from compiler.policy import LEARNED, load_whole, policy_names
from compiler.support.files import made_folder
from compiler.support.safe_names import file_name
from experiments.leaderboard.entry import DESCRIPTION, FORMAT, FORMAT_VERSION, EntryError, read_entry

__all__ = ["ALL_PHASES", "write_entry"]

ALL_PHASES = PHASES[:-1]
PLANS, POLICY = "plans", "policy"


def write_entry(
    folder: Path,
    name: str,
    author: str,
    suite: str,
    source: Mapping[str, CompilationPlan] | str | Path,
    about: str = "",
    backend: str = "cpu",
    decides: Sequence[str] = ALL_PHASES,
) -> None:
    """Write an entry into a new folder.

    Args:
        folder: must not exist, or be empty.
        name: of the entry.
        author: who made it.
        suite: name of the suite.
        source: plans by program; the name of a policy of the compiler; or the folder of an exported policy. The policy
            that ships, "learned", is copied, so that the entry stays the same in later versions.
        about: one or two sentences.
        backend: the backend that it is for.
        decides: the phases that plans decide; those of a policy are known.

    Raises:
        EntryError: the folder is in use, or the entry would be refused.
        PolicyError: there is no such policy, or it is damaged.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise EntryError(f"{folder} exists; name a new folder for the entry")
    data: dict[str, object] = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "name": name, "author": author, "about": about,
        "decides": list(decides), "suite": suite, "backend": backend,
    }  # fmt: skip
    with (
        made_folder(folder.parent),
        tempfile.TemporaryDirectory(prefix=".hlogym-entry-", dir=folder.parent) as draft,
    ):
        made = Path(draft, "entry")
        made.mkdir()
        if source == LEARNED:
            source = SHIPPED
        if isinstance(source, str):
            data["builtin"] = source
            if source not in policy_names():
                raise EntryError(
                    f"there is no policy {source!r}; policies are {', '.join(policy_names())}, or a folder"
                )
        elif isinstance(source, Path):
            data[POLICY] = POLICY
            data["decides"] = list(load_whole(source).parts)
            copy = copy_whole if describe_policy(source).get("format") == WHOLE_FORMAT else copy_policy_folder
            copy(source, made / POLICY)
        else:
            data[PLANS] = {program: f"{PLANS}/{file_name(program, '.json')}" for program in source}
            (made / PLANS).mkdir()
            for program, plan in source.items():
                plan.save(made / PLANS / file_name(program, ".json"))
        (made / DESCRIPTION).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        try:
            read_entry(made)
        except EntryError as error:
            raise EntryError(str(error).replace(str(made), str(folder))) from error
        if folder.exists():
            folder.rmdir()  # it is empty
        made.rename(folder)
