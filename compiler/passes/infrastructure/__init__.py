"""What passes are made of: the protocol, rewrite rules, pattern helpers, pipelines and the registry."""
