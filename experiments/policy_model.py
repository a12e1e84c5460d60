"""Policies as models of MLflow: HLO text in, compilation plans out.

MLflow imports this module by its name and gives it the folder of the policy (a `loader_module`), so nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.api import decide_all
from compiler.backends.registry import find_backend
from compiler.errors import ArgumentError, HlogymError
from compiler.policy import load_whole
from compiler.session import CompilationSession
from compiler.text import parse

if TYPE_CHECKING:
    from mlflow.models.signature import ModelSignature
    from pandas import DataFrame

__all__ = ["INPUT", "OUTPUT", "PolicyModel", "signature"]

INPUT, OUTPUT = "hlo", "plan"
"""The columns: HLO text, and the plan as JSON, which `compile(plan=...)` and `hlogym run --plan` take."""


class PolicyModel:
    """Decides compilations as the policy in a folder does.

    Args:
        folder: the folder of a whole policy, of a fusion policy or of a pass order.
    """

    def __init__(self, folder: Path) -> None:
        self.policy = load_whole(folder)

    def predict(self, model_input: DataFrame, params: Mapping[str, Any] | None = None) -> DataFrame:
        """Return a plan for each program.

        Args:
            model_input: a column `hlo` with HLO text.
            params: `backend`, "cpu" or "cuda".

        Raises:
            UnknownNameError: there is no such backend.
            ArgumentError: a value cannot be compiled, or is not a string, as in the one row that MLflow makes of a dict
                of lists; the message has the row.
        """
        from pandas import DataFrame

        backend = find_backend(str((params or {}).get("backend", "cpu"))).name
        return DataFrame({OUTPUT: [self._plan(n, v, backend) for n, v in enumerate(model_input[INPUT])]})

    def _plan(self, row: int, value: Any, backend: str) -> str:
        text = _text(row, value)
        try:
            session = CompilationSession(parse(text), backend=backend)
            decide_all(session, self.policy.for_backend(session.backend))
        except HlogymError as error:
            raise ArgumentError(f"row {row} of the column {INPUT!r}: {error}") from error
        return session.plan.to_json()


def _text(row: int, value: Any) -> str:
    if isinstance(value, str):
        return value
    missing = value is None or (isinstance(value, float) and math.isnan(value))  # pandas has NaN for None
    kind = "missing" if missing else f"a {type(value).__name__}"
    raise ArgumentError(f"row {row} of the column {INPUT!r} is {kind}; give HLO text, one row per program")


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
