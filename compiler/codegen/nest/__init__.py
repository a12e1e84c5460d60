"""The loop IR: index arithmetic, typed scalar ops, statements."""
