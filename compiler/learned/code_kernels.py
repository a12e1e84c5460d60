"""A kernel selector that compiles a few schedules of each kernel and predicts from their machine code which is fastest.

What a change of the schedule is worth depends on what the C compiler makes of it: whether it uses vectors, how many
instructions a loop has per element, whether registers suffice. A first model says for which kernels any change may be
worth it. For these, a draft predicts from the kernel and its loop nest which candidates may be; those are compiled, and
a last model predicts from their code as well. Nothing is run.

policy.json          format, feature versions, candidates, margins, processors, provenance, checksum of the weights
policy.safetensors   three sets of boosted trees for each processor
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from compiler.analysis.cost_model import CostModel
from compiler.backends.cpu import toolchain
from compiler.backends.cpu.disassembly import machine_code, why_unreadable
from compiler.codegen.kernel_spec import KernelSpec
from compiler.codegen.schedules.kernel_choice import GENERATED, KernelChoice
from compiler.codegen.schedules.schedule import FIELD_RANGES
from compiler.codegen.templates.loop_kernel import LoopKernel
from compiler.errors import BackendError, PlanError, PolicyError, UnsupportedError
from compiler.learned.boosted_trees import BoostedTrees
from compiler.learned.features.kernel_costs import COST_FEATURE_VERSION, COST_FEATURES, cost_features
from compiler.learned.features.machine_code import CODE_FEATURE_VERSION, CODE_FEATURES, code_features
from compiler.learned.kernel_model import shipped_kernel_cost
from compiler.learned.policy_folder import read_number, read_policy_folder, write_policy_folder
from compiler.runtime.instruction_kernels import kernel_generator
from compiler.runtime.kernel_sites import KernelSite
from compiler.support.processor import microarchitecture
from compiler.support.untrusted import short_repr

__all__ = ["CODE_INPUTS", "DRAFT_INPUTS", "FORMAT", "CodeKernels", "CodeModel", "accesses_by_data", "code_inputs",
           "code_rows", "draft_inputs", "generated_kernels", "predict"]  # fmt: skip

FORMAT = "hlogym-code-kernels"
BACKEND = "cpu"
MAX_SOURCE = 30_000
"""Longest source of a kernel in characters; the C compiler takes seconds for a longer one."""
MAX_CANDIDATES = 64
LEAST_SHARE = 0.01
"""Share of the estimated time of a program from which on a kernel is looked at: large programs have many others."""
_BY_DATA = [
    n for n, name in enumerate(COST_FEATURES) if name.startswith("nest: ") and name.endswith((" gathered", "updates"))
]
"""Counts of accesses whose places depend on data. Kernels with them keep their default: the indices of the measurements
are random and small, and what is fastest depends on them."""
DRAFT_INPUTS = (*COST_FEATURES, *(f"changed {name}" for name in COST_FEATURES))
"""What the draft looks at, see `draft_inputs`."""
CODE_INPUTS = (*DRAFT_INPUTS, *CODE_FEATURES, *(f"changed {name}" for name in CODE_FEATURES))
"""What the second model looks at, see `code_inputs`."""
Floats = npt.NDArray[np.float32]
Schedule = Mapping[str, int]


class Trees(NamedTuple):
    """The models for a processor, which predict logarithms of speedups over the default.

    Attributes:
        prospects: over COST_FEATURES of the default: the speedup of the best candidate.
        draft, code: over DRAFT_INPUTS and over CODE_INPUTS: that of a candidate.
        least_prospect: kernels of which `prospects` predicts less keep their default.
    """

    prospects: BoostedTrees
    draft: BoostedTrees
    code: BoostedTrees
    least_prospect: float


_MODELS = {"prospects": len(COST_FEATURES), "draft": len(DRAFT_INPUTS), "code": len(CODE_INPUTS)}
"""The models for a processor with the number of their inputs."""


@dataclass(frozen=True)
class CodeModel:
    """What the selector has learned.

    Attributes:
        candidates: changed fields of the schedule of each candidate.
        trees: for each processor, by `processor.microarchitecture`.
        margin: log of the speedup over the default that a candidate must be expected to have.
        draft_margin: the same for the draft, below which a candidate is not compiled; it may be negative.
        compiled: greatest number of candidates that are compiled for a kernel.
        least_seconds: kernels that are expected to take less time per execution keep their default.
        provenance: what it was trained on.
    """

    candidates: tuple[Schedule, ...]
    trees: Mapping[str, Trees]
    margin: float
    draft_margin: float
    compiled: int
    least_seconds: float
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(folder: str | Path) -> CodeModel:
        """Read a model that `save` wrote.

        Raises:
            PolicyError: there is none, it was learned on other features, or it is damaged.
        """
        data, weights = read_policy_folder(Path(folder), FORMAT, COST_FEATURE_VERSION)
        try:
            if data.get("features") != list(COST_FEATURES) or data.get("code_version") != CODE_FEATURE_VERSION:
                raise PolicyError("it was learned on other features; train it again")
            processors = data.get("processors")
            if not isinstance(processors, list) or not all(isinstance(p, str) for p in processors):
                raise PolicyError("its processors must be a list of names")
            return CodeModel(
                _candidates(data.get("candidates")),
                _models(processors, data.get("least_prospects"), weights),
                read_number(data, "margin"),
                -read_number(data, "draft_loss"),
                int(read_number(data, "compiled")),
                read_number(data, "least_seconds"),
                data["provenance"],
            )
        except PolicyError as e:
            raise PolicyError(f"the policy in {folder} cannot be used: {e}") from e

    def save(self, folder: str | Path) -> None:
        """Write the model; raise PolicyError if the folder cannot be written."""
        description = {
            "format": FORMAT, "feature_version": COST_FEATURE_VERSION, "code_version": CODE_FEATURE_VERSION,
            "features": list(COST_FEATURES), "candidates": [dict(c) for c in self.candidates],
            "processors": list(self.trees), "least_prospects": [t.least_prospect for t in self.trees.values()],
            "margin": self.margin, "draft_loss": -self.draft_margin, "compiled": self.compiled,
            "least_seconds": self.least_seconds, "provenance": dict(self.provenance),
        }  # fmt: skip
        weights: dict[str, Floats] = {}
        for n, trees in enumerate(self.trees.values()):
            for name in _MODELS:
                part = getattr(trees, name)
                weights.update({f"{n}.{name}.{key}": array for key, array in part.to_arrays().items()})
        write_policy_folder(Path(folder), description, weights)


def _candidates(data: Any) -> tuple[Schedule, ...]:
    if not isinstance(data, list) or len(data) > MAX_CANDIDATES:
        raise PolicyError(f"its candidates must be a list of at most {MAX_CANDIDATES}")
    for c in data:
        if not isinstance(c, dict) or not all(type(v) is int and v in FIELD_RANGES.get(k, ()) for k, v in c.items()):
            raise PolicyError(
                f"a candidate must map fields of the schedule to values that they have, not {short_repr(c)}"
            )
    return tuple(data)


def _models(processors: Sequence[str], least: Any, weights: Mapping[str, Floats]) -> dict[str, Trees]:
    """Return the models by processor.

    Raises:
        PolicyError: there are not as many least prospects as processors, or weights do not fit.
    """
    numbers = least if isinstance(least, list) and all(type(x) in (int, float) for x in least) else []
    if len(numbers) != len(processors) or not all(map(math.isfinite, numbers)):
        raise PolicyError(f"its least prospects must be a number for each processor, not {short_repr(least)}")
    found = {}
    for n, processor in enumerate(processors):
        parts = []
        for name, inputs in _MODELS.items():
            prefix = f"{n}.{name}."
            arrays = {key.removeprefix(prefix): a for key, a in weights.items() if key.startswith(prefix)}
            parts.append(BoostedTrees.from_arrays(arrays, inputs))
        prospects, draft, code = parts
        found[processor] = Trees(prospects, draft, code, float(numbers[n]))
    return found


# ---- features


def draft_inputs(costs: Floats) -> Floats:
    """Return rows of DRAFT_INPUTS for rows of COST_FEATURES, of which the first belongs to the default."""
    return np.concatenate([costs, costs - costs[:1]], axis=1, dtype=np.float32)


def code_inputs(draft: Floats, code: Floats) -> Floats:
    """Return rows of CODE_INPUTS for rows of DRAFT_INPUTS and of CODE_FEATURES, the first ones of the default."""
    return np.concatenate([draft, code, code - code[:1]], axis=1, dtype=np.float32)


def accesses_by_data(costs: Floats) -> npt.NDArray[np.bool_]:
    """Return for rows of COST_FEATURES whether places of accesses depend on data."""
    return np.asarray(costs[:, _BY_DATA].any(axis=1))


def generated_kernels(site: KernelSite, candidates: Sequence[Schedule]) -> dict[KernelChoice, KernelSpec]:
    """Return the kernels of the default and of candidates, the default first; candidates of equal code occur once.

    The result is empty if the default is no generated kernel, or its source is long.
    """
    if site.backend != BACKEND or site.default != KernelChoice() or site.spec is None:
        return {}
    generate = site.variants or kernel_generator(site.instruction, site.target.language)
    found: dict[KernelChoice, KernelSpec] = {}
    symbols: set[str] = set()
    for fields in ({}, *candidates):
        choice = site.choice(KernelChoice(GENERATED, fields))
        try:
            made = generate(site.default_schedule.with_values(choice.schedule))
        except (PlanError, UnsupportedError):
            continue
        spec = made.spec if isinstance(made, LoopKernel) else made
        if len(spec.source) <= MAX_SOURCE and spec.symbol not in symbols:
            symbols.add(spec.symbol)
            found[choice] = spec
    return found if site.default in found else {}


def code_rows(kernels: Sequence[KernelSpec]) -> dict[str, list[float]]:
    """Return CODE_FEATURES of kernels by symbol; kernels that cannot be compiled or read are left out.

    The kernels are compiled unless they are in the cache.
    """
    objects = toolchain.each_object(kernels, toolchain.toolchain())
    return {symbol: code_features(functions) for symbol, functions in machine_code(objects).items()}


# ---- the selector


@dataclass(frozen=True)
class _Open:
    """A kernel whose candidates are to be compiled.

    Attributes:
        key: of the kernel.
        kernels: the default and the candidates that the draft expects something of, by choice.
        draft: rows of DRAFT_INPUTS for these.
    """

    key: tuple[str, str]
    kernels: Mapping[KernelChoice, KernelSpec]
    draft: Floats


class _Decision(NamedTuple):
    choice: KernelChoice
    reason: str


@dataclass
class CodeKernels:
    """Chooses the schedule whose machine code is expected to be fastest, see the module.

    On a processor that the model does not know, every kernel keeps its default.

    Attributes:
        model: what was learned.
        processor: the processor, as `processor.microarchitecture` names it; None: this machine's.
    """

    model: CodeModel
    processor: str | None = None
    _known: dict[tuple[str, str], _Decision] = field(default_factory=dict, init=False, repr=False)
    _brief: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)
    """The kernels that take a small part of the program at hand."""

    @staticmethod
    def load(folder: str | Path) -> CodeKernels:
        """Return the selector of a model in a folder; raise PolicyError if there is none that can be used."""
        return CodeKernels(CodeModel.load(folder))

    def prepare(self, sites: Sequence[KernelSite]) -> None:
        """Decide about kernels together: their candidates are compiled in parallel."""
        trees = self._trees
        if trees is None:
            return
        shares = _shares(sites)
        waiting = {_key(s): s for s in sites if s.backend == BACKEND and shares[s.id] >= LEAST_SHARE}
        self._brief = {_key(s) for s in sites}.difference(waiting)
        waiting = {key: s for key, s in waiting.items() if key not in self._known}
        opened = [o for key, s in waiting.items() if (o := self._opened(key, s, trees)) is not None]
        if not opened:
            return
        specs = {k.symbol: k for o in opened for k in o.kernels.values()}
        try:
            rows = code_rows(list(specs.values()))
        except BackendError:  # compiling the program will say why
            return
        for o in opened:
            self._known[o.key] = self._decided(o, rows, trees)

    def choose_kernel(self, site: KernelSite) -> KernelChoice:
        """Return the choice for a kernel."""
        found = self._decision(site)
        return site.default if found is None else found.choice

    def explain(self, site: KernelSite) -> str:
        """Return what is chosen for a kernel and why."""
        found = self._decision(site)
        if found is not None:
            return f"{found.choice}: {found.reason}"
        reason = why_unreadable() or f"nothing was learned on processors like {self._processor}"
        return f"{site.default}, the default: {reason}"

    def _decision(self, site: KernelSite) -> _Decision | None:
        key = _key(site)
        if key in self._brief and key not in self._known:
            return _Decision(site.default, "the default; the kernel is a small part of the program")
        if key not in self._known:
            self.prepare([site])
        return self._known.get(key)

    @property
    def _processor(self) -> str:
        return self.processor or microarchitecture()

    @property
    def _trees(self) -> Trees | None:
        return None if why_unreadable() else self.model.trees.get(self._processor)

    def _opened(self, key: tuple[str, str], site: KernelSite, trees: Trees) -> _Open | None:
        """Return the kernel with the candidates to compile, or decide that it keeps its default."""
        keeps = _Decision(site.default, "the default; it is computed by a library, or nothing can be changed")
        self._known[key] = keeps
        if site.spec is None or site.default != KernelChoice():
            return None
        if _seconds(site) < self.model.least_seconds:
            self._known[key] = _Decision(site.default, "the default; the kernel takes too little time")
            return None
        default = cost_features(site, [site.default], [1])
        best = float(predict(trees.prospects, default)[0])
        reason = ""
        if accesses_by_data(default)[0]:
            reason = "which elements it accesses depends on data"
        elif best < trees.least_prospect:
            reason = f"{math.exp(best):.2f}x is expected at best, {math.exp(trees.least_prospect):.2f}x needed"
        if reason:
            self._known[key] = _Decision(site.default, f"the default; {reason}")
            site.forget_variants()
            return None
        kernels = generated_kernels(site, self.model.candidates)
        if len(kernels) < 2:
            return None
        choices = list(kernels)
        costs = cost_features(site, choices, [1] * len(choices))
        site.forget_variants()
        draft = draft_inputs(costs)
        expected = predict(trees.draft, draft)
        promising = (expected > self.model.draft_margin) & (np.arange(len(choices)) > 0)
        ranked = [n for n in np.argsort(-expected, kind="stable").tolist() if promising[n]]
        kept = [0, *sorted(ranked[: self.model.compiled])]
        if len(kept) == 1:
            best = math.exp(expected[1:].max())
            self._known[key] = _Decision(site.default, f"the default; the draft expects {best:.2f}x at best")
            return None
        return _Open(key, {choices[n]: kernels[choices[n]] for n in kept}, draft[kept])

    def _decided(self, o: _Open, rows: Mapping[str, Sequence[float]], trees: Trees) -> _Decision:
        default, *others = o.kernels
        read = [n for n, k in enumerate(o.kernels.values()) if k.symbol in rows]
        if not read or read[0] != 0 or len(read) < 2:
            return _Decision(default, "the default; the machine code cannot be read")
        choices, specs = [default, *others], list(o.kernels.values())
        code = np.array([rows[specs[n].symbol] for n in read], np.float32)
        expected = predict(trees.code, code_inputs(o.draft[read], code))
        best = 1 + int(np.argmax(expected[1:]))
        needed = f"needed {math.exp(self.model.margin):.2f}x"
        if expected[best] <= self.model.margin:
            return _Decision(default, f"the default; predicted {math.exp(expected[best]):.2f}x at best, {needed}")
        return _Decision(choices[read[best]], f"predicted {math.exp(expected[best]):.2f}x from its code, {needed}")


def predict(trees: BoostedTrees, inputs: Floats) -> npt.NDArray[np.float64]:
    """Return what trees predict for rows of inputs."""
    leaves = trees.nodes.leaves(inputs.astype(np.float64))
    return np.asarray(trees.value[leaves].sum(axis=1), np.float64)


def _key(site: KernelSite) -> tuple[str, str]:
    return site.fingerprint, str(site.default_schedule)


def _shares(sites: Sequence[KernelSite]) -> dict[str, float]:
    """Return the share of each kernel in their estimated time per run of the program, by the id of the site."""
    seconds = {s.id: CostModel(s.device).instruction(s.instruction) * s.runs for s in sites}
    total = sum(seconds.values())
    return {name: t / total if total else 1.0 for name, t in seconds.items()}


def _seconds(site: KernelSite) -> float:
    """Return the expected time of one execution."""
    costs = shipped_kernel_cost()
    if costs is None:
        return CostModel(site.device).instruction(site.instruction)
    return float(costs.predict(site, [site.default]).seconds[0])
