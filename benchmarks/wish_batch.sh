# Temporary: the last batch of branch table, about 330 s on a GPU. Run from the repository root; results go to $OUT.
set -u
export PYTHONPATH=src:.
ALL=bags,compiled,blas,anchors,structure,capture,sparse,frequent,stack,adam,fused,tf32,shared
WITHOUT=bags,compiled,blas,anchors,structure,capture,sparse,stack,adam,fused,tf32,shared
at() { echo "== $1 at $(date +%T.%N | cut -c1-10)" | tee -a "$OUT/times.txt"; }
at tests
timeout 90 python -m pytest tests/test_fast_paths.py tests/test_side_by_side.py tests/test_known_trainings.py -n 0 -q -p no:cacheprovider \
    -k "frequent_columns_on or by_pieces_on or (captured and lwf) or as_one_on_a_gpu" > "$OUT/tests.txt" 2>&1
tail -3 "$OUT/tests.txt"
at tune
timeout 100 python -m benchmarks.wish_tune data "$OUT/best.txt" > "$OUT/tune.jsonl" 2> "$OUT/tune.err"
BEST=$(cat "$OUT/best.txt" 2>/dev/null || echo "SHARE=none WIDEST=256 TILE=8192")
echo "chosen: $BEST" | tee -a "$OUT/times.txt"
eval "$BEST"
if [ "$SHARE" = none ]; then export EVERGRAPH_FAST=$WITHOUT; else
    export EVERGRAPH_FAST=$ALL
    sed -i "s/^SHARE = [0-9.]*/SHARE = $SHARE/" src/evergraph/core/frequent_columns.py
fi
sed -i "s/^TILE = [0-9*]*/TILE = $TILE/; s/^WIDEST = [0-9]*/WIDEST = $WIDEST/" src/evergraph/core/row_kernel.py
nvidia-cuda-mps-control -d
at table
timeout 240 python -m evergraph paper --dataset coauthor-cs --seeds 3 --data-root data --device cuda --jobs 9 \
    --protocol paper --no-studies --out /tmp/B > "$OUT/tableB.txt" 2> "$OUT/tableB.err"
at table-done
tail -4 "$OUT/tableB.err"
(cd /tmp && tar czf "$OUT/B.tgz" B)
echo quit | nvidia-cuda-mps-control
at rows
timeout 60 python -m benchmarks.gpu_rows --data-root data --tasks 5 --kernels 14 finetune lwf ours-exact joint > "$OUT/rows.jsonl" 2> "$OUT/rows.err"
sed -i "s/^WORTH_OF_EDGES = 2\*\*15/WORTH_OF_EDGES = 2**60/" src/evergraph/core/needed_rows.py
timeout 30 python -m benchmarks.gpu_rows --data-root data --tasks 5 --kernels 4 finetune > "$OUT/rows-all-edges.jsonl" 2>> "$OUT/rows.err"
sed -i "s/^WORTH_OF_EDGES = 2\*\*60/WORTH_OF_EDGES = 2**15/" src/evergraph/core/needed_rows.py
at fifteen
timeout 80 python -c "
import json, torch
from benchmarks.gpu import side_by_side_figures
for quick in (True, True, False):
    print(json.dumps(side_by_side_figures(torch.device('cuda'), quick)), flush=True)" > "$OUT/fifteen.jsonl" 2>&1
at steps
timeout 60 python -m benchmarks.gpu_steps --data-root data --all > "$OUT/steps.jsonl" 2> "$OUT/steps.err"
at end
