//! The trait an author implements, and the runner that makes the contract's four functions of it.
//! Never keeps rows: what is pushed to the output goes back with the same call, in batches.

use crate::bindings::restitch::transform::{log, types};
use crate::{Builder, Column, Context, Descriptor, Failure, Input, Level, Parameter, Row, Value, View};

/// Rows that `finish` returns in one batch.
const BATCH_ROWS: usize = 8_192;
/// Bytes after which a batch of `finish` is returned although it has fewer rows.
const BATCH_BYTES: usize = 4 << 20;

/// A transform. One value of it is made for every partition, and sees nothing but that partition.
pub trait Transform: Sized + 'static {
    /// Its name: ASCII letters, digits, `-`, `_` and `.`. Usually `env!("CARGO_PKG_NAME")`.
    const NAME: &'static str;
    /// Its version; the same rows must for ever come out of one version. Usually `env!("CARGO_PKG_VERSION")`.
    const VERSION: &'static str;
    /// One sentence on what it does.
    const SUMMARY: &'static str;
    /// The output columns that identify a row inside its partition.
    const KEY: &'static [&'static str];
    /// The rows it returns.
    type Output<'a>: Row<'a>;

    /// Returns the inputs. The first is the windowed one; the others are lookups, pushed whole before it.
    fn inputs() -> Vec<Input>;

    /// Returns the parameters it knows.
    fn parameters() -> Vec<Parameter> {
        Vec::new()
    }

    /// Starts a partition.
    ///
    /// # Errors
    /// A parameter has a value that makes no sense.
    fn begin(context: &Context) -> Result<Self, Failure>;

    /// Takes a batch of one input, and may return rows at once through `output`.
    ///
    /// # Errors
    /// A row cannot be taken, or anything else.
    fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure>;

    /// Returns the rows that are left. They are taken from the iterator as they are asked for, batch by batch.
    ///
    /// # Errors
    /// Anything that makes the partition worthless.
    fn finish(self) -> Result<impl Iterator<Item = Self::Output<'static>>, Failure>;
}

/// Rows that were pushed.
pub struct Batch {
    input: usize,
    inner: types::Batch,
}

impl Batch {
    /// Returns a batch of the input with that index, for tests.
    pub fn of<'a, R: Row<'a> + 'a>(input: usize, rows: impl IntoIterator<Item = R>) -> Batch {
        let mut builders = vec![Builder::default(); R::fields().len()];
        let mut count = 0;
        for row in rows {
            row.write(&mut builders);
            count += 1;
        }
        Batch { input, inner: types::Batch { rows: count, columns: builders.iter_mut().map(Builder::take).collect() } }
    }

    /// Returns the index of the input it belongs to.
    pub fn input(&self) -> usize {
        self.input
    }

    /// Returns how many rows it has.
    pub fn len(&self) -> usize {
        self.inner.rows as usize
    }

    /// Returns whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.inner.rows == 0
    }

    /// Returns its rows. `R` must be the type that the input was declared with.
    pub fn rows<'a, R: Row<'a>>(&'a self) -> impl ExactSizeIterator<Item = R> + 'a {
        let columns: Vec<View<'a>> = self.inner.columns.iter().zip(R::fields()).map(|(c, field)| View::new(c).whole(field.data_type)).collect();
        (0..self.len()).map(move |row| R::read(&columns, row))
    }

    /// Returns the column with that index: for transforms that think in columns. `T` must be its type, or for
    /// [`values`](Column::values) the type without the `Option`.
    ///
    /// ```
    /// # use restitch_guest::{Batch, Row};
    /// # #[derive(Row)]
    /// # struct Order { id: i64, cents: Option<i64> }
    /// # let batch = Batch::of(0, [Order { id: 1, cents: Some(250) }, Order { id: 2, cents: None }]);
    /// let cents = batch.column::<i64>(1);
    /// let total: i64 = match cents.is_full() {
    ///     true => cents.values().sum(),
    ///     false => cents.values().zip(cents.valid()).map(|(c, valid)| c * i64::from(valid)).sum(),
    /// };
    /// assert_eq!(total, 250);
    /// ```
    ///
    /// # Panics
    /// There is no such column.
    pub fn column<'a, T: Value<'a>>(&'a self, index: usize) -> Column<'a, T> {
        Column::new(&self.inner.columns[index], self.len())
    }
}

/// Where a transform puts rows.
pub struct Output<T: Transform> {
    columns: Vec<Builder>,
    rows: usize,
    transform: std::marker::PhantomData<T>,
}

impl<T: Transform> Default for Output<T> {
    fn default() -> Self {
        Output { columns: vec![Builder::default(); T::Output::fields().len()], rows: 0, transform: std::marker::PhantomData }
    }
}

impl<T: Transform> Output<T> {
    /// Adds a row.
    #[inline]
    pub fn push(&mut self, row: T::Output<'_>) {
        row.write(&mut self.columns);
        self.rows += 1;
    }

    /// Returns how many rows are waiting to be returned.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether no rows are waiting.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the waiting rows as a batch, or `None` if there are none; for tests.
    pub fn take(&mut self) -> Option<Batch> {
        self.take_inner().map(|inner| Batch { input: 0, inner })
    }

    fn take_inner(&mut self) -> Option<types::Batch> {
        let rows = std::mem::take(&mut self.rows);
        let rows = u32::try_from(rows).expect("fewer than 2^32 rows in a batch");
        (rows > 0).then(|| types::Batch { rows, columns: self.columns.iter_mut().map(Builder::take).collect() })
    }

    fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || (self.rows.is_multiple_of(64) && self.columns.iter().map(Builder::size_bytes).sum::<usize>() >= BATCH_BYTES)
    }
}

/// Adds a line for the author to the partition's log.
pub fn debug(message: &str) {
    add_line(Level::Debug, message);
}

/// Adds a line worth knowing to the partition's log.
pub fn info(message: &str) {
    add_line(Level::Info, message);
}

/// Adds a warning to the partition's log.
pub fn warn(message: &str) {
    add_line(Level::Warn, message);
}

/// In `cargo test` there is no host: a line goes where the test's output goes.
fn add_line(level: Level, message: &str) {
    match cfg!(target_family = "wasm") {
        true => log::log(level, message),
        false => eprintln!("{level:?}: {message}"),
    }
}

impl Input {
    /// Returns the input of that name with rows of type `R`.
    pub fn of<'a, R: Row<'a>>(name: &str) -> Input {
        Input { name: name.to_owned(), fields: R::fields() }
    }
}

impl Parameter {
    /// Returns a parameter that may be left out.
    pub fn optional(name: &str, default: &str, help: &str) -> Parameter {
        Parameter { name: name.to_owned(), default: Some(default.to_owned()), help: help.to_owned() }
    }

    /// Returns a parameter that has to be given.
    pub fn required(name: &str, help: &str) -> Parameter {
        Parameter { name: name.to_owned(), default: None, help: help.to_owned() }
    }
}

impl Context {
    /// Returns the value of a parameter, its default if none was given.
    ///
    /// # Panics
    /// The transform did not declare it.
    pub fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(n, _)| n == name);
        &found.unwrap_or_else(|| panic!("BUG: the transform does not declare a parameter {name:?}")).1
    }

    /// Returns the value of a parameter as a number, a boolean, or anything else that parses.
    ///
    /// # Errors
    /// The value does not parse.
    pub fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, Failure> {
        let text = self.parameter(name);
        text.parse().map_err(|e| Failure::Parameters(format!("{name} = {text:?}: {e}")))
    }
}

impl Failure {
    /// Returns the failure of one row of the batch that was pushed.
    pub fn row(row: usize, message: impl Into<String>) -> Failure {
        Failure::Row(types::RowFailure { row: row as u32, message: message.into() })
    }

    /// Returns a failure that no row and no parameter is to blame for.
    pub fn other(message: impl Into<String>) -> Failure {
        Failure::Other(message.into())
    }
}

/// Makes the contract's calls of a [`Transform`].
#[doc(hidden)]
pub struct Runner<T: Transform> {
    state: Option<T>,
    rest: Option<Box<dyn Iterator<Item = T::Output<'static>>>>,
    output: Output<T>,
}

impl<T: Transform> Runner<T> {
    pub fn describe() -> Descriptor {
        Descriptor {
            name: T::NAME.to_owned(),
            version: T::VERSION.to_owned(),
            summary: T::SUMMARY.to_owned(),
            inputs: T::inputs(),
            output: T::Output::fields(),
            key: T::KEY.iter().map(|k| (*k).to_owned()).collect(),
            parameters: T::parameters(),
        }
    }

    pub fn begin(context: Context) -> Result<Self, Failure> {
        Ok(Runner { state: Some(T::begin(&context)?), rest: None, output: Output::default() })
    }

    pub fn push(&mut self, input: u32, inner: types::Batch) -> Result<Option<types::Batch>, Failure> {
        let state = self.state.as_mut().expect("BUG: push after finish");
        state.push(&Batch { input: input as usize, inner }, &mut self.output)?;
        Ok(self.output.take_inner())
    }

    pub fn finish(&mut self) -> Result<Option<types::Batch>, Failure> {
        if let Some(state) = self.state.take() {
            self.rest = Some(Box::new(state.finish()?));
        }
        if let Some(rest) = &mut self.rest {
            while !self.output.is_full() {
                match rest.next() {
                    Some(row) => self.output.push(row),
                    None => {
                        self.rest = None;
                        break;
                    }
                }
            }
        }
        Ok(self.output.take_inner())
    }
}

/// Lets a panic's message reach the host before the instance dies.
#[doc(hidden)]
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| log::log(Level::Error, &panic.to_string())));
}

/// Makes a component of a [`Transform`]: write it once, at the top of your crate.
#[macro_export]
macro_rules! export {
    ($transform:ty) => {
        // Natively (in `cargo test`) there is no host to export to.
        #[cfg(target_family = "wasm")]
        const _: () = {
            use $crate::bindings::exports::restitch::transform::transform as contract;
            type Runner = $crate::hidden::Runner<$transform>;
            struct Component;
            std::thread_local! {
                static RUNNER: std::cell::RefCell<Option<Runner>> = const { std::cell::RefCell::new(None) };
            }
            fn with<R>(f: impl FnOnce(&mut Runner) -> R) -> R {
                RUNNER.with_borrow_mut(|runner| f(runner.as_mut().expect("BUG: called before begin")))
            }
            impl contract::Guest for Component {
                fn describe() -> contract::Descriptor {
                    $crate::hidden::report_panics();
                    Runner::describe()
                }
                fn begin(context: contract::Context) -> Result<(), contract::Failure> {
                    $crate::hidden::report_panics();
                    let runner = Runner::begin(context)?;
                    RUNNER.set(Some(runner));
                    Ok(())
                }
                fn push(input: u32, batch: contract::Batch) -> Result<Option<contract::Batch>, contract::Failure> {
                    with(|runner| runner.push(input, batch))
                }
                fn finish() -> Result<Option<contract::Batch>, contract::Failure> {
                    with(Runner::finish)
                }
            }
    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decimal, Row};

    /// In and out.
    #[derive(Row, Clone, PartialEq, Debug)]
    pub struct Item {
        name: Option<String>,
        price: Decimal<18, 2>,
    }

    /// Returns every item at once when it comes, and `left` of them again at the end.
    struct Echo {
        left: i128,
    }

    impl Transform for Echo {
        const NAME: &'static str = "echo";
        const VERSION: &'static str = "1.0.0";
        const SUMMARY: &'static str = "Returns what it gets";
        const KEY: &'static [&'static str] = &["name"];
        type Output<'a> = Item;
        fn inputs() -> Vec<Input> {
            vec![Input::of::<Item>("items")]
        }
        fn parameters() -> Vec<Parameter> {
            vec![Parameter::optional("left", "0", "rows at the end")]
        }
        fn begin(context: &Context) -> Result<Self, Failure> {
            Ok(Echo { left: context.parse("left")? })
        }
        fn push(&mut self, batch: &Batch, output: &mut Output<Self>) -> Result<(), Failure> {
            for (row, item) in batch.rows::<Item>().enumerate() {
                if item.price.0 < 0 {
                    return Err(Failure::row(row, format!("price {} is negative", item.price)));
                }
                output.push(item);
            }
            Ok(())
        }
        fn finish(self) -> Result<impl Iterator<Item = Item>, Failure> {
            Ok((0..self.left).map(|i| Item { name: None, price: Decimal(i) }))
        }
    }

    fn context(left: &str) -> Context {
        Context {
            partition: "2026-05-01".into(),
            start_micros: 0,
            end_micros: 1,
            time_zone: "UTC".into(),
            as_of_micros: 0,
            seed: 0,
            parameters: vec![("left".into(), left.into())],
        }
    }

    #[test]
    fn rows_stream_through_push_and_finish() {
        let items = [Item { name: Some("a".into()), price: Decimal(1) }, Item { name: None, price: Decimal(2) }];
        let mut runner = Runner::<Echo>::begin(context("20000")).unwrap();
        let batch = Batch::of(0, items.clone());
        assert_eq!(batch.column::<Decimal<18, 2>>(1).iter().map(|d| d.0).collect::<Vec<_>>(), [1, 2]);
        let out = runner.push(0, batch.inner).unwrap().unwrap();
        let out = Batch { input: 0, inner: out };
        assert_eq!(out.rows::<Item>().collect::<Vec<_>>(), items);
        let mut sizes = Vec::new();
        while let Some(batch) = runner.finish().unwrap() {
            sizes.push(batch.rows);
        }
        assert_eq!(sizes, [8_192, 8_192, 3_616]);
        assert!(runner.finish().unwrap().is_none());
    }

    #[test]
    fn failures_say_which_row_and_which_parameter() {
        assert_eq!(Runner::<Echo>::begin(context("many")).err(), Some(Failure::Parameters("left = \"many\": invalid digit found in string".into())));
        let mut runner = Runner::<Echo>::begin(context("0")).unwrap();
        let batch = Batch::of(0, [Item { name: None, price: Decimal(-150) }]);
        assert_eq!(runner.push(0, batch.inner).err(), Some(Failure::row(0, "price -1.50 is negative")));
    }

    #[test]
    fn the_descriptor_follows_from_the_types() {
        let d = Runner::<Echo>::describe();
        assert_eq!((d.name.as_str(), d.output.len(), d.key), ("echo", 2, vec!["name".to_owned()]));
        assert!(d.output[0].nullable && !d.output[1].nullable);
    }
}
