"""Names of the files in a run's folder; `evergraph.experiments.run_folder` says what they hold."""

RUN = "run.json"  # what is run, and on which graph; written first
MATRIX = "matrix.json"  # in the folder of each seed: what was measured so far
RESULT = "result.json"  # the result of all seeds; written last
