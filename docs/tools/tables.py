"""Tables of what the code registers: environments, fusion policies, suites, exported observations."""

from __future__ import annotations

import inspect
from collections import Counter

import gymnasium as gym

import env
from compiler.errors import UnknownNameError
from compiler.fusion.policies import POLICIES
from compiler.learned.features import decisions
from compiler.support.options import describe_options
from docs.tools.markdown import sentence, table
from env.rewards import REWARDS
from env.suites import SUITE_NAMES, load_suite
from env.suites.built import PROGRAM_SUITES
from env.suites.programs.listing import read_listing

__all__ = ["LISTINGS", "environment_ids"]


def environment_ids() -> list[str]:
    """Return every environment id that hlogym registers."""
    env.register_environments()
    return sorted(name for name in gym.envs.registration.registry if name.startswith("hlogym/"))


def environments() -> str:
    """Return a table of the environment ids, the phases that an agent decides, and the default reward."""
    rows = []
    for name in environment_ids():
        spec = gym.spec(name)
        entry = spec.entry_point if isinstance(spec.entry_point, str) else ""
        module, _, cls = entry.partition(":")
        phases = getattr(__import__(module, fromlist=[cls]), cls).phases
        emulated = spec.kwargs.get("reward") == "emulated-time"
        reward = "measured run time" if spec.nondeterministic else "predicted GPU time" if emulated else "cost model"
        rows.append([f"`{name}`", ", ".join(phases), reward, "no" if spec.nondeterministic else "yes"])
    return table(["Id", "Phases that the agent decides", "Default reward", "Deterministic"], rows)


def policies() -> str:
    """Return a table of the fusion policies by name."""
    rows = []
    for name, make in POLICIES.items():
        options = describe_options(make) if isinstance(make, type) else ""
        rows.append([f"`{name}`", _result(inspect.getdoc(make)), f"`{options}`" if options else ""])
    return table(["Name", "Strategy", "Options"], rows)


def _result(doc: str | None) -> str:
    """Return the first paragraph of a docstring as a noun phrase: without the "Return" of a function."""
    phrase = sentence(doc).removeprefix("Return ")
    return phrase[:1].upper() + phrase[1:]


def rewards() -> str:
    """Return a table of the rewards by name."""
    rows = [[f"`{name}`", sentence(inspect.getdoc(make))] for name, make in REWARDS.items()]
    return table(["Name", "What the agent is rewarded for"], rows)


def suites() -> str:
    """Return a table of the suites with the number of their programs."""
    rows = []
    listed = Counter(p.split for p in read_listing()[0].values())
    for name in SUITE_NAMES:
        if name in PROGRAM_SUITES:  # need not be built
            split = name.partition("/")[2]
            rows.append([f"`{name}`", str(listed[split] if split else listed["train"] + listed["validation"])])
            continue
        try:
            rows.append([f"`{name}`", str(len(load_suite(name).programs))])
        except UnknownNameError:
            continue
    return table(["Suite", "Programs"], rows)


def observation() -> str:
    """Return a table of the arrays of a decision's observation."""
    d = decisions
    rows = [
        ["`nodes`", f"[{d.MAX_NODES}, {d.NODE_FEATURES}]", "features of the instructions near the candidates"],
        ["`edges`", f"[{d.MAX_EDGES}, 2]", "pairs of node numbers: operand, user"],
        [
            "`candidates`",
            f"[{d.MAX_CANDIDATES}, {d.CANDIDATE_FEATURES}]",
            "features of the legal moves; action i is row i",
        ],
        ["`endpoints`", f"[{d.MAX_CANDIDATES}, 2]", "the two nodes that a candidate concerns, -1 for none"],
        ["`globals`", f"[{d.GLOBAL_FEATURES}]", "features of the whole program, then of the kernel that is due"],
        ["`counts`", "[3]", "how many nodes, edges and candidates are real; the rest is padding"],
        ["`action_mask`", f"[{d.MAX_CANDIDATES}]", "1 where an action is legal"],
    ]
    return table(["Array", "Rows (stored flat)", "Meaning"], rows)


LISTINGS = {
    "tables.environments": environments,
    "tables.policies": policies,
    "tables.rewards": rewards,
    "tables.suites": suites,
    "tables.observation": observation,
}
