#!/bin/sh
# Puts Debian's prometheus and promtool into build/prometheus, unless the system has them. The package is unpacked, not
# installed: that needs no root, and an installed one would start a server. Only where apt has no list of packages yet
# it has to be root.
set -eu
cd "$(dirname "$0")/.."

folder=build/prometheus
fail() {
    echo "octavo: $*" >&2
    exit 1
}
is_there() { command -v "$1" >/dev/null 2>&1; }

is_there prometheus && is_there promtool && exit 0
[ -x "$folder/prometheus" ] && [ -x "$folder/promtool" ] && exit 0
is_there apt-get && is_there dpkg-deb || fail "the tests of the dashboards need prometheus and promtool in PATH"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
download() { (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root prometheus </dev/null >/dev/null 2>&1); }
echo "octavo: unpacking Debian's prometheus into $folder"
download || {
    [ "$(id -u)" = 0 ] && apt-get update -qq </dev/null >/dev/null && download
} || fail "apt-get could not download prometheus; apt-get update may help"
dpkg-deb --extract "$work"/prometheus_*.deb "$work/unpacked"
mkdir -p "$folder"
# The last one is there: both are.
mv "$work/unpacked/usr/bin/prometheus" "$work/unpacked/usr/bin/promtool" "$folder"
