"""The fusion environment, by the name that architecture and users know: `from env.fusion import FusionEnv`."""

from env.environments import FusionEnv

__all__ = ["FusionEnv"]
