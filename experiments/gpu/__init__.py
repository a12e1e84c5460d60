"""Checks and measurements on one GPU: `python -m experiments.gpu`; see docs/gpu.md.

Each part writes one JSON file. The process of the command never uses the GPU itself: kernels run in workers, because a
kernel that accesses memory it does not own ends the CUDA context of its process.
"""
