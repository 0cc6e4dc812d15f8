//! Orders per customer: what versions 1.0.0 and 1.1.0 share.
//! Never depends on the order of rows: sums are exact, and the output is sorted.

use restitch_guest::{Batch, Context, Decimal, Failure, Input, Map, Output, Parameter, Row, Timestamp, Transform};

/// An order.
#[derive(Row)]
pub struct Order<'a> {
    event_id: &'a str,
    event_time: Timestamp,
    customer_id: Option<&'a str>,
    amount: Option<Decimal<18, 2>>,
}

/// What a customer ordered.
#[derive(Row, PartialEq, Debug)]
pub struct Total {
    customer_id: Option<String>,
    orders: i64,
    total: Decimal<38, 2>,
    currency: String,
}

#[derive(Default)]
struct Sum {
    orders: i64,
    total: Decimal<38, 2>,
}

impl Sum {
    fn add(&mut self, row: usize, amount: Decimal<18, 2>) -> Result<(), Failure> {
        self.orders += 1;
        self.total = self.total.checked_add(amount).ok_or_else(|| Failure::row(row, "the total has more than 38 digits"))?;
        Ok(())
    }
}

/// Sums per customer; the version 1.1.0 is the one that skips negative amounts.
pub struct CustomerTotals<const SKIP_NEGATIVE: bool> {
    currency: String,
    /// Orders without a customer are one group, as in SQL.
    nobody: Sum,
    customers: Map<String, Sum>,
}

impl<const SKIP_NEGATIVE: bool> Transform for CustomerTotals<SKIP_NEGATIVE> {
    const NAME: &'static str = "customer-totals";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = env!("CARGO_PKG_DESCRIPTION");
    const KEY: &'static [&'static str] = &["customer_id"];
    type Output<'a> = Total;

    fn inputs() -> Vec<Input> {
        vec![Input::of::<Order>("orders")]
    }

    fn parameters() -> Vec<Parameter> {
        vec![Parameter::optional("currency", "EUR", "what the column `currency` says; amounts are not converted")]
    }

    fn begin(context: &Context) -> Result<Self, Failure> {
        let currency = context.parameter("currency");
        if currency.len() != 3 || !currency.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(Failure::Parameters(format!("currency = {currency:?}: not three capital letters such as EUR")));
        }
        Ok(CustomerTotals { currency: currency.to_owned(), nobody: Sum::default(), customers: Map::default() })
    }

    fn push(&mut self, batch: &Batch, _: &mut Output<Self>) -> Result<(), Failure> {
        for (row, order) in batch.rows::<Order>().enumerate() {
            let amount = order.amount.unwrap_or_default();
            if SKIP_NEGATIVE && amount.0 < 0 {
                continue;
            }
            let sum = match order.customer_id {
                None => &mut self.nobody,
                Some(id) => match self.customers.get_mut(id) {
                    Some(sum) => {
                        // Most rows are of a customer that is known: one look-up, no allocation.
                        sum.add(row, amount)?;
                        continue;
                    }
                    None => self.customers.entry(id.to_owned()).or_default(),
                },
            };
            sum.add(row, amount)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<impl Iterator<Item = Total>, Failure> {
        let mut customers: Vec<(Option<String>, Sum)> = self.customers.into_iter().map(|(id, sum)| (Some(id), sum)).collect();
        if self.nobody.orders > 0 {
            customers.push((None, self.nobody));
        }
        customers.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let currency = self.currency;
        Ok(customers.into_iter().map(move |(customer_id, sum)| Total {
            customer_id,
            orders: sum.orders,
            total: sum.total,
            currency: currency.clone(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const SKIP: bool>(amounts: &[i128], orders: i64, total: i128) {
        let context = Context {
            partition: "2026-05-01".into(),
            start_micros: 0,
            end_micros: 1,
            time_zone: "UTC".into(),
            as_of_micros: 0,
            seed: 0,
            parameters: vec![("currency".into(), "EUR".into())],
        };
        let mut transform = CustomerTotals::<SKIP>::begin(&context).unwrap();
        let rows = amounts.iter().map(|&a| Order { event_id: "e", event_time: Timestamp(0), customer_id: Some("A"), amount: Some(Decimal(a)) });
        transform.push(&Batch::of(0, rows), &mut Output::default()).unwrap();
        let expected = Total { customer_id: Some("A".into()), orders, total: Decimal(total), currency: "EUR".into() };
        assert_eq!(transform.finish().unwrap().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn only_the_later_version_leaves_refunds_out() {
        check::<false>(&[2500, 1000, -500], 3, 3000);
        check::<true>(&[2500, 1000, -500], 2, 3500);
    }
}
