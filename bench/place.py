"""Where everything of the benchmark is, and how it comes to be there from nothing: environments, data, binaries.

All of it lies in bench/.work, or where RESTITCH_BENCH_WORK says. RESTITCH names the command to measure; without it a release
build is made.
"""
import functools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
WORK = Path(os.environ.get("RESTITCH_BENCH_WORK", BENCH / ".work")).resolve()

DUCKDB = "duckdb==1.5.5"
ENVIRONMENTS = {
    "core": [
        DUCKDB, "duckdb-extension-ducklake==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5", "pytz==2026.6",
        "pyarrow==26.0.1", "numpy==2.4.6",
    ],
    "tools": ["duckdb-cli==1.5.5", "matplotlib==3.11.2"],
    "dbt": ["dbt-core==1.11.16", "dbt-duckdb==1.11.1", DUCKDB],
    "sqlmesh": ["sqlmesh==0.236.4", DUCKDB],
}

# Rows and days. T has a few rows in each of many days, like T100, T400, …: so many days with 274 rows each.
SIZES = {"XS": (20_000, 5), "S": (1_000_000, 30), "M": (10_000_000, 90), "T": (1_000_000, 3_650)}


def say(text):
    print(text, file=sys.stderr, flush=True)


def size(name):
    """Rows and days of a size; ROWSxDAYS is one too."""
    if name in SIZES:
        return SIZES[name]
    if name[:1] == "T" and name[1:].isdigit():
        return 274 * int(name[1:]), int(name[1:])
    rows, _, days = name.partition("x")
    return int(rows), int(days)


def call(command, **more):
    """Runs a command of the set-up; its output is shown only if it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


@functools.cache
def environment(name):
    """The folder of a Python environment, made if it is not there or has other packages."""
    folder, packages = WORK / "venv" / name, " ".join(ENVIRONMENTS[name])
    ready = folder / "ready"  # written last: an interrupted set-up is not taken for a finished one
    if not ready.exists() or ready.read_text() != packages:
        say(f"setting up {packages}")
        call([sys.executable, "-m", "venv", "--clear", folder])
        call([folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *ENVIRONMENTS[name]])
        ready.write_text(packages)
    return folder


def python(name):
    return str(environment(name) / "bin/python")


def data(name, formats=("parquet",)):
    """The folder with the data of a size, in at least these formats."""
    folder = WORK / "data" / name
    if not (folder / "meta.json").exists() or any(not (folder / f).is_dir() for f in formats):
        say(f"generating {name}")
        asked = ["hours"] if name == "hours" else [*size(name), ",".join(formats)]
        call([python("core"), BENCH / "orders.py", folder, *asked])
    return folder


def meta(name):
    return json.loads((data(name) / "meta.json").read_text())


@functools.cache
def native():
    """The native program, built in a workspace and a target folder of its own."""
    target = WORK / "native"
    say("building the native peer")
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", BENCH / "native/Cargo.toml"]
    call(build, env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    return str(target / "release/native")


def restitch():
    """The command that is measured."""
    if named := os.environ.get("RESTITCH"):
        return str(Path(named).resolve())
    say("building restitch")
    call(["cargo", "build", "--release", "--locked", "--quiet"], cwd=ROOT)
    return str(ROOT / "target/release/restitch")


def machine():
    """What a figure was measured on."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.processor())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{model}, {os.cpu_count()} cores, {memory / 2**30:.0f} GiB, {platform.system()} {platform.release()}"
