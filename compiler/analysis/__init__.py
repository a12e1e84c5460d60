"""Analyses: facts about modules that passes, fusion and codegen ask for; nothing here changes a module."""
