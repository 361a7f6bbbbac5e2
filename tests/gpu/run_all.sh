#!/usr/bin/env bash
# On a GPU machine without a package registry: install the carried wheels, run the GPU tests and the quickstart.
# Writes what it found to $OUT (or out/gpu). Every part is bounded in time.
set -uo pipefail
out=${OUT:-out/gpu}
mkdir -p "$out"
if compgen -G ".whl/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl || exit 1
fi
export PYTHONPATH="/tmp/site:$PWD" OMP_NUM_THREADS=8 TORCH_LOGS=-inductor
python3 -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name(0))'
timeout "${TEST_SECONDS:-240}" python3 -m pytest -q -p no:cacheprovider tests/gpu "$@" 2>&1 | grep -v select_algorithm | tail -60 | tee "$out/tests.txt"
python3 -m ipykernel install --prefix /tmp/k --name python3 >/dev/null 2>&1
export JUPYTER_PATH=/tmp/k/share/jupyter
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
run() {
  timeout 150 python3 -m papermill -k python3 --cwd notebooks notebooks/01_quickstart.ipynb "$out/quickstart_$1.ipynb" \
    --log-output --no-progress-bar -p device cuda -p backend "$2" -p world_size "$3" 2>&1 | grep -v select_algorithm | tail -45
}
run "nccl_$gpus" nccl "$((gpus > 2 ? 2 : gpus))"
