"""The compiler of hlogym: HLO text in, fused kernels out, with every decision pluggable.

```python
from compiler import compile
exe = compile(open("program.hlo").read(), backend="cpu")
outs = exe(*arrays)
```
"""

from compiler.api import CompileOptions as CompileOptions
from compiler.api import compile as compile
from compiler.api import load as load
from compiler.backends.measured_kernels import MeasuredKernels as MeasuredKernels
from compiler.codegen.schedules.kernel_choice import KernelChoice as KernelChoice
from compiler.errors import HlogymError as HlogymError
from compiler.errors import HloSyntaxError as HloSyntaxError
from compiler.errors import HloVerificationError as HloVerificationError
from compiler.errors import UnsupportedError as UnsupportedError
from compiler.ir.module import HloModule as HloModule
from compiler.learned.pass_order import load_pass_order as load_pass_order
from compiler.plan import CompilationPlan as CompilationPlan
from compiler.policy import Policy as Policy
from compiler.policy import load_policy as load_policy
from compiler.runtime.kernel_selector import DefaultKernels as DefaultKernels
from compiler.runtime.kernel_selector import KernelSelector as KernelSelector
from compiler.runtime.kernel_sites import KernelSite as KernelSite
from compiler.session import CompilationSession as CompilationSession
from compiler.text import parse as parse
