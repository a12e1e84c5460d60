"""Stock XLA, through the parts of jaxlib that compile HLO and run it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from compiler.errors import BackendError

INSTALL = "the xla backend needs JAX, which cannot be imported here ({}); install it with: pip install 'hlogym[jax]'"


@dataclass(frozen=True)
class Xla:
    """The modules of jaxlib, and the device that programs run on.

    Attributes:
        jax: the module `jax`.
        lib: the compiled module of jaxlib.
        hlo: its part for HLO modules.
        client: the PJRT client of JAX's default platform.
        device: its first device.
    """

    jax: Any
    lib: Any
    hlo: Any
    client: Any
    device: Any

    @property
    def platform(self) -> str:
        """Return the name of the platform, such as "cpu"."""
        return str(self.client.platform)

    def compile(self, text: str, disabled_passes: str = "") -> Any:
        """Compile HLO text and return the loaded executable of jaxlib.

        Args:
            text: HLO text whose entry takes and returns arrays, not nested tuples.
            disabled_passes: comma-separated passes of XLA that do not run.

        Raises:
            BackendError: XLA refuses the program; the message gives XLA's first line.
        """
        options = self.lib.CompileOptions()
        if disabled_passes:
            options.env_option_overrides = [("xla_disable_hlo_passes", disabled_passes)]
        try:
            return self.client.compile_and_load(self.stablehlo(text), self.lib.DeviceList((self.device,)), options)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"XLA refuses the program: {(str(error).splitlines() or ['?'])[0]}") from error

    def stablehlo(self, text: str) -> Any:
        """Return HLO text as bytecode or text of StableHLO, as jaxlib translates it."""
        proto = self.hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
        return self.lib.mlir.xla_computation_to_mlir_module(self.hlo.XlaComputation(proto))

    def put(self, array: Any) -> Any:
        """Return an array of numpy as an array of JAX with the same element type, without a copy where possible."""
        with self.jax.enable_x64(True):
            return self.jax.device_put(array, self.device)


@cache
def xla() -> Xla:
    """Return XLA on JAX's default platform; raise BackendError if JAX is not installed or has no device."""
    try:
        import jax
        from jax._src import xla_bridge
        from jax._src.lib import _jax, hlo  # type: ignore[attr-defined]  # no public name compiles HLO text
    except ImportError as error:
        raise BackendError(INSTALL.format(error)) from error
    # Without this, programs that call LAPACK crash the process.
    importlib.import_module("jaxlib.cpu._lapack").initialize()
    try:
        client: Any = xla_bridge.get_backend()
    except RuntimeError as error:
        raise BackendError(f"JAX finds no device: {(str(error).splitlines() or ['?'])[0]}") from error
    return Xla(jax, _jax, hlo, client, client.local_devices()[0])


def machine_key() -> str:
    """Return the version of jaxlib, the kind of device and the number of cores."""
    found = xla()
    return f"{found.jax.__version__}\n{found.device.device_kind}\n{os.cpu_count()}"


def run(executable: Any, buffers: Sequence[Any]) -> list[Any]:
    """Start a call of a loaded executable and return the arrays of its results, which may not be complete yet."""
    shards = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
    return [s[0] for s in shards]
