//! {{name}}: orders and their total per customer. Change it into what you need.

use restitch_guest::{Batch, Context, Decimal, Failure, Input, Map, Output, Row, Transform};

/// What is read: columns of the source, by name. `Option` where there may be nulls.
#[derive(Row)]
pub struct Order<'a> {
    customer_id: &'a str,
    amount: Option<Decimal<18, 2>>,
}

/// What is written: the columns of the derived table.
#[derive(Row)]
pub struct Total {
    customer_id: String,
    orders: i64,
    total: Decimal<38, 2>,
}

/// What is known of one partition so far: orders, and their total, by customer.
pub struct {{Camel}}(Map<String, (i64, Decimal<38, 2>)>);

impl Transform for {{Camel}} {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["customer_id"];
    type Output<'a> = Total;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders")]
    }

    fn begin(_context: &Context) -> Result<Self, Failure> {
        Ok({{Camel}}(Map::default()))
    }

    fn push(&mut self, batch: &Batch, _output: &mut Output<Self>) -> Result<(), Failure> {
        for (row, order) in batch.rows::<Order>().enumerate() {
            let (orders, total) = self.0.entry(order.customer_id.to_owned()).or_default();
            *orders += 1;
            *total = total.checked_add(order.amount.unwrap_or_default()).ok_or_else(|| Failure::row(row, "the total has too many digits"))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Total>, Failure> {
        Ok(self.0.into_iter().map(|(customer_id, (orders, total))| Total { customer_id, orders, total }))
    }
}

restitch_guest::export!({{Camel}});
