"""{{name}}: orders and their total per customer. Change it into what you need."""

from decimal import Decimal
from typing import Annotated, NamedTuple, Optional

from restitch_guest import Batch, Context, Digits, Transform


class Order(NamedTuple):
    """What is read: columns of the source, by name. `Optional` where there may be nulls."""

    customer_id: str
    amount: Optional[Annotated[Decimal, Digits(18, 2)]]


class Total(NamedTuple):
    """What is written: the columns of the derived table."""

    customer_id: str
    orders: int
    total: Annotated[Decimal, Digits(38, 2)]


class {{Camel}}(Transform):
    """One object of it sees one partition, and nothing else."""

    name = "{{name}}"
    version = "1.0.0"
    summary = "Orders and their total per customer"
    inputs = {"orders": Order}
    output = Total
    key = ["customer_id"]

    def begin(self, context: Context):
        # By customer: orders, and their total.
        self.totals: dict[str, tuple[int, Decimal]] = {}

    def push(self, batch: Batch):
        for order in batch.rows():
            orders, total = self.totals.get(order.customer_id, (0, Decimal(0)))
            self.totals[order.customer_id] = (orders + 1, total + (order.amount or 0))

    def finish(self):
        for customer_id, (orders, total) in self.totals.items():
            yield Total(customer_id, orders, total)
