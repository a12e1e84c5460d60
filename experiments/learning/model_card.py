"""The model card of a policy: how it was trained, what it gains, its limits, and its readable form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.learned.code_kernels import FORMAT as CODE_FORMAT
from compiler.learned.fusion_changes import FORMAT as CHANGES_FORMAT
from compiler.learned.fusion_changes import read_changes
from compiler.learned.policy_folder import describe_policy
from compiler.learned.rule_list import RuleList
from compiler.learned.site_policy import FORMAT as SITE_FORMAT
from compiler.learned.site_policy import load_bandit

__all__ = ["FORMER", "model_card"]

FORMER = ("commit", "date", "machine")
"""What provenance records of the training of parts that were taken over from the policy before."""


def model_card(version: str, parts: Mapping[str, Path], facts: Mapping[str, Any]) -> str:
    """Return the model card as Markdown.

    Args:
        version: of the policy.
        parts: phase -> folder of the part.
        facts: the provenance of the policy.

    Raises:
        PolicyError: a part cannot be read.
    """
    settings = facts["settings"]
    collect, known = settings["collect"], [f"- {name}: {facts[name]}" for name in FORMER if name in facts]
    samples = ", ".join(f"{n} of {phase}" for phase, n in facts["samples"].items())
    lines = [
        f"# Policy `learned`, version {version}",
        "",
        f"Decides {', '.join(sorted(parts))} for the backend {settings['backend']}. The hand-written rules decide the "
        "rest, and also where the lower bound of the predicted gain does not exceed the margin.",
        "",
        "## Training",
        "",
        f"- command: `{facts['command']}`",
        *known,
        f"- data: deviations from the default plan, measured on {len(facts['programs'])} programs of "
        f"{collect['suite']}: {samples}",
        "- model: a forest per part that predicts the log of the speedup from the site and the choice",
        *_kernel_lines(parts),
        "",
        "## Results",
        "",
        *_cross_validation(facts),
        "",
        "Validation against the rules, on programs of other draws and families:",
        "",
        *facts.get("validation", {}).get("lines", ["not validated yet, so the rules stay the default."]),
        "",
        "## Limits",
        "",
        f"- It was trained on one machine ({facts.get('machine', 'unknown')}) and small programs of at most "
        f"{collect['instructions']} instructions. Sites whose features lie beyond those of the samples are left to the "
        "rules.",
        "- The gain that is predicted for expansions and loops is that of the whole program in which a site was "
        "measured; how large a share of it the site is varies. For fusion it is that of the kernels that change.",
        *_former_lines(facts.get("former", {})),
        *_unknown_lines(parts),
        "- Test programs were not used.",
        "",
        "## Rules",
        "",
        'The readable form (`policy="learned:rules"`):',
        "",
        *([facts["fusion_rules"], ""] if "fusion_rules" in facts else []),
    ]
    for phase in sorted(parts):
        rules = _rules(parts[phase])
        if rules is not None:
            lines += [f"### {phase}", "", *(f"- {line}" for line in str(rules).splitlines()), ""]
    return "\n".join(lines)


def _cross_validation(facts: Mapping[str, Any]) -> list[str]:
    lines = [
        "Cross-validation over families, on the changed decisions that were measured:",
        "",
        "| part | sites | changed | speedup over all | of the changed | slower of the changed | best possible |",
        "|---|---|---|---|---|---|---|",
    ]
    for phase, forms in facts["cross_validation"].items():
        for form, o in forms.items():
            lines.append(
                f"| {phase}, {form} | {o['sites']:.0f} | {o['changed']:.1%} | {o['mean']:.3f}x "
                f"| {o['changed_mean']:.3f}x | {o['slower']:.1%} | {o['possible']:.3f}x |"
            )
        if not forms:
            lines.append(f"| {phase} | | | no part: no margin was safe | | | |")
    return lines


def _kernel_lines(parts: Mapping[str, Path]) -> list[str]:
    """Return how the part for kernels was made, if it chooses by machine code."""
    if "kernels" not in parts:
        return []
    part = describe_policy(parts["kernels"])
    if part["format"] != CODE_FORMAT:
        return []
    facts, processors = part["provenance"], ", ".join(map(str, part["processors"]))
    return [
        f"- kernels: boosted trees on the machine code of {len(part['candidates'])} candidates, for {processors}; "
        f"`{facts.get('command')}`: {facts.get('kernels')} kernels of {len(facts.get('families', []))} families"
    ]


def _former_lines(former: Mapping[str, Any]) -> list[str]:
    """Return where the parts come from that were taken over from another policy."""
    known = ", ".join(str(former[name]) for name in FORMER if name in former)
    return [f"- Other parts than fusion are those of the policy before, trained at: {known}."] if known else []


def _rules(part: Path) -> RuleList | None:
    """Return the rules of a part, None if there is no such form of it."""
    kind = describe_policy(part)["format"]
    if kind == SITE_FORMAT:
        return load_bandit(part)[1].rules
    return read_changes(part)[0].rules if kind == CHANGES_FORMAT else None


def _unknown_lines(parts: Mapping[str, Path]) -> list[str]:
    """Return what parts say of the ops that they leave to the rules."""
    described = {phase: describe_policy(folder).get("provenance", {}) for phase, folder in sorted(parts.items())}
    return [
        f"- The part for {phase} leaves {p['unknown']} to the rules."
        for phase, p in described.items()
        if "unknown" in p
    ]
