"""Validate the policy in a folder again, and write there what came out: the card, and whether it may be the default.

    python -m experiments.learning.release [--folder DIR] [--without PHASE] [--kernels DIR] [--rules] [--default]

Its parts stay as they are; those that no longer gain anything can be left out, and a model of kernels can become a
part. With `--rules`, the part for fusion gets a readable form, distilled from its forest; nothing is measured for that.
After code generation has changed, this says whether what was learned before still holds.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compiler.errors import PolicyError
from compiler.learned.fusion_changes import FORMAT, read_changes, save_changes
from compiler.learned.policy_folder import describe_policy
from compiler.learned.whole_folder import SHIPPED, read_whole, write_whole
from compiler.policy import load_whole
from experiments.console import stdout
from experiments.learning.bandits import learnable_programs
from experiments.learning.fusion_rules import agreement, distilled_rules, offered
from experiments.learning.model_card import model_card
from experiments.learning.settings import LearningSettings, add_settings, given_settings
from experiments.learning.validate import FOLDER, validate_policy, write_validation
from experiments.module_command import plain_errors

__all__ = ["main", "with_rules", "without"]


def with_rules(source: Path, target: Path, settings: LearningSettings) -> str:
    """Write the part for fusion of a folder with rules that are distilled from it; return how well they agree with it.

    There are none if they agree with it too little.

    Raises:
        PolicyError: the part cannot be read, or the target cannot be written.
    """
    chooser, model = read_changes(source)
    s = settings.rules
    programs = learnable_programs(settings.fusion.suite, s.per_family, settings.seed)
    actions = offered(programs, settings.backend, model, s.instructions)
    rules, found = distilled_rules(chooser, actions, s), agreement(chooser, actions, s)
    if not found.right >= s.right:
        save_changes(target, replace(chooser, rules=replace(rules, rules=())))
        return (
            f"Rules for fusion: none. Those distilled from what the forest expects of {len(actions)} actions of "
            f"{len({a.program for a in actions})} training programs agree with it too little on other families: "
            f"{found.right:.0%} of what they would take is among what it would take ({s.right:.0%} needed)."
        )
    save_changes(target, replace(chooser, rules=rules))
    return (
        f"Rules for fusion: {len(rules.rules)}, distilled from what the forest expects of {len(actions)} actions of "
        f"{len({a.program for a in actions})} training programs, of which it would take {found.taken}. Of the actions "
        f"of families that they were not distilled from, they would take {found.found:.0%} of these; {found.right:.0%} "
        f"of what they would take is among these, and the forest expects {found.slower:.0%} of it to be slower."
    )


def without(facts: Mapping[str, Any], phases: Sequence[str]) -> dict[str, Any]:
    """Return the provenance of a policy without what it says of the parts for some phases."""
    kept = dict(facts)
    for name in ("samples", "cross_validation"):
        if name in kept:
            kept[name] = {phase: x for phase, x in kept[name].items() if phase not in phases}
    if "fusion" in phases:  # the command and the machine were those of this part, and former ones those of the others
        kept.pop("fusion_rules", None)
        kept.update(kept.pop("former", {}))
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, default=SHIPPED, help="of the policy (default: that of the policy that ships)")
    add_settings(parser)
    add("--version", default=None, help="version (default: as before)")
    add(
        "--without",
        action="append",
        default=[],
        help="leave out the part for a phase, whose folder stays (may be repeated)",
    )
    add("--kernels", type=Path, default=None, help="folder of a model of kernels, to be the part for kernels")
    add("--rules", action="store_true", help="distil the part for fusion into rules")
    add("--no-validate", action="store_true", help="keep the result of the last validation")
    add("--default", action="store_true", help="let the policy decide when none is named, if validation allows it")
    add("--page", type=Path, default=FOLDER / "learned.md", help="page of the validation (default: %(default)s)")
    o = parser.parse_args(arguments)
    settings, whole = given_settings(o), read_whole(o.folder)
    version, facts = o.version or whole.version, without(whole.provenance, o.without)
    kept = [phase for phase in whole.parts if phase not in o.without]
    if len(kept) + len(set(o.without)) != len(whole.parts) or not kept:
        raise PolicyError(f"{o.folder} has the parts {', '.join(whole.parts)}; --without must leave one of them")
    with tempfile.TemporaryDirectory() as made:
        parts = {phase: Path(shutil.copytree(o.folder / phase, Path(made) / phase)) for phase in kept}
        parts |= {} if o.kernels is None else {"kernels": o.kernels}
        if o.rules and "fusion" in parts and describe_policy(parts["fusion"])["format"] == FORMAT:
            facts["fusion_rules"] = with_rules(o.folder / "fusion", parts["fusion"], settings)
        if not o.no_validate:
            write_whole(
                o.folder, whole.name, version, parts, whole.backends, (), facts, model_card(version, parts, facts)
            )
            facts["validation"] = _validation(o.folder, settings, o.page)
        allowed = facts.get("validation", {}).get("passed") is True
        default_for = [settings.backend] if o.default and allowed else []
        card = model_card(version, parts, facts)
        write_whole(o.folder, whole.name, version, parts, whole.backends, default_for, facts, card)
    lines = facts.get("validation", {}).get("lines", [])
    stdout.print("\n".join([*lines, facts.get("fusion_rules", "")]).strip(), markup=False, soft_wrap=True)


def _validation(folder: Path, settings: LearningSettings, page: Path) -> dict[str, Any]:
    """Validate the policy of a folder and write the page; return what its description records."""
    s, policy = settings.validate, load_whole(folder)
    found = validate_policy(policy, settings, page.with_suffix(".jsonl"))
    command = f"python -m experiments.learning.validate --policy {policy.name} --suite {s.suite}"
    write_validation(found, policy.label, f"{command} --per-family {s.per_family}", page)
    return found.to_json()


if __name__ == "__main__":
    with plain_errors():
        main()
