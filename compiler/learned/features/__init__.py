"""Features: programs, fusions, loops and passes described as numbers for learned policies."""
