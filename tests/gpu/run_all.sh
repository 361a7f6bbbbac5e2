#!/usr/bin/env bash
# On a GPU machine without a package registry: install the carried wheels, run the GPU tests and the notebooks.
# Writes what it found to $OUT (or out/gpu). Every part is bounded in time.
set -uo pipefail
out=${OUT:-out/gpu}
mkdir -p "$out"
if compgen -G ".whl/*.whl" >/dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .whl/*.whl || exit 1
fi
export PYTHONPATH="/tmp/site:$PWD" OMP_NUM_THREADS=8
python3 -c 'import torch; print(torch.__version__, torch.cuda.device_count(), torch.cuda.get_device_name(0))'
timeout "${TEST_SECONDS:-240}" python3 -m pytest -v --tb=short -p no:cacheprovider "${@:-tests/gpu}" 2>&1 \
  | grep -v "select_algorithm\|^SKIPPED" >"$out/tests.txt"
grep "FAILED\|ERROR\|^E  \| passed\| failed" "$out/tests.txt" | cut -c1-200 | head -60
python3 -m ipykernel install --prefix /tmp/k --name python3 >/dev/null 2>&1
export JUPYTER_PATH=/tmp/k/share/jupyter
gpus=$(python3 -c 'import torch; print(min(2, torch.cuda.device_count()))')
for notebook in ${NOTEBOOKS:-01_quickstart 02_ranks}; do
  timeout 120 python3 -m papermill -k python3 --cwd notebooks "notebooks/$notebook.ipynb" "$out/$notebook.ipynb" \
    --log-output --no-progress-bar -p device cuda -p backend nccl -p world_size "$gpus" 2>&1 \
    | grep -v "select_algorithm\|^Executing\|^Ending\|^$" | tail -"${LINES_SHOWN:-14}" | cut -c1-200
done
