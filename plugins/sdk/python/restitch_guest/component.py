"""Makes the contract's exports of an author's class: `Transform = component(app)` in the module that is componentized.

Never imported natively. An exception that nobody caught is logged with its traceback, and then the instance dies.
"""

import os
import sys
import time

from componentize_py_types import Err
from wit_world.imports import log as host
from wit_world.imports import types as wit

from . import columns as c
from . import log
from .transform import Context, ParameterFailure, Failure, RowFailure, Runner, Transform

_LEVELS = {"debug": host.Level.DEBUG, "info": host.Level.INFO, "warn": host.Level.WARN, "error": host.Level.ERROR}


def component(app) -> type:
    """Returns the class that componentize-py exports, for the one `Transform` that the module `app` defines."""
    log.sink = lambda level, message: host.log(_LEVELS[level], message)
    _forbid_clock_and_entropy()
    found = [x for x in vars(app).values() if isinstance(x, type) and issubclass(x, Transform) and x.__module__ == app.__name__]
    if len(found) != 1:
        raise TypeError(f"{app.__name__}.py defines {len(found)} classes that are a restitch_guest.Transform, not one")
    folder = os.path.dirname(app.__file__)
    runner = Runner(found[0])
    descriptor = _descriptor(found[0], runner)

    def guarded(call, *arguments):
        try:
            return call(*arguments)
        except Failure as failure:
            raise Err(_failure(failure)) from None
        except BaseException as error:
            _report(error, folder)
            raise

    class Exports:
        def describe(self):
            return descriptor

        def begin(self, context):
            values = {**vars(context), "parameters": dict(context.parameters)}
            guarded(lambda: runner.begin(Context(**values)))

        def push(self, input, batch):
            columns = [(x.validity, x.offsets, x.values) for x in batch.columns]
            return _batch(guarded(runner.push, input, batch.rows, columns))

        def finish(self):
            return _batch(guarded(runner.finish))

    return Exports


def _batch(made):
    if made is None:
        return None
    rows, columns = made
    return wit.Batch(rows, [wit.Column(*buffers) for buffers in columns])


def _failure(failure: Failure):
    if isinstance(failure, RowFailure):
        return wit.Failure_Row(wit.RowFailure(failure.row, str(failure)))
    if isinstance(failure, ParameterFailure):
        return wit.Failure_Parameters(str(failure))
    return wit.Failure_Other(str(failure))


def _report(error: BaseException, folder: str) -> None:
    # Not by the module traceback: it looks for sources, and a component has no files.
    lines, at = [], error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if code.co_filename.startswith(folder + "/") and "/restitch_guest/" not in code.co_filename:
            lines.append(f"{code.co_filename[len(folder) + 1 :]}:{at.tb_lineno}, in {code.co_name}")
        at = at.tb_next
    # The host shows the last line as the reason; those before it are for the author.
    for line in lines[:-1]:
        log.error(f"called from {line}")
    what = type(error).__name__ + (f": {error}" if str(error) else "")
    log.error(f"{what} ({lines[-1]})" if lines else what)


def _descriptor(transform: type[Transform], runner: Runner):
    parameters = [wit.Parameter(p.name, p.default, p.help) for p in transform.parameters]
    inputs = [wit.Input(name, _fields(of)) for name, _, of in runner.inputs]
    output = _fields(runner.output)
    return wit.Descriptor(transform.name, transform.version, transform.summary, inputs, output, runner.key, parameters)


def _fields(of: list) -> list:
    return [wit.Field(f.name, _data_type(f.codec), f.nullable) for f in of]


def _data_type(codec: c.Codec):
    if isinstance(codec, c.Decimals):
        return wit.DataType_Decimal(wit.DecimalType(codec.digits.precision, codec.digits.scale))
    return getattr(wit, "DataType_" + codec.tag.capitalize())()


def _forbid_clock_and_entropy() -> None:
    """Without this, a look at the clock ends the instance, and nobody hears why."""

    def no_clock(*_, **__):
        raise RuntimeError("a transform has no clock: use context.as_of")

    def no_entropy(*_, **__):
        raise RuntimeError("a transform has no randomness but context.seed, which the module random is seeded with")

    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "sleep"):
        setattr(time, name, no_clock)
    for name in ("localtime", "gmtime"):
        real = getattr(time, name)
        setattr(time, name, lambda *seconds, real=real: real(*seconds) if seconds and seconds[0] is not None else no_clock())
    os.urandom = no_entropy
    if "random" in sys.modules:
        sys.modules["random"]._urandom = no_entropy
