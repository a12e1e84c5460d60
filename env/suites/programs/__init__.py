"""The suite "corpus": thousands of programs in families, made by `hlogym suites build`.

Families written in JAX (`rows`, `networks`, ...) and in PyTorch (`torch_layers`) yield their members over sizes,
types and variants. `cutter` cuts subgraphs out of them, and `generator` combines motifs at random. `splits` assigns
each family to a split, and `manifest.json` lists every program with its fingerprint; the programs themselves are in
the user's cache folder. Only building imports JAX and PyTorch.
"""
