"""Speed benchmarks, which need a clone of the repository: `suite` has the figures of `evergraph bench`."""
