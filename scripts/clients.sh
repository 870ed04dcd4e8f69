#!/bin/sh
# Makes .venv-clients, with the clients of constraints-clients.txt, and the npm packages of tests/clients/node; or
# finds that both are there already. Needs .venv, whose Python and whose octavo it uses.
# Node and npm come from Debian's packages when they are missing, if this is root. The stamp is written last.
set -eu
cd "$(dirname "$0")/.."

root=$(pwd -P)
venv=$root/.venv-clients
node=tests/clients/node
stamp=$venv/octavo-stamp

fail() {
    echo "octavo: $*" >&2
    exit 1
}

is_there() { command -v "$1" >/dev/null 2>&1; }

missing=
is_there node || missing="$missing nodejs"
is_there npm || missing="$missing npm"
is_there curl || missing="$missing curl"
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ] || ! is_there apt-get; then
        fail "the tests of clients need$missing; on Debian: apt install$missing"
    fi
    echo "octavo: apt-get install$missing"
    # shellcheck disable=SC2086  # a list of packages
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
        </dev/null >/dev/null || fail "apt-get could not install$missing"
fi

wanted=$({ echo "$root" && .venv/bin/python --version && node --version &&
    cat scripts/clients.sh constraints-clients.txt "$node/package.json" "$node/package-lock.json"; } | sha256sum)
[ -f "$stamp" ] && [ -d "$node/node_modules" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

echo "octavo: installing the clients into .venv-clients"
rm -rf "$venv" "$node/node_modules"
.venv/bin/python -m venv "$venv"
echo '*' >"$venv/.gitignore"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# The file is all that is needed: nothing has to be resolved, and nobody brings torch. Most modules are never imported,
# so none is compiled beforehand.
"$venv/bin/python" -m pip install -qq --no-deps --no-compile --requirement constraints-clients.txt ||
    fail "pip could not install constraints-clients.txt"
# The tests start octavo as they would find it in their own environment.
ln -s ../../.venv/bin/octavo "$venv/bin/octavo"
npm ci --prefix "$node" --silent --no-audit --no-fund --ignore-scripts </dev/null ||
    fail "npm could not install $node/package-lock.json"
echo "$wanted" >"$stamp"
