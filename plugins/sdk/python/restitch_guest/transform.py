"""The class an author writes, and what it is given: the context, batches, failures.

Never keeps rows: what `push` returns goes back with the same call. `component` makes the contract's calls of it.
"""

import datetime
import decimal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from . import columns as c
from . import rows as r

#: Rows that `finish` returns in one batch.
BATCH_ROWS = 8_192


class Failure(Exception):
    """Why a transform gives up on the partition. Nothing is published then."""


class ParameterFailure(Failure):
    """A parameter has a value that makes no sense."""


class RowFailure(Failure):
    """A row of the batch that was pushed cannot be taken; `row` counts from 0."""

    def __init__(self, row: int, message: str):
        super().__init__(message)
        self.row = row


@dataclass(frozen=True)
class Parameter:
    """A setting that a dataset may give under `params`. Without a default it has to be given."""

    name: str
    default: str | None = None
    help: str = ""


@dataclass(frozen=True)
class Context:
    """What a transform may know about the run: the same again when the run is replayed."""

    #: The partition's name, such as "2026-05-01".
    partition: str = "2026-05-01"
    #: Start of the partition, inclusive, in UTC microseconds.
    start_micros: int = 1_777_593_600_000_000
    #: End of the partition, exclusive, in UTC microseconds.
    end_micros: int = 1_777_680_000_000_000
    #: The dataset's time zone.
    time_zone: str = "UTC"
    #: The only clock a transform has: the instant the run is pinned to, in UTC microseconds.
    as_of_micros: int = 1_777_680_000_000_000
    #: The only randomness a transform has. The module `random` is seeded with it before `begin`.
    seed: int = 0
    #: Every parameter with its value, defaults filled in.
    parameters: dict[str, str] = field(default_factory=dict)

    @property
    def start(self) -> datetime.datetime:
        """Start of the partition, inclusive."""
        return _instant(self.start_micros)

    @property
    def end(self) -> datetime.datetime:
        """End of the partition, exclusive."""
        return _instant(self.end_micros)

    @property
    def as_of(self) -> datetime.datetime:
        """The only clock a transform has."""
        return _instant(self.as_of_micros)

    def parse(self, name: str, make: Callable[[str], Any]) -> Any:
        """Returns `make(value)` of a parameter; a ValueError becomes a `ParameterFailure`."""
        text = self.parameters[name]
        try:
            return make(text)
        except (ValueError, ArithmeticError) as error:
            raise ParameterFailure(f"{name} = {text!r}: {error}") from None


def _instant(micros: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(microseconds=micros)


class Batch:
    """Rows that were pushed. `input` is the name of the input that they belong to."""

    def __init__(self, input: str, row: type, of: list[r.Field], rows: int, columns: list):
        self.input, self._row, self._fields, self._rows, self._columns = input, row, of, rows, columns

    def __len__(self) -> int:
        return self._rows

    def rows(self) -> Iterator[Any]:
        """Returns the rows, of the type that the input was declared with."""
        values = [self._at(i).to_list() for i in range(len(self._fields))]
        # What `_make` does, without a call of Python for each row.
        return map(partial(tuple.__new__, self._row), zip(*values))

    def column(self, name: str) -> c.Column:
        """Returns one column, by the name of its field."""
        if name not in self._row._fields:
            raise KeyError(f"input {self.input}: {self._row.__name__} has no field {name}")
        return self._at(self._row._fields.index(name))

    def _at(self, i: int) -> c.Column:
        codec, (validity, offsets, values) = self._fields[i].codec, self._columns[i]
        try:
            return _Named(codec, self._rows, validity, memoryview(offsets).cast("i"), codec.view(values), self._fields[i].name)
        except TypeError as error:
            raise c.ColumnError(f"column {self._fields[i].name}: {error}") from None


@dataclass
class _Named(c.Column):
    """A column that knows its name, for errors."""

    label: str

    def to_list(self):
        try:
            return super().to_list()
        except c.ColumnError as error:
            raise c.ColumnError(f"column {self.label}: {error}") from None


class Transform:
    """What an author writes. One object of the class is made for each partition, and sees nothing but that partition."""

    #: ASCII letters, digits, "-", "_" and ".".
    name: ClassVar[str]
    #: The same rows must for ever come out of one version.
    version: ClassVar[str]
    #: One sentence on what it does.
    summary: ClassVar[str] = ""
    #: Names and row types. The first is the windowed input; the others are lookups, pushed whole before it.
    inputs: ClassVar[dict[str, type]]
    #: The row type that it returns.
    output: ClassVar[type]
    #: The fields of `output` that identify a row inside its partition.
    key: ClassVar[list[str]]
    #: The parameters it knows.
    parameters: ClassVar[list[Parameter]] = []

    def begin(self, context: Context) -> None:
        """Starts a partition."""

    def push(self, batch: Batch) -> Iterable | r.Columns | None:
        """Takes a batch of one input. Rows that are returned, or yielded, are written."""

    def finish(self) -> Iterable | r.Columns | None:
        """Returns, or yields, the rows that are left."""


class Runner:
    """Drives a transform through one partition, in the contract's terms: plain buffers."""

    def __init__(self, transform: type[Transform]):
        self.transform = transform
        self.inputs = [(name, row, r.fields(row)) for name, row in transform.inputs.items()]
        self.output = r.fields(transform.output)
        names = {of: f.name for of, f in zip(transform.output._fields, self.output)}
        self.key = [names.get(part, part) for part in transform.key]
        self._state: Transform | None = None
        self._rest: Iterator | None = None

    def begin(self, context: Context) -> None:
        decimal.setcontext(c.EXACT.copy())
        if "random" in sys.modules:
            sys.modules["random"].seed(context.seed)
        self._state, self._rest = self.transform(), None
        self._state.begin(context)

    def push(self, input: int, rows: int, columns: list) -> tuple[int, list] | None:
        decimal.setcontext(c.EXACT.copy())
        name, row, of = self.inputs[input]
        returned = self._state.push(Batch(name, row, of, rows, columns))
        if isinstance(returned, r.Columns):
            return self._filled(returned.encode(self.output))
        return self._of_rows(returned)

    def finish(self) -> tuple[int, list] | None:
        decimal.setcontext(c.EXACT.copy())
        if self._rest is None:
            returned = self._state.finish()
            if isinstance(returned, r.Columns):
                self._rest = iter(())
                return self._filled(returned.encode(self.output))
            self._rest = iter(returned or ())
        return self._of_rows(islice(self._rest, BATCH_ROWS))

    def _of_rows(self, returned: Iterable | None) -> tuple[int, list] | None:
        rows = [] if returned is None else list(returned)
        wrong = next((row for row in rows if not isinstance(row, tuple) or len(row) != len(self.output)), None)
        if wrong is not None:
            raise TypeError(f"{wrong!r} is returned, and is no {self.transform.output.__name__}")
        return self._filled((len(rows), r.encode(self.output, rows) if rows else []))

    @staticmethod
    def _filled(batch: tuple[int, list]) -> tuple[int, list] | None:
        return batch if batch[0] > 0 else None


def run(transform: type[Transform], inputs: dict[str, list], context: Context | None = None, **parameters: str) -> list:
    """Runs a transform natively, for tests: rows by the name of their input, the first input's last."""
    known = {p.name: p.default for p in transform.parameters}
    given = {name: parameters.get(name, default) for name, default in known.items()}
    missing = [name for name, value in given.items() if value is None] + [name for name in parameters if name not in known]
    if missing:
        raise ParameterFailure(f"missing or not known: {', '.join(missing)}")
    runner, found = Runner(transform), []
    base = context or Context()
    runner.begin(Context(**{**base.__dict__, "parameters": {**given, **base.parameters}}))

    def take(batch):
        if batch is not None:
            made = Batch("output", transform.output, runner.output, *batch)
            found.extend(made.rows())
        return batch is not None

    for at in [*range(1, len(runner.inputs)), 0]:
        name, _, of = runner.inputs[at]
        rows = inputs.get(name, [])
        if rows:
            take(runner.push(at, len(rows), r.encode(of, rows)))
    while take(runner.finish()):
        pass
    return found
