"""Gymnasium environments; importing this registers their ids: `gym.make("env:hlogym/Fusion-v0", suite="train")`.

`Fusion`, `PassOrder`, `Unroll`, `Compile`: paid by the cost model, deterministic. `FusionMeasured` and so on: paid
measured kernel time, registered nondeterministic.
"""

from gymnasium.envs.registration import register, registry

ENVIRONMENTS = {
    "Fusion": "FusionEnv",
    "PassOrder": "PassOrderEnv",
    "Unroll": "UnrollEnv",
    "Compile": "CompileEnv",
}


def register_environments() -> None:
    """Make the ids known to Gymnasium; again is harmless."""
    for name, entry in ENVIRONMENTS.items():
        for measured in (False, True):
            env_id = f"hlogym/{name}{'Measured' if measured else ''}-v0"
            if env_id not in registry:
                register(
                    env_id,
                    entry_point=f"env.environments:{entry}",
                    kwargs={"measured": measured},
                    nondeterministic=measured,
                )


register_environments()
