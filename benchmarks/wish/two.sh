#!/bin/bash
# bash benchmarks/wish/two.sh OUT DATA
OUT=$1; DATA=$2; export PYTHONPATH=src:. OMP_NUM_THREADS=1
ROWS="finetune ewc-sample lwf ours ours-exact twp joint"
timeout 170 python -m pytest -o addopts="" -q -p no:cacheprovider tests/test_fast_paths.py tests/test_side_by_side.py -k gpu --durations=5 \
    > "$OUT/tests.txt" 2>&1
python -m benchmarks.gpu_steps --all --data-root "$DATA" > "$OUT/steps.jsonl" 2> "$OUT/steps.err"
python -m benchmarks.gpu_rows --data-root "$DATA" $ROWS > "$OUT/rows.jsonl" 2> "$OUT/rows.err"
python -c "import sys, evergraph.core.needed_rows as n; n.WORTH = 2**62; from benchmarks.gpu_rows import main; main()" \
    --data-root "$DATA" finetune ours-exact joint > "$OUT/rows-all-read.jsonl" 2>> "$OUT/rows.err"
nvidia-cuda-mps-control -d
bash benchmarks/wish/table.sh "$OUT" "$DATA" 7
