"""MLflow's model registry: policies are registered as models, and commands read them by URI."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import PolicyError
from compiler.learned.policy_folder import is_policy_folder
from experiments.mlflow_store import (
    TrackingError,
    existing_client,
    is_missing,
    reason_of,
    short_requests,
    tracking_uri,
    without_password,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

__all__ = ["SCHEME", "local_policy", "register_policy", "registered_name"]

SCHEME = "models:/"
_MODEL, _POLICY = "model", "policy"


def registered_name(env: str) -> str:
    """Return the name under which policies for an environment are registered, such as "hlogym-fusion"."""
    short = (
        env.removeprefix("env:")
        .removeprefix("hlogym/")
        .partition("-v")[0]
        .removesuffix("Measured")
        .removesuffix("Emulated")
    )
    return f"hlogym-{short.lower()}"


def register_policy(client: MlflowClient, run: Run, policy: Path, name: str, tags: Mapping[str, str]) -> str:
    """Log a policy as a pyfunc model among a run's artifacts, and register it as a new version; return its URI.

    A run that was killed after this and is continued keeps its version.

    Raises:
        MlflowException, OSError: the store refuses it or cannot be reached.
    """
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    from experiments.policy_model import signature

    for known in client.search_model_versions(f"run_id='{run.info.run_id}'"):
        if known.name == name:
            return _uri(name, known.version)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / _POLICY
        shutil.copytree(policy, data)
        model = Path(folder) / _MODEL
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no input example: it would be a whole program
            mlflow.pyfunc.save_model(
                str(model), loader_module="experiments.policy_model", data_path=str(data), signature=signature(),
                pip_requirements=[f"hlogym=={version('hlogym')}"],
            )  # fmt: skip
        client.log_artifacts(run.info.run_id, str(model), _MODEL)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(name, f"{run.info.artifact_uri}/{_MODEL}", run.info.run_id, dict(tags))
    return _uri(name, made.version)


def _uri(name: str, number: object) -> str:
    return f"{SCHEME}{name}/{number}"


def local_policy(policy: str, folder: Path = Path("runs")) -> str:
    """Return a policy that commands can load: the argument, or a local copy if it is `models:/name/version`.

    The copy is removed when the process ends.

    Args:
        policy: the name of a policy, a folder, or a URI: `models:/NAME/VERSION`, `models:/NAME/latest`
            or `models:/NAME@ALIAS`.
        folder: the folder of the local store; not used if MLFLOW_TRACKING_URI is set.

    Raises:
        TrackingError: the registry has no such model, or does not answer.
        PolicyError: the model has no policy of hlogym.
    """
    if not policy.startswith(SCHEME):
        return policy
    import mlflow.artifacts

    uri = tracking_uri(folder)
    client = existing_client(folder, uri)
    to = tempfile.mkdtemp(prefix="hlogym-policy-")
    atexit.register(shutil.rmtree, to, ignore_errors=True)
    try:
        with short_requests():
            source = client.get_model_version_download_uri(*_version(client, policy))
            path = mlflow.artifacts.download_artifacts(source, dst_path=to, tracking_uri=uri)
    except Exception as error:  # the client propagates errors of its transport and of its database
        store, reason = without_password(uri), reason_of(error, uri)
        if isinstance(error, ValueError) or is_missing(error):
            raise TrackingError(f"no model {policy} in {store}: {reason}") from error
        raise TrackingError(
            f"cannot read the model {policy} from {store}: {reason}; check that this MLflow store is the right one, "
            "can be reached and is complete"
        ) from error
    found = Path(path) / "data" / _POLICY  # where MLflow puts the data of a model
    if not is_policy_folder(found):
        raise PolicyError(f"{policy} is not a policy of hlogym")
    return str(found)


def _version(client: MlflowClient, policy: str) -> tuple[str, str]:
    """Return the name and the version that a URI means.

    Raises:
        ValueError: it is no URI of a model.
    """
    found = re.fullmatch(r"models:/([^/@']+)(?:/(\d+|latest)|@([^/]+))", policy)
    if found is None:
        raise ValueError("expected models:/NAME/VERSION, models:/NAME/latest or models:/NAME@ALIAS")
    name, number, alias = found.groups()
    if number == "latest":
        newest = client.search_model_versions(f"name='{name}'", max_results=1, order_by=["version_number DESC"])
        if not newest:
            raise ValueError(f"there is no version of {name}")
        return name, str(newest[0].version)
    return name, number or str(client.get_model_version_by_alias(name, alias).version)
