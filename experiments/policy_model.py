"""Policies as models of MLflow: HLO text in, compilation plans out.

MLflow imports this module by its name and gives it the folder of the policy (a `loader_module`), so nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.fusion.policies import DEFAULT_POLICY, make_policy
from compiler.learned.pass_order import LearnedPassOrder
from compiler.loops import KernelLoops
from compiler.session import CompilationSession
from compiler.text import parse
from experiments.learned import load_learned

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature
    from pandas import DataFrame

__all__ = ["INPUT", "OUTPUT", "PolicyModel", "signature"]

INPUT, OUTPUT = "hlo", "plan"
"""The columns: HLO text, and the plan as JSON, which `compile(plan=...)` and `hlogym run --plan` take."""


class PolicyModel:
    """Decides compilations as the policy in a folder does.

    Args:
        folder: the folder of a fusion policy or of a pass order.
    """

    def __init__(self, folder: Path) -> None:
        self.policy = load_learned(folder)

    def predict(self, model_input: DataFrame, params: Mapping[str, Any] | None = None) -> DataFrame:
        """Return a plan for each program.

        Args:
            model_input: a column `hlo` with HLO text.
            params: `backend`, "cpu" or "cuda".

        Raises:
            HloSyntaxError: a value is not HLO text.
        """
        from pandas import DataFrame

        backend = str((params or {}).get("backend", "cpu"))
        return DataFrame({OUTPUT: [self._plan(str(text), backend) for text in model_input[INPUT]]})

    def _plan(self, text: str, backend: str) -> str:
        session = CompilationSession(parse(text), backend=backend)
        if isinstance(self.policy, LearnedPassOrder):
            session.run_passes(self.policy)
            session.run_loop_policy(KernelLoops())
            session.run_fusion_policy(make_policy(DEFAULT_POLICY))
        else:
            session.run_passes()
            session.run_loop_policy(self.policy)
            session.run_fusion_policy(self.policy)
        return session.plan.to_json()


def signature() -> ModelSignature:
    """Return the signature of the models: string to string, with the parameter `backend`."""
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, INPUT)]),
        outputs=Schema([ColSpec(DataType.string, OUTPUT)]),
        params=ParamSchema([ParamSpec("backend", DataType.string, "cpu")]),
    )


def _load_pyfunc(data_path: str) -> PolicyModel:
    """Return the model in a folder; MLflow calls it."""
    return PolicyModel(Path(data_path))
