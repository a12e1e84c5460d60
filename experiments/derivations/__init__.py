"""How numbers that stand in the code were derived."""
