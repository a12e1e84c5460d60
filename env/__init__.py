"""Gymnasium environments; importing this registers their ids: `gym.make("env:hlogym/Fusion-v0", suite="train")`.

The rewards of `Fusion`, `PassOrder`, `Unroll`, `Kernels` and `Compile` are estimated by the cost model, so they are
deterministic. `FusionMeasured` and so on are rewarded by measured run time and registered as nondeterministic;
`FusionEmulated` and so on are rewarded by predicted time on a GPU, deterministically and without one. The `reward`
argument takes any other reward; see `env.rewards`.

Where Gymnasium is not installed there are no environments, but programs, references and statistics work.
"""

from importlib.util import find_spec

ENVIRONMENTS = {
    "Expansions": "ExpansionsEnv",
    "Fusion": "FusionEnv",
    "PassOrder": "PassOrderEnv",
    "Unroll": "UnrollEnv",
    "Kernels": "KernelsEnv",
    "Compile": "CompileEnv",
}


KINDS: dict[str, dict[str, object]] = {
    "": {"measured": False},
    "Measured": {"measured": True},
    "Emulated": {"backend": "cuda", "reward": "emulated-time"},
}
"""The arguments of environments by what the names of their ids end with."""


def register_environments() -> None:
    """Register the ids with Gymnasium, unless they are registered already."""
    from gymnasium.envs.registration import register, registry

    for name, entry in ENVIRONMENTS.items():
        for kind, arguments in KINDS.items():
            env_id = f"hlogym/{name}{kind}-v0"
            if env_id not in registry:
                register(
                    env_id,
                    entry_point=f"env.environments:{entry}",
                    vector_entry_point=f"env.vector:{name}VectorEnv",
                    kwargs=dict(arguments),
                    nondeterministic=kind == "Measured",
                )


if find_spec("gymnasium") is not None:
    register_environments()
