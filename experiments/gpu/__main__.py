"""`python -m experiments.gpu`."""

from experiments.gpu.command import main
from experiments.module_command import plain_errors

if __name__ == "__main__":
    with plain_errors():
        main()
