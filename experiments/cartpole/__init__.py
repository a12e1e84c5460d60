"""The Cartpole simulator written by hand in C, and a command that times it beside the compilers."""
