//! Orders and cents per customer: the arithmetic alone.
//! Never knows where rows come from: the guest feeds it columns of the contract, `benches/` feeds it Arrow's.

use super::Map;

/// Sums per customer.
#[derive(Default)]
pub struct Totals(Map<Box<str>, (i64, i64)>);

impl Totals {
    /// Adds an order. Returns whether the customer's total still fits into 64 bits.
    #[inline]
    pub fn add(&mut self, customer: &str, cents: i64) -> bool {
        // Most rows are of a customer that is known: one look-up, no allocation.
        let sum = match self.0.get_mut(customer) {
            Some(sum) => sum,
            None => self.0.entry(customer.into()).or_default(),
        };
        sum.0 += 1;
        sum.1.checked_add(cents).map(|total| sum.1 = total).is_some()
    }

    /// Returns customer, orders and cents, in no order: whoever writes the rows sorts them.
    pub fn rows(self) -> impl Iterator<Item = (Box<str>, i64, i64)> {
        self.0.into_iter().map(|(customer, (orders, cents))| (customer, orders, cents))
    }
}
