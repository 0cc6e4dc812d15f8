"""Lines for the partition's log: the last ones are kept in the run's manifest.

Never changes a result. Outside of a component the lines go to stderr.
"""

import sys


def _to_stderr(level: str, message: str) -> None:
    print(f"{level}: {message}", file=sys.stderr)


#: Where lines go; `component` puts the host's function here.
sink = _to_stderr


def debug(message: str) -> None:
    """Adds a line for the author of the transform."""
    sink("debug", str(message))


def info(message: str) -> None:
    """Adds a line worth knowing."""
    sink("info", str(message))


def warn(message: str) -> None:
    """Adds a line on something odd that leaves the result standing."""
    sink("warn", str(message))


def error(message: str) -> None:
    """Adds a line on why the partition fails."""
    sink("error", str(message))
