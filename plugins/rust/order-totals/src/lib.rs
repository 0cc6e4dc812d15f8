//! order-totals 1.0.0: orders and cents per customer, the transform of the benchmark.
//! Never makes rows of its input: it reads the two columns it needs as they stand.

mod totals;

use restitch_guest::{Batch, Context, Failure, Input, Output, Row, Text, Texts, Transform};

/// An order.
#[derive(Row)]
pub struct Order<'a> {
    customer_id: &'a str,
    amount_cents: i64,
}

/// What a customer ordered.
#[derive(Row, PartialEq, Debug)]
pub struct Total {
    customer_id: Text,
    orders: i64,
    amount_cents: i64,
}

/// Sums of one partition.
pub struct OrderTotals(totals::Totals);

impl Transform for OrderTotals {
    const NAME: &'static str = "order-totals";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["customer_id"];
    type Output<'a> = Total;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders")]
    }

    fn begin(_: &Context) -> Result<Self, Failure> {
        Ok(OrderTotals(totals::Totals::default()))
    }

    fn push(&mut self, batch: &Batch, _: &mut Output<Self>) -> Result<(), Failure> {
        let (customers, cents) = (batch.column::<&str>(0), batch.column::<i64>(1));
        let added = self.0.add(customers.iter(), cents.values());
        added.map_err(|row| Failure::row(row, "the customer's total does not fit into 64 bits"))
    }

    fn finish(self) -> Result<impl Iterator<Item = Total>, Failure> {
        let total = |(customer_id, orders, amount_cents)| Total { customer_id, orders, amount_cents };
        Ok(self.0.rows().map(total))
    }
}

restitch_guest::export!(OrderTotals);

#[cfg(test)]
mod tests {
    use super::*;

    fn order(customer_id: &str, amount_cents: i64) -> Order<'_> {
        Order { customer_id, amount_cents }
    }

    #[test]
    fn orders_are_counted_and_summed_by_customer() {
        let mut transform = OrderTotals(totals::Totals::default());
        let mut push = |rows: Vec<Order>| transform.push(&Batch::of(0, rows), &mut Output::default());
        push(vec![order("b", 5), order("a", 7)]).unwrap();
        push(vec![order("b", -1)]).unwrap();
        assert!(push(vec![order("b", i64::MAX)]).is_err());
        let mut rows: Vec<Total> = transform.finish().unwrap().collect();
        rows.sort_by(|a, b| a.customer_id.cmp(&b.customer_id));
        let total = |customer: &str, orders, amount_cents| Total { customer_id: customer.into(), orders, amount_cents };
        assert_eq!(rows, [total("a", 1, 7), total("b", 2, 4)]);
    }
}
