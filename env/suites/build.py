"""Build the suite "corpus": lower every family, cut subgraphs out of its members, and write them with a manifest.

    python -m env.suites.build [--output DIR] [--families a,b] [--list]

Needs JAX (`pip install 'hlogym[jax]'`) and PyTorch; using the suite does not. Each family is written as soon as it is
made, so that an interrupted build continues where it stopped. Programs that are equal up to names have one fingerprint
and are kept once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compiler.errors import HlogymError, UnknownNameError
from compiler.support.files import write_file
from env.suites.built import SPLITS
from env.suites.locations import programs_folder
from env.suites.programs.family import Family
from env.suites.programs.listing import LISTING, listing_text, read_listing
from env.suites.programs.making import family_part, versions
from env.suites.programs.splits import LEFT_OUT
from env.suites.sealing import MARKER

__all__ = ["BuildError", "build_suite", "changed_programs", "families", "joined_manifest"]

JAX_MODULES = (
    "rows", "pointwise", "losses", "networks", "sequences", "structures", "simulators", "grids", "numerics",
    "linear_algebra", "algorithms", "learning",
)  # fmt: skip
TORCH_MODULES: tuple[str, ...] = ("torch_layers",)
_PACKAGE = "env.suites.programs"
_SEALED = "The programs in this folder are sealed: they are for `hlogym evaluate` alone, which records each opening.\n"


class BuildError(HlogymError, RuntimeError):
    """A suite of programs that cannot be built."""


def families() -> dict[str, tuple[Family, str]]:
    """Return every family by name, and the frontend that lowers it: "jax" or "torch"."""
    found: dict[str, tuple[Family, str]] = {}
    for names, frontend in ((JAX_MODULES, "jax"), (("generator",), "jax"), (TORCH_MODULES, "torch")):
        for name in names:
            for family in importlib.import_module(f"{_PACKAGE}.{name}").FAMILIES.by_name.values():
                if family.name in found:
                    raise BuildError(f"two families are called {family.name!r}")
                found[family.name] = family, frontend
    return found


def build_suite(output: Path, only: Sequence[str] = (), note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Write the suite, or some families of it, to a folder; return its manifest.

    Args:
        output: the folder; families in it that are up to date are kept.
        only: names of families; by default all.
        note: called with a line after each family.

    Raises:
        BuildError: JAX or PyTorch is not installed.
        UnknownNameError: there is no such family.
    """
    try:
        known = families()
    except ModuleNotFoundError as error:
        raise BuildError(f"building programs needs JAX and PyTorch ({error}): pip install 'hlogym[jax]'") from error
    if unknown := sorted(set(only) - known.keys()):
        raise UnknownNameError("family", unknown[0], known)
    chosen = list(only) or list(known)
    parts = []
    for number, name in enumerate(chosen):
        started = time.monotonic()
        part = family_part(output, *known[name])
        parts.append(part)
        note(
            f"[{number + 1}/{len(chosen)}] {name}: {len(part['programs'])} programs "
            f"in {time.monotonic() - started:.1f} s" + "".join(f"\n    left out {x}" for x in part["left_out"])
        )
    manifest = joined_manifest(parts)
    write_file(output / "test" / MARKER, _SEALED)
    for split in SPLITS:
        chosen_entries = [e for e in manifest["programs"] if e["split"] == split]
        write_file(output / split / "manifest.json", _manifest_text(manifest | {"programs": chosen_entries}))
    return manifest


def changed_programs(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of programs that differ from the list that comes with hlogym, or are not in both."""
    listed = {name: p.fingerprint for name, p in read_listing()[0].items()}
    made = {e["name"]: e["fingerprint"] for e in manifest["programs"]}
    return sorted(name for name in listed.keys() | made.keys() if listed.get(name) != made.get(name))


# ---- the manifest


def joined_manifest(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest of several families; of equal programs, the first is kept."""
    seen: dict[str, str] = {}
    entries = [entry for part in parts for entry in part["programs"] if entry["name"] not in LEFT_OUT]
    programs = [e for e in entries if seen.setdefault(e["fingerprint"], e["name"]) == e["name"]]
    return {"lowered_with": versions(), "programs": programs}


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    head = json.dumps({k: v for k, v in manifest.items() if k != "programs"}).removesuffix("}")
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in manifest["programs"])
    return f'{head}, "programs": [\n{lines}\n]}}\n'


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=programs_folder(), help="folder (default: %(default)s)")
    parser.add_argument("--families", default="", help="comma-separated names of families (default: all)")
    parser.add_argument("--list", action="store_true", help="also write the list that comes with hlogym")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        manifest = build_suite(options.output, [f for f in options.families.split(",") if f], print)
    except (BuildError, UnknownNameError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.list:
        write_file(LISTING, listing_text(manifest, {name: family.source for name, (family, _) in families().items()}))
    elif not options.families and (found := changed_programs(manifest)):
        print(f"{len(found)} programs differ from the list that comes with hlogym, such as {found[0]}", file=sys.stderr)
    print(f"{len(manifest['programs'])} programs in {options.output} after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
