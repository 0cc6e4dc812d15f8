//! A struct that is a row: its fields are the columns, in order.
//! Never written by hand: `row!` makes it, with the fields' types as the schema.

use crate::{Builder, Field, View};

/// A row of an input or of the output. Made by [`row!`](crate::row!).
pub trait Row<'a>: Sized {
    /// Returns the columns.
    fn fields() -> Vec<Field>;
    /// Returns the row with that place in the batch.
    fn read(columns: &[View<'a>], row: usize) -> Self;
    /// Adds the row to columns that are being built.
    fn write(&self, columns: &mut [Builder]);
}

/// Declares a struct whose fields are columns: name, type and whether it is nullable (`Option`).
///
/// With a lifetime, text and bytes are borrowed from the batch; without, they are owned. A column that
/// is called like a keyword is written raw: `r#type`. Documentation and attributes are kept.
///
/// ```
/// restitch_guest::row! {
///     /// An order as it comes in.
///     #[derive(Debug)]
///     pub struct Order<'a> {
///         /// Who sent it.
///         customer_id: Option<&'a str>,
///         r#type: i32,
///     }
/// }
/// let fields = <Order as restitch_guest::Row>::fields();
/// assert_eq!(fields[1].name, "type");
/// assert!(fields[0].nullable);
/// ```
#[macro_export]
macro_rules! row {
    ($(#[$outer:meta])* $vis:vis struct $name:ident<$life:lifetime> { $($(#[$inner:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$outer])*
        $vis struct $name<$life> { $($(#[$inner])* #[allow(missing_docs)] pub $field: $type),* }
        $crate::row!(@impl $life, $name<$life>, $name, $($field: $type),*);
    };
    ($(#[$outer:meta])* $vis:vis struct $name:ident { $($(#[$inner:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$outer])*
        $vis struct $name { $($(#[$inner])* #[allow(missing_docs)] pub $field: $type),* }
        $crate::row!(@impl 'row, $name, $name, $($field: $type),*);
    };
    (@impl $life:lifetime, $full:ty, $name:ident, $($field:ident: $type:ty),*) => {
        impl<$life> $crate::Row<$life> for $full {
            fn fields() -> Vec<$crate::Field> {
                vec![$($crate::Field {
                    name: stringify!($field).trim_start_matches("r#").to_owned(),
                    data_type: <$type as $crate::Value<$life>>::TYPE,
                    nullable: <$type as $crate::Value<$life>>::NULLABLE,
                }),*]
            }
            #[inline]
            fn read(columns: &[$crate::View<$life>], row: usize) -> Self {
                let mut columns = columns.iter();
                $name { $($field: $crate::Value::read(columns.next().expect("a column for every field"), row)),* }
            }
            #[inline]
            fn write(&self, columns: &mut [$crate::Builder]) {
                let mut columns = columns.iter_mut();
                $($crate::Value::write(&self.$field, columns.next().expect("a column for every field"));)*
            }
        }
    };
}
