//! A struct that is a row: its fields are the columns, in order.
//! Never written by hand: `#[derive(Row)]` makes it, with the fields' types as the schema.
//! `transform` reads and writes batches through it.

use crate::{Builder, Field, View};

/// A row of an input or of the output. Made by `#[derive(Row)]`: the struct's fields are columns, of their name and
/// their type, and nullable where the type is an `Option`.
///
/// With a lifetime, text and bytes are borrowed from the batch; without, they are owned. `#[row(name = "…")]` gives a
/// column another name than its field has.
///
/// ```
/// use restitch_guest::Row;
///
/// /// An order as it comes in.
/// #[derive(Row)]
/// struct Order<'a> {
///     customer_id: Option<&'a str>,
///     r#type: i32,
///     #[row(name = "unit price")]
///     price: f64,
/// }
/// let fields = Order::fields();
/// let names: Vec<&str> = fields.iter().map(|f| f.name.as_str()).collect();
/// assert_eq!(names, ["customer_id", "type", "unit price"]);
/// assert!(fields[0].nullable && !fields[1].nullable);
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` is no row", label = "no row", note = "write `#[derive(Row)]` on the struct")]
pub trait Row<'a>: Sized {
    /// Returns the columns.
    fn fields() -> Vec<Field>;
    /// Returns the row with that place in the batch.
    fn read(columns: &[View<'a>], row: usize) -> Self;
    /// Adds the row to columns that are being built.
    fn write(&self, columns: &mut [Builder]);
}
