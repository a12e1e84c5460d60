"""A fusion policy and a suite for hlogym."""

from pathlib import Path

from compiler.fusion.actions import FusionAction
from compiler.fusion.state import FusionState


class FirstLegal:
    """Take the first legal fusion until there is none."""

    def choose(self, state: FusionState) -> FusionAction | None:
        """Return a legal action, or None when nothing more is to be fused."""
        return next(iter(state.actions()), None)


def programs() -> Path:
    """Return the folder of the suite, which the package contains."""
    return Path(__file__).parent / "programs"
