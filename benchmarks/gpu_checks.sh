#!/bin/sh
# What only a GPU can show, in a few minutes: captured steps against eager ones for every form of step, several seeds
# as one against each alone, the kernels of a step, and the GPU's figures. Run from a clone of the repository:
#
#     sh benchmarks/gpu_checks.sh
set -u
python -m pytest tests/test_fast_paths.py tests/test_side_by_side.py -n 0 -q \
    -k "gpu or captured or replayed or elsewhere" --durations=5
python -m benchmarks.gpu_steps
python -m benchmarks.gpu --quick
