#!/bin/bash
# bash benchmarks/wish/table.sh OUT DATA JOBS: the table with MPS (started before), utilization beside it
OUT=$1; DATA=$2; JOBS=$3; export PYTHONPATH=src:. OMP_NUM_THREADS=1
nvidia-smi --query-gpu=timestamp,utilization.gpu,utilization.memory --format=csv -l 1 > "$OUT/smi-$JOBS.csv" & SMI=$!
begin=$(date +%s)
python -m evergraph paper --protocol paper --dataset coauthor-cs --seeds 3 --no-studies --device cuda --jobs "$JOBS" \
    --data-root "$DATA" --out "/tmp/table-$JOBS" > "$OUT/table-$JOBS.txt" 2>&1
echo "seconds $(($(date +%s) - begin))" >> "$OUT/table-$JOBS.txt"
kill $SMI
tail -1 "/tmp/table-$JOBS/commands.jsonl" >> "$OUT/table-$JOBS.txt"
python - "/tmp/table-$JOBS" <<'P' > "$OUT/cells-$JOBS.txt"
import json, glob, sys
for path in sorted(glob.glob(sys.argv[1] + "/**/result.json", recursive=True)):
    found = json.load(open(path)); print(path[len(sys.argv[1]):-12], round(found["seconds"], 1), found["steps"][0], found["ap"])
P
