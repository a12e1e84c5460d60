"""What the documentation generates from the code: listings, the pass catalogue, the command line reference."""
