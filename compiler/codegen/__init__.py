"""Code generation: lower a fusion to a loop nest, schedule the nest, and print it as C or CUDA C++."""
