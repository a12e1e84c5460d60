"""A shorter import path for the fusion environment: `from env.fusion import FusionEnv`."""

from env.environments import FusionEnv

__all__ = ["FusionEnv"]
