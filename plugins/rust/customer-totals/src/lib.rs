//! customer-totals 1.0.0: orders and their total per customer.
//! Never leaves an order out; 1.1.0 does.

mod totals;

/// The transform: every order counts.
pub type CustomerTotals = totals::CustomerTotals<false>;

restitch_guest::export!(CustomerTotals);
