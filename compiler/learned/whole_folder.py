"""The folder of a policy for a whole compilation: a description, and a folder per part.

policy.json     format and its version, name, version, backends, parts with their checksums, provenance
expansions/     a site policy (`compiler.learned.site_policy`)
loops/          a site policy, or a fusion policy
fusion/         a fusion policy (`compiler.learned.fusion_policy`), or changes of the default fusions
                (`compiler.learned.fusion_changes`)
passes/         a pass order (`compiler.learned.pass_order`)
kernels/        a cost model of kernels (`compiler.learned.kernel_model`), or a model of their machine code
                (`compiler.learned.code_kernels`)

Each part is a policy folder of its own. `default_for` lists the backends for which validation allows that the policy
decides when a user names none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiler.errors import PolicyError
from compiler.learned.code_kernels import FORMAT as CODE_FORMAT
from compiler.learned.code_kernels import CodeKernels
from compiler.learned.fusion_changes import FORMAT as CHANGES_FORMAT
from compiler.learned.fusion_changes import load_changes
from compiler.learned.fusion_policy import FORMAT as FUSION_FORMAT
from compiler.learned.fusion_policy import load_policy as load_fusion_policy
from compiler.learned.kernel_cost import LearnedKernels
from compiler.learned.kernel_model import FORMAT as KERNEL_FORMAT
from compiler.learned.pass_order import FORMAT as ORDER_FORMAT
from compiler.learned.pass_order import load_pass_order
from compiler.learned.policy_folder import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    check_policy_target,
    describe_policy,
    policy_files,
)
from compiler.learned.site_policy import FORMAT as SITE_FORMAT
from compiler.learned.site_policy import RuleChooser, load_bandit, site_policy
from compiler.plan import PHASES
from compiler.support.files import read_up_to, replace_files
from compiler.support.untrusted import is_name, short_repr

__all__ = ["FORMAT", "FORMAT_VERSION", "SHIPPED", "WholeDescription", "copy_whole", "read_part", "read_whole",
           "write_whole"]  # fmt: skip

FORMAT = "hlogym-policy"
FORMAT_VERSION = 1
SHIPPED = Path(__file__).parent / "shipped"
"""The policy that is a part of the package."""
CARD_FILE = "README.md"
_MOST_BYTES = 1 << 24


@dataclass(frozen=True)
class WholeDescription:
    """The description of a whole policy.

    Attributes:
        name: the name that plans record.
        version: recorded beside the name.
        parts: phase -> checksum of the description of that part.
        backends: the backends it was made for; empty: all.
        default_for: the backends for which it decides when a user names no policy.
        provenance: how it was made.
    """

    name: str
    version: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    default_for: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


def read_whole(folder: Path) -> WholeDescription:
    """Return the checked description of a whole policy; parts are read by `read_part`.

    Raises:
        PolicyError: there is none, it is of another format or version, or it is damaged.
    """
    data = describe_policy(folder)
    file = folder / DESCRIPTION_FILE
    if data.get("format") != FORMAT:
        raise PolicyError(f"{file} describes {data.get('format')!r:.80} instead of {FORMAT!r}")
    version = data.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        newer = type(version) is int and version > FORMAT_VERSION
        hint = "update hlogym to read it" if newer else "export it again"
        raise PolicyError(
            f"{file} has format version {version!r:.80}, but this compiler reads {FORMAT_VERSION}; {hint}"
        )
    parts, provenance = data.get("parts"), data.get("provenance", {})
    if not isinstance(parts, dict) or not all(isinstance(c, str) for c in parts.values()):
        raise PolicyError(f"{file}: parts must map phases to checksums")
    for phase in parts:
        if phase not in PHASES[:-1]:
            raise PolicyError(f"{file}: there is no phase {short_repr(phase)}; phases are {', '.join(PHASES[:-1])}")
    if not isinstance(provenance, dict):
        raise PolicyError(f"{file}: provenance must be an object")
    return WholeDescription(
        _name(data.get("name"), "name", file),
        _name(data.get("version", ""), "version", file, empty=True),
        parts,
        _names(data.get("backends", []), "backends", file),
        _names(data.get("default_for", []), "default_for", file),
        provenance,
    )


def _name(value: Any, what: str, file: Path, empty: bool = False) -> str:
    if isinstance(value, str) and len(value) <= 100 and (is_name(value) or (empty and not value)):
        return value
    raise PolicyError(f"{file}: {what} must be a short string, not {short_repr(value)}")


def _names(value: Any, what: str, file: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise PolicyError(f"{file}: {what} must be a list of strings, not {short_repr(value)}")
    return tuple(_name(v, what, file) for v in value)


# ---- parts


def _site_part(folder: Path, phase: str, readable: bool) -> object:
    learned_for, bandit = load_bandit(folder)
    if learned_for != phase:
        raise PolicyError(f"{folder} decides {learned_for} and cannot be the part for {phase}")
    return site_policy(learned_for, RuleChooser(bandit.rules) if readable else bandit)


def _fusion_part(folder: Path, phase: str, readable: bool) -> object:
    if phase not in ("fusion", "loops"):
        raise PolicyError(f"{folder} decides fusion and loops and cannot be the part for {phase}")
    return None if readable else load_fusion_policy(folder)


def _changes_part(folder: Path, phase: str, readable: bool) -> object:
    if phase != "fusion":
        raise PolicyError(f"{folder} decides fusion and cannot be the part for {phase}")
    return load_changes(folder, readable)


def _order_part(folder: Path, phase: str, readable: bool) -> object:
    if phase != "passes":
        raise PolicyError(f"{folder} orders passes and cannot be the part for {phase}")
    return None if readable else load_pass_order(folder)


def _kernel_part(folder: Path, phase: str, readable: bool) -> object:
    if phase != "kernels":
        raise PolicyError(f"{folder} prices kernels and cannot be the part for {phase}")
    return None if readable else LearnedKernels.load(folder)


def _code_part(folder: Path, phase: str, readable: bool) -> object:
    if phase != "kernels":
        raise PolicyError(f"{folder} chooses kernels and cannot be the part for {phase}")
    return None if readable else CodeKernels.load(folder)


_READERS: dict[str, Callable[[Path, str, bool], object]] = {
    SITE_FORMAT: _site_part,
    FUSION_FORMAT: _fusion_part,
    CHANGES_FORMAT: _changes_part,
    ORDER_FORMAT: _order_part,
    KERNEL_FORMAT: _kernel_part,
    CODE_FORMAT: _code_part,
}
"""What reads the folder of a part, by its format: folder, phase, whether in its readable form; None if it has none."""


def read_part(folder: Path, phase: str, checksum: str, readable: bool) -> Any:
    """Return the part for a phase of the whole policy in a folder; None for a readable form that does not exist.

    Raises:
        PolicyError: it is missing, was changed, is of another kind, or cannot be used.
    """
    inner = folder / phase
    kind = describe_policy(inner).get("format")
    if _checksum(inner) != checksum:
        raise PolicyError(
            f"{inner} is not the part that {folder / DESCRIPTION_FILE} was written for: writing was interrupted, or a "
            "file was changed; export the policy again"
        )
    reader = _READERS.get(str(kind))
    if reader is None:
        raise PolicyError(f"{inner} has the unknown format {kind!r:.80}; update hlogym to read it")
    return reader(inner, phase, readable)


def _checksum(part: Path) -> str:
    try:
        return hashlib.sha256(read_up_to(part / DESCRIPTION_FILE, _MOST_BYTES)).hexdigest()
    except OSError as error:
        raise PolicyError(f"cannot read {part / DESCRIPTION_FILE}: {error.strerror}") from error


# ---- writing


def write_whole(
    folder: Path,
    name: str,
    version: str,
    parts: Mapping[str, Path],
    backends: Sequence[str] = (),
    default_for: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
    card: str = "",
) -> None:
    """Write a whole policy from the folders of its parts; a policy that is there is replaced, other files are left.

    Args:
        folder: to write.
        name: the name that plans record.
        version: recorded beside the name.
        parts: phase -> folder of the part, which is copied.
        backends: the backends it was made for; empty: all.
        default_for: the backends for which it decides when a user names no policy.
        provenance: how it was made.
        card: a model card in Markdown; empty: none.

    Raises:
        PolicyError: a part is no policy, or the folder cannot be written or holds something else.
    """
    check_policy_target(folder)
    files = {f"{phase}/{name}": data for phase, part in parts.items() for name, data in policy_files(part).items()}
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "name": name,
        "version": version,
        "backends": list(backends),
        "default_for": list(default_for),
        "parts": {phase: hashlib.sha256(files[f"{phase}/{DESCRIPTION_FILE}"]).hexdigest() for phase in parts},
        "provenance": dict(provenance or {}),
    }
    if card:
        files[CARD_FILE] = card.encode()
    # The description comes first: after a kill between two files, the folder is one of hlogym that can be replaced.
    first = {DESCRIPTION_FILE: (json.dumps(description, indent=2) + "\n").encode()}
    try:
        replace_files(folder, first | files)
        (folder / WEIGHTS_FILE).unlink(missing_ok=True)  # of a policy for one phase that was here before
    except OSError as error:
        raise PolicyError(f"cannot write the policy to {folder}: {error.strerror}") from error


def copy_whole(source: Path, target: Path) -> None:
    """Copy a whole policy.

    Raises:
        PolicyError: it is damaged, or the target cannot be written.
    """
    whole = read_whole(source)
    write_whole(
        target, whole.name, whole.version, {phase: source / phase for phase in whole.parts}, whole.backends,
        whole.default_for, whole.provenance,
    )  # fmt: skip
