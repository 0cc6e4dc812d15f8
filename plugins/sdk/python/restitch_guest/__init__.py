"""The SDK for authors of restitch transforms: typed rows in, typed rows out.

Never does any I/O: a transform has its input, its parameters and a log, and nothing else.
It sits between your code and the contract in wit/restitch-transform-1.0.0. Start with `Transform`.
"""

from . import log
from .columns import Column, ColumnError, Digits
from .rows import Columns, Days, Float32, Int32, Json, Named, TimeMicros, TimestampMicros
from .transform import Batch, Context, Failure, Parameter, ParameterFailure, RowFailure, Transform, run

__all__ = [
    "Batch",
    "Column",
    "ColumnError",
    "Columns",
    "Context",
    "Days",
    "Digits",
    "Failure",
    "Float32",
    "Int32",
    "Json",
    "Named",
    "Parameter",
    "ParameterFailure",
    "RowFailure",
    "TimeMicros",
    "TimestampMicros",
    "Transform",
    "log",
    "run",
]
