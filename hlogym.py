"""The compiler and the environments behind one import.

```python
import gymnasium as gym
import hlogym

exe = hlogym.compile(open("program.hlo").read())
env = gym.make("hlogym/Fusion-v0", suite="train")
```

Importing this module registers the environments with Gymnasium. The compiler's names can also be imported from
`compiler`, which requires only NumPy, SciPy and ml_dtypes.
"""

from compiler import CompilationPlan as CompilationPlan
from compiler import CompilationSession as CompilationSession
from compiler import CompileOptions as CompileOptions
from compiler import DefaultKernels as DefaultKernels
from compiler import HlogymError as HlogymError
from compiler import HloModule as HloModule
from compiler import HloSyntaxError as HloSyntaxError
from compiler import HloVerificationError as HloVerificationError
from compiler import KernelChoice as KernelChoice
from compiler import KernelSelector as KernelSelector
from compiler import KernelSite as KernelSite
from compiler import MeasuredKernels as MeasuredKernels
from compiler import Policy as Policy
from compiler import UnsupportedError as UnsupportedError
from compiler import compile as compile
from compiler import load as load
from compiler import load_pass_order as load_pass_order
from compiler import load_policy as load_policy
from compiler import parse as parse
from compiler.jit import jit as jit
from env import register_environments

register_environments()
