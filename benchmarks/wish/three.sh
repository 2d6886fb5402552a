#!/bin/bash
# bash benchmarks/wish/three.sh OUT DATA: another number of processes, and fifteen seeds as one
OUT=$1; DATA=$2; export PYTHONPATH=src:. OMP_NUM_THREADS=1
nvidia-cuda-mps-control -d 2> /dev/null
bash benchmarks/wish/table.sh "$OUT" "$DATA" 11
echo quit | nvidia-cuda-mps-control
timeout 150 python -m benchmarks.gpu --quick > "$OUT/gpu.txt" 2>&1
