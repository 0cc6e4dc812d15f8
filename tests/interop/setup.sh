#!/bin/sh
# Makes a Python environment with the real DuckDB and its ducklake and sqlite extensions, and prints the path of
# its python. A second call finds it ready and does nothing. The packages are the only things that are fetched.
#
#     tests/interop/setup.sh [FOLDER]        default: target/interop-venv
set -eu

packages="duckdb==1.5.5 duckdb-extension-ducklake==1.5.5 duckdb-extension-sqlite-scanner==1.5.5 pytz"

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/../../target/interop-venv}
mkdir -p "$venv"
venv=$(cd "$venv" && pwd)
python=$venv/bin/python
ready=$venv/ready

# Two test runs may start at once: the second waits for the first, where flock exists.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$venv/lock"
    flock 9
fi

# `ready` is written last, so an interrupted setup is not taken for a finished one, and other packages start anew.
if [ "$(cat "$ready" 2>/dev/null || true)" != "$packages" ]; then
    rm -f "$ready"
    python3 -m venv "$venv" >&2
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet --disable-pip-version-check $packages >&2
    "$python" -c 'import duckdb, pytz' >&2
    printf '%s' "$packages" >"$ready"
fi
echo "$python"
