"""Programs written natively for JAX and for PyTorch, and the processes in which the peers run them.

`tables` has both versions of each program by name, one family per file. The suites "kernels" and "models" hold the HLO
of the JAX functions; `python -m experiments.natives.lower` writes them.
"""
