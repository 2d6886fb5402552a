"""Speed benchmarks, which need a clone of the repository: `suite` has the figures of `evergraph bench`."""

import evergraph  # noqa: F401  # before torch, as on the command line (`evergraph.program`)
