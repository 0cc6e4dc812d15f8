//! One column in Arrow's physical layout: a view of one that was pushed, a builder of one to return.
//! Never knows its type: `value` reads and writes through it. The layout is written down in types.wit.

use crate::{Value, bindings::restitch::transform::types, texts::append};
use std::{marker::PhantomData, ops::Range};

/// A column of a batch that was pushed. The host has checked it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    validity: &'a [u8],
    offsets: &'a [u8],
    values: &'a [u8],
    /// The values, if they were looked at as one text.
    whole: Option<&'a str>,
}

impl<'a> View<'a> {
    /// Returns a view of `column`.
    pub fn new(column: &'a types::Column) -> View<'a> {
        View { validity: &column.validity, offsets: &column.offsets, values: &column.values, whole: None }
    }

    /// Returns the view of a column whose rows are all going to be read. Texts are looked at together, which is faster than one by one.
    pub fn whole(self, data_type: types::DataType) -> View<'a> {
        let is_text = matches!(data_type, types::DataType::Utf8 | types::DataType::Json);
        View { whole: if is_text { std::str::from_utf8(self.values).ok() } else { None }, ..self }
    }

    /// Returns whether the row has no value.
    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        !self.validity.is_empty() && self.validity[row / 8] >> (row % 8) & 1 == 0
    }

    /// Returns the row's bit, for booleans.
    #[inline]
    pub fn bit(&self, row: usize) -> bool {
        self.values[row / 8] >> (row % 8) & 1 == 1
    }

    /// Returns the row's `N` bytes, for values of a fixed size.
    #[inline]
    pub fn fixed<const N: usize>(&self, row: usize) -> [u8; N] {
        let (chunk, _) = self.values[row * N..].split_first_chunk::<N>().expect("a value for every row");
        *chunk
    }

    /// Returns the row's bytes, for values of any size.
    #[inline]
    pub fn bytes(&self, row: usize) -> &'a [u8] {
        &self.values[self.range(row)]
    }

    /// Returns the row's text. The host sends nothing but UTF-8 in columns of text; looking again is cheaper than `unsafe` is to defend.
    ///
    /// # Panics
    /// It is no column of text.
    #[inline]
    pub fn text(&self, row: usize) -> &'a str {
        match self.whole {
            Some(whole) => whole.get(self.range(row)).expect("a text ends where a character does"),
            None => std::str::from_utf8(self.bytes(row)).expect("the host sends UTF-8"),
        }
    }

    #[inline]
    fn range(&self, row: usize) -> Range<usize> {
        let (ends, _) = self.offsets[row * 4..].split_first_chunk::<8>().expect("an offset for every row, and one more");
        let ends = u64::from_le_bytes(*ends);
        ends as u32 as usize..(ends >> 32) as usize
    }
}

/// All values of one column, for transforms that think in columns.
///
/// [`values`](Column::values) goes over numbers without looking at nulls and without a check for each row; the compiler makes
/// vector code of it. [`iter`](Column::iter) reads any type, one row after the other.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a, T> {
    view: View<'a>,
    rows: usize,
    value: PhantomData<T>,
}

impl<'a, T: Value<'a>> Column<'a, T> {
    pub(crate) fn new(column: &'a types::Column, rows: usize) -> Column<'a, T> {
        Column { view: View::new(column), rows, value: PhantomData }
    }

    /// Returns how many rows it has.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the value of a row. Of a column with nulls, `T` has to be an `Option`.
    ///
    /// # Panics
    /// There is no such row.
    pub fn get(&self, row: usize) -> T {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        T::read(&self.view, row)
    }

    /// Returns the values in order. Of a column with nulls, `T` has to be an `Option`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        let view = self.view.whole(T::TYPE);
        (0..self.rows).map(move |row| T::read(&view, row))
    }

    /// Returns whether no row is null, so that [`values`](Column::values) are all there is to know.
    pub fn is_full(&self) -> bool {
        self.view.validity.is_empty() || (0..self.rows).all(|row| !self.view.is_null(row))
    }

    /// Returns which rows have a value.
    pub fn valid(&self) -> impl ExactSizeIterator<Item = bool> + use<'a, T> {
        let view = self.view;
        (0..self.rows).map(move |row| !view.is_null(row))
    }
}

impl<'a, T: Fixed> Column<'a, T> {
    /// Returns the numbers as they stand in memory. What stands under a null is any number: see [`valid`](Column::valid).
    pub fn values(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        T::values(self.view.values)
    }
}

/// A value whose bytes stand side by side, each as long as the others.
pub trait Fixed: Sized {
    /// Returns the values that lie in `bytes`.
    fn values(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> + use<'_, Self>;
}

/// A column that is being built begins with room for as many bytes as the last one had, up to so many.
const ROOM_BYTES_MAX: usize = 256 << 10;

/// A column that is being built, value by value.
#[derive(Clone, Default, Debug)]
pub struct Builder {
    rows: usize,
    /// Empty until the first null: most columns never have one.
    validity: Vec<u8>,
    offsets: Vec<u8>,
    values: Vec<u8>,
}

impl Builder {
    /// Adds a bit, for booleans.
    #[inline]
    pub fn push_bit(&mut self, bit: bool) {
        if self.rows.is_multiple_of(8) {
            self.values.push(0);
        }
        self.values[self.rows / 8] |= u8::from(bit) << (self.rows % 8);
        self.valid();
    }

    /// Adds a value of a fixed size.
    #[inline]
    pub fn push_fixed<const N: usize>(&mut self, bytes: [u8; N]) {
        self.values.extend_from_slice(&bytes);
        self.valid();
    }

    /// Adds a value of any size.
    ///
    /// # Panics
    /// Past 2 GiB in one batch, where offsets end.
    #[inline]
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.start_offsets();
        append(&mut self.values, bytes);
        self.end_offset();
        self.valid();
    }

    /// Adds a null to a column of booleans.
    pub fn push_null_bit(&mut self) {
        self.push_bit(false);
        self.invalidate();
    }

    /// Adds a null to a column of values of a fixed size.
    pub fn push_null_fixed<const N: usize>(&mut self) {
        self.push_fixed([0; N]);
        self.invalidate();
    }

    /// Adds a null to a column of values of any size.
    pub fn push_null_bytes(&mut self) {
        self.push_bytes(&[]);
        self.invalidate();
    }

    /// Returns how many bytes the column holds so far.
    pub fn size_bytes(&self) -> usize {
        self.validity.len() + self.offsets.len() + self.values.len()
    }

    /// Returns the column, and starts another one.
    pub fn take(&mut self) -> types::Column {
        // The next batch is most often like this one. Of a large one, memory may not hold two.
        let room = |bytes: &[u8]| if bytes.len() <= ROOM_BYTES_MAX { Vec::with_capacity(bytes.len()) } else { Vec::new() };
        let next = Builder { offsets: room(&self.offsets), values: room(&self.values), ..Builder::default() };
        let Builder { validity, offsets, values, .. } = std::mem::replace(self, next);
        types::Column { validity, offsets, values }
    }

    #[inline]
    fn valid(&mut self) {
        if !self.validity.is_empty() {
            if self.rows.is_multiple_of(8) {
                self.validity.push(0);
            }
            self.validity[self.rows / 8] |= 1 << (self.rows % 8);
        }
        self.rows += 1;
    }

    /// Turns the row that was added last into a null.
    fn invalidate(&mut self) {
        if self.validity.is_empty() {
            self.validity = vec![0xff; self.rows.div_ceil(8)];
            // Bits past the last row stay zero, so that equal columns have equal bytes.
            if !self.rows.is_multiple_of(8) {
                self.validity[self.rows / 8] = (1 << (self.rows % 8)) - 1;
            }
        }
        let row = self.rows - 1;
        self.validity[row / 8] &= !(1 << (row % 8));
    }

    #[inline]
    fn start_offsets(&mut self) {
        if self.offsets.is_empty() {
            self.offsets.extend_from_slice(&0i32.to_le_bytes());
        }
    }

    #[inline]
    fn end_offset(&mut self) {
        let end = i32::try_from(self.values.len()).expect("a column of one batch holds at most 2 GiB");
        self.offsets.extend_from_slice(&end.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use crate::{Builder, Column, Date, Decimal, Json, Time, Timestamp, Value, View};
    use std::{borrow::Cow, fmt::Debug};

    /// Writes values as a column and reads them again.
    fn check<T: for<'a> Value<'a> + PartialEq + Debug>(values: &[T]) {
        let mut builder = Builder::default();
        values.iter().for_each(|v| v.write(&mut builder));
        let column = builder.take();
        assert_eq!(builder.size_bytes(), 0, "a taken builder starts again");
        let view = View::new(&column);
        for (row, value) in values.iter().enumerate() {
            assert_eq!(&T::read(&view, row), value, "row {row}");
        }
    }

    #[test]
    fn a_column_is_read_value_by_value_or_as_it_stands() {
        let mut builder = Builder::default();
        [Some(7i64), None, Some(-1)].iter().for_each(|v| v.write(&mut builder));
        let column = builder.take();
        let options = Column::<Option<i64>>::new(&column, 3);
        assert_eq!(options.iter().collect::<Vec<_>>(), [Some(7), None, Some(-1)]);
        assert_eq!((options.get(2), options.len(), options.is_empty(), options.is_full()), (Some(-1), 3, false, false));
        let numbers = Column::<i64>::new(&column, 3);
        let valid: i64 = numbers.values().zip(numbers.valid()).map(|(n, valid)| if valid { n } else { 0 }).sum();
        assert_eq!((numbers.values().len(), valid), (3, 6));
        [1.5f32, 2.0].iter().for_each(|v| v.write(&mut builder));
        let column = builder.take();
        assert_eq!(Column::<f32>::new(&column, 2).values().sum::<f32>(), 3.5);
        assert!(Column::<f32>::new(&column, 2).is_full());
        assert!(std::panic::catch_unwind(|| Column::<f32>::new(&column, 2).get(2)).is_err());
    }

    /// The same with a null in front, behind and between.
    fn check_nulls<T: for<'a> Value<'a> + PartialEq + Debug + Clone>(values: &[T]) {
        check(values);
        let mut with_nulls = vec![None];
        for _ in 0..4 {
            with_nulls.extend(values.iter().cloned().flat_map(|v| [Some(v), None]));
        }
        check(&with_nulls);
        with_nulls.remove(0);
        check(&with_nulls);
    }

    #[test]
    fn every_type_comes_back_as_it_was() {
        check_nulls(&[true, false, true, true, false, false, true, false, true, true]);
        check_nulls(&[0i32, -1, i32::MIN, i32::MAX]);
        check_nulls(&[0i64, -1, i64::MIN, i64::MAX, (1 << 53) + 1]);
        check_nulls(&[0f32, -0.5, f32::MAX, f32::INFINITY]);
        check_nulls(&[0f64, -0.5, f64::MIN_POSITIVE, f64::NEG_INFINITY]);
        check_nulls(&[Decimal::<38, 2>(0), Decimal(-1), Decimal(10i128.pow(38) - 1)]);
        check_nulls(&[String::new(), "Müller".into(), "日本".into()]);
        check_nulls(&[Json(r#"{"a":1}"#.to_owned()), Json("null".to_owned())]);
        check_nulls(&[vec![], vec![0u8, 255], vec![1]]);
        check_nulls(&[Date(-1), Date(20_000)]);
        check_nulls(&[Time(0), Time(86_399_999_999)]);
        check_nulls(&[Timestamp(-1), Timestamp(1_777_593_600_000_000)]);
    }

    #[test]
    fn borrowed_text_and_bytes_are_written_as_owned_ones() {
        let mut a = Builder::default();
        let mut b = Builder::default();
        for text in ["", "a", "bc"] {
            text.write(&mut a);
            Cow::Borrowed(text).write(&mut b);
        }
        assert_eq!(a.take(), b.take());
        let mut c = Builder::default();
        b"xy".as_slice().write(&mut c);
        Json("1").write(&mut c);
        let column = c.take();
        assert_eq!(<&[u8]>::read(&View::new(&column), 0), b"xy");
        assert_eq!(<Json<&str>>::read(&View::new(&column), 1), Json("1"));
    }

    #[test]
    fn a_column_without_nulls_has_no_validity() {
        let mut builder = Builder::default();
        (0..9i64).for_each(|v| Some(v).write(&mut builder));
        assert!(builder.take().validity.is_empty());
    }

    #[test]
    fn bits_past_the_end_are_zero() {
        let mut builder = Builder::default();
        [Some(true), None, Some(true)].iter().for_each(|v| v.write(&mut builder));
        let column = builder.take();
        assert_eq!((column.validity, column.values), (vec![0b101], vec![0b101]));
    }
}
