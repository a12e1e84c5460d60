"""Code generation: a fusion becomes a loop nest, the nest is scheduled, the schedule is printed as C or CUDA C++."""
