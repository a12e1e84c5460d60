"""Infrastructure of passes: the protocol, rewrite rules, pattern helpers, pipelines and the registry."""
