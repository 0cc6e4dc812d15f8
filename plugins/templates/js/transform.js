// {{name}}: orders and their total per customer. Change it into what you need.
// @ts-check

import { Decimal, row, t, transform } from './restitch/restitch.js';

/** What is read: columns of the source, by name. `nullable` where there may be nulls. */
const Order = row({
  customer_id: t.string,
  amount: t.nullable(t.decimal(18, 2)),
});

/** What is written: the columns of the derived table. */
const Total = row({
  customer_id: t.string,
  orders: t.int64,
  total: t.decimal(38, 2),
});

export default transform({
  name: '{{name}}',
  version: '1.0.0',
  summary: 'Orders and their total per customer',
  inputs: { orders: Order },
  output: Total,
  key: ['customer_id'],

  // Called once for each partition: what it returns sees that partition, and nothing else.
  begin(context) {
    /** @type {Map<string, { orders: number, total: Decimal }>} */
    const customers = new Map();
    return {
      push(batch) {
        for (const { customer_id, amount } of batch.rows(Order)) {
          const sum = customers.get(customer_id) ?? { orders: 0, total: new Decimal(0, 2) };
          sum.orders += 1;
          if (amount !== null) sum.total = sum.total.add(amount);
          customers.set(customer_id, sum);
        }
      },
      *finish() {
        for (const [customer_id, { orders, total }] of customers) yield { customer_id, orders, total };
      },
    };
  },
});
