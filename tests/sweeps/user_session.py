"""A session of a new user, recorded as text: install, run, tune, train, evaluate, export, use, publish.

python -m tests.sweeps.user_session [--site FOLDER] [--minutes 2] [--folder DIR] [--out results/reach/user_session.md]

hlogym is installed with pip into a new virtual environment, not in editable mode. Then a shell types what the
quickstart shows, in order, and afterwards what README.md and docs/training.md say about training on measured time. The
record has every command with all that it prints. With `--site`, the environment finds the other packages in the folder
of site packages given, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from env.isolated import ROOT
from experiments.provenance import provenance
from tests.docs.pages import DOCS, Block, blocks_of

_SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")
MOST = 900
"""Seconds within which a command must end."""
LONGEST = 60
"""How many lines of an output the record shows."""


@dataclass(frozen=True)
class Typed:
    """A command and what it printed."""

    command: str
    status: int
    printed: str
    seconds: float


class Session:
    """Types commands into a shell of a new user, in a folder of their own.

    Attributes:
        typed: the commands so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.typed: list[Typed] = []
        folder.mkdir(parents=True, exist_ok=True)

    def type(self, command: str) -> Typed:
        """Run a command in the virtual environment, if there is one already."""
        places = (self.folder / ".venv" / "bin", Path(sys.base_prefix) / "bin", *_SYSTEM)
        environment = {n: v for n, v in os.environ.items() if n.startswith(("PIP_", "SSL_")) or n.endswith("_proxy")}
        environment |= {"PATH": os.pathsep.join(map(str, places)), "HOME": str(self.folder), "COLUMNS": "120"}
        environment |= {"LANG": "C.UTF-8", "BROWSER": "true"}
        start = time.monotonic()
        limited = ["timeout", "--signal", "INT", str(MOST), "bash", "-c", command]
        done = subprocess.run(
            limited, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False, text=True,
        )  # fmt: skip
        self.typed.append(Typed(command, done.returncode, done.stdout, time.monotonic() - start))
        print(f"{self.typed[-1].seconds:6.1f} s, status {done.returncode}: {command.splitlines()[0]}", flush=True)
        return self.typed[-1]

    def type_block(self, block: Block) -> None:
        """Type a block of a page of the documentation."""
        match block.language, block.title:
            case "hlo", name:
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_text(block.text, encoding="utf-8")
                self.typed.append(Typed(f"# a file is written: {name}", 0, "", 0.0))
            case "sh", _:
                for line in block.text.splitlines():
                    if line.startswith("hlogym"):
                        self.type(line)
            case "console", _:
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        self.type(line.removeprefix("$ "))
            case "python", _:
                self.type(f"python - <<'END'\n{block.text}END")
            case _:
                pass


def install(session: Session, site: Path | None) -> None:
    """Install hlogym with pip into a new virtual environment."""
    session.type("python3 -m venv .venv")
    options = "" if site is None else "--no-deps "
    # A copy of what git has, without builds of the past.
    source = session.folder / "hlogym"
    source.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    session.type(f"python -m pip install --quiet --disable-pip-version-check {options}./hlogym")
    if site is not None:
        (found,) = (session.folder / ".venv" / "lib").glob("python3*/site-packages")
        (found / "other_packages.pth").write_text(f"{site}\n", encoding="utf-8")
    session.type("hlogym --version")
    session.type("hlogym doctor")


def learn(session: Session, minutes: float) -> None:
    """Train on measured time, as README.md and docs/training.md show, and publish the policy."""
    train = "hlogym train --suite train --env hlogym/FusionMeasured-v0 --backend cpu"
    for command in (
        "hlogym suites",
        f"{train} --minutes {minutes:g} --name measured",
        "hlogym evaluate measured --suite test --baselines priority --budget 2 --rounds 5",
        "hlogym export measured -o measured-policy",
        "hlogym run softmax --backend cpu --policy measured-policy --check",
        "hlogym run softmax --backend cpu --policy models:/hlogym-fusion/2 --check",
        "hlogym report -o report.html",
        "hlogym list runs",
    ):
        session.type(command)


def record(session: Session, facts: dict[str, str]) -> str:
    """Return the record of a session in Markdown."""
    failed = [t for t in session.typed if t.status]
    lines = ["# A session of a new user", "", *(f"- {k}: {v}" for k, v in facts.items()), ""]
    commands = [t for t in session.typed if not t.command.startswith("#")]
    lines += [
        f"{len(commands)} commands in {sum(t.seconds for t in commands):.0f} s, {len(failed)} of them failed.",
        "",
    ]
    for typed in session.typed:
        shown = typed.printed.replace(str(session.folder.resolve()), "/home/me").rstrip().splitlines()
        if len(shown) > LONGEST:
            shown = [*shown[: LONGEST // 2], f"... ({len(shown) - LONGEST} lines)", *shown[-LONGEST // 2 :]]
        prompt = typed.command if typed.command.startswith("#") else f"$ {typed.command}"
        ended = [] if not typed.status else [f"(status {typed.status})"]
        body = [re.sub(r"\s+$", "", line) for line in [*prompt.splitlines(), *shown, *ended]]
        lines += ["```text", *body, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run from the command line; return exit status 1 if a command failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--site", type=Path, help="folder of site packages with what hlogym needs; default: pip installs it"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="training time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="new folder of the user; default: a temporary one")
    parser.add_argument("--out", type=Path, default=Path("results/reach/user_session.md"), help="the record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hlogym-user-", ignore_cleanup_errors=True) as temporary:
        session = Session(options.folder or Path(temporary))
        install(session, options.site)
        for block in blocks_of((DOCS / "quickstart.md").read_text(encoding="utf-8")):
            session.type_block(block)
        learn(session, options.minutes)
        facts = {k: v for k, v in provenance().items() if k in ("commit", "date", "machine")}
        typed = "python -m tests.sweeps.user_session" + (" --site SITE" if options.site else "")
        facts = {"command": f"{typed} --minutes {options.minutes:g}", **facts}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(record(session, facts), encoding="utf-8")
    return 1 if any(t.status for t in session.typed) else 0


if __name__ == "__main__":
    sys.exit(main())
