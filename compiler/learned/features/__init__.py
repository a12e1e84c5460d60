"""What policies see: programs, candidates and decisions as numbers."""
