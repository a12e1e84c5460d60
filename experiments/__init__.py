"""Training runs, evaluation, reports and the command line."""
