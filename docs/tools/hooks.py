"""Hooks of MkDocs: they add the generated pages and put generated listings into the written ones."""
