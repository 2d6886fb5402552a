#!/bin/bash
# sh benchmarks/wish/one.sh OUT DATA
OUT=$1; DATA=$2; export PYTHONPATH=src:. OMP_NUM_THREADS=1
python -m benchmarks.gpu_steps --all --data-root "$DATA" > "$OUT/steps.jsonl" 2> "$OUT/steps.err"
python -m benchmarks.gpu_rows --data-root "$DATA" finetune ewc-sample mas lwf ours ours-sampled ours-exact twp twp-cglb joint \
    > "$OUT/rows.jsonl" 2> "$OUT/rows.err"
nvidia-cuda-mps-control -d
mkdir -p /tmp/samples
nvidia-smi --query-gpu=timestamp,utilization.gpu,utilization.memory,clocks.sm --format=csv -l 1 > "$OUT/smi.csv" & SMI=$!
begin=$(date +%s.%N)
SAMPLE_DIR=/tmp/samples PYTHONPATH=benchmarks/wish:src:. python -m evergraph paper --protocol paper --dataset coauthor-cs --seeds 3 \
    --no-studies --device cuda --jobs 7 --data-root "$DATA" --out /tmp/table > "$OUT/table.txt" 2>&1
echo "seconds $(echo "$(date +%s.%N) - $begin" | bc)" >> "$OUT/table.txt"
kill $SMI
echo quit | nvidia-cuda-mps-control
(cd /tmp && tar czf "$OUT/samples.tgz" samples)
python - <<'P' > "$OUT/cells.txt"
import json, glob
for path in sorted(glob.glob("/tmp/table/**/result.json", recursive=True)):
    found = json.load(open(path)); print(path[11:-12], round(found["seconds"], 1), found["steps"][0], found["ap"])
P
