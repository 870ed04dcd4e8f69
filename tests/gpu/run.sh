#!/usr/bin/env bash
# Everything that needs a GPU, in six minutes: kernels, whole models, speed. What is done is printed as it is done.
#
#   tests/gpu/run.sh [WHEELS] [OUT]
#
# WHEELS: a folder with the wheels that the machine lacks; OUT: a folder for logs and figures (default: a new one).
#
# The machine needs Python 3.11 or newer with torch (built for CUDA), triton, numpy, safetensors, transformers, pytest,
# pytest-timeout, hypothesis and scipy; with pytest-xdist tests run side by side. What an engine in one process imports
# beside these is msgspec and structlog (no pyzmq, no click, no HTTP). Where they are missing and nothing can be
# downloaded, wheels for that machine's Python travel in a folder, and are put in place from it:
#
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
#       --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 -d WHEELS msgspec==0.23.0 structlog==26.1.0
#
# octavo itself is found by PYTHONPATH. Nothing is written into the tree. SECONDS_IN_ALL changes the time limit.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheels=${1:-}
out=${2:-$(mktemp -d)}
limit=${SECONDS_IN_ALL:-350}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
status=0
mkdir -p "$out"
cd "$root" || exit 1

if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$wheels"/*.whl || exit 1
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
unset TRITON_INTERPRET
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$out/triton-cache}"

# stage NAME MOST_SECONDS COMMAND…: within the time that is left; the log goes to a file, what matters to the screen.
stage() {
    local name=$1 most=$2 left=$((limit - SECONDS)) started=$SECONDS code
    shift 2
    if [ "$left" -lt 10 ]; then
        echo "== $name: no time left"
        status=1
        return
    fi
    [ "$most" -gt "$left" ] && most=$left
    echo "== $name (at most $most s)"
    timeout --foreground -s INT -k 5 "$most" "$@" 2>&1 | tee "$out/$name.log" | sed -u -e "/ PASSED /d" -e "/ PASSED$/d" -e "/^tests.* $/d"
    code=$?
    [ "$code" -eq 0 ] || status=1
    echo "== $name: exit status $code after $((SECONDS - started)) s"
}

side_by_side=()
if "$python" -c "import xdist" 2>/dev/null && [ "$(nproc)" -ge 4 ]; then
    side_by_side=(-n "$(($(nproc) - 2))" --dist worksteal)
fi
tests=("$python" -m pytest -vv --tb=short -p no:cacheprovider --device "$device" --durations=10)

stage machine 30 "$python" - <<'PYTHON'
import platform, torch, triton
print(f"Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}")
import msgspec, structlog, transformers
print(f"msgspec {msgspec.__version__}, structlog {structlog.__version__}, transformers {transformers.__version__}")
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, sm_{properties.major}{properties.minor}, {properties.multi_processor_count} multiprocessors")
PYTHON
# While one small model runs (what fails there fails everywhere), the large ones' kernels are compiled into the cache.
capability=$("$python" -c "import torch; print('%d%d' % torch.cuda.get_device_capability())" 2>/dev/null || echo 90)
timeout -k 5 120 "$python" -m kernels.triton.compile_ahead --capability "$capability" >"$out/compiled.log" 2>&1 &
compiling=$!
stage first 60 "${tests[@]}" -x tests/gpu/test_gpu_engine.py -k "transformers"
wait "$compiling"
echo "== compiled ahead, exit status $?:"
grep "^sm_[0-9]*: \|not compile\|Error" "$out/compiled.log" | cut -c1-300 | head -n 20
stage tests 120 "${tests[@]}" "${side_by_side[@]}" tests/gpu --ignore tests/gpu/test_gpu_memory.py \
    --ignore tests/gpu/test_gpu_bench.py
models=(llama-8b llama-1b smollm2-135m)
[ "$device" = cpu ] && models=(tiny)
stage "bench-${models[0]}" 110 "$python" tests/gpu/bench_gpu.py --device "$device" --model "${models[0]}" \
    --json "$out/${models[0]}.json"
stage memory 45 "${tests[@]}" tests/gpu/test_gpu_memory.py
for model in "${models[@]:1}"; do
    stage "bench-$model" 70 "$python" tests/gpu/bench_gpu.py --device "$device" --model "$model" --json "$out/$model.json"
done
echo "== all: status $status after $SECONDS s; logs in $out"
exit "$status"
