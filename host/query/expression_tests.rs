//! Tests of conditions and aggregates: what they come to, and what is refused.
//! Never read a file: batches are made here.
//! They stand beside `expression`, to keep it short.

use super::*;
use crate::schema::DataType;
use arrow::array::{Decimal128Array, Int64Array, StringArray, TimestampMicrosecondArray};

fn fields() -> Vec<Field> {
    vec![
        Field::new("at", DataType::Timestamp, false),
        Field::new("qty", DataType::Int64, true),
        Field::new("Price", DataType::Decimal(18, 2), true),
        Field::new("status", DataType::String, false),
        Field::new("long", DataType::Decimal(38, 0), true),
    ]
}

/// Columns stand in another order than in the schema, and one is missing.
fn batch() -> RecordBatch {
    let price = Decimal128Array::from(vec![Some(150), Some(250), None]).with_precision_and_scale(18, 2).unwrap();
    let columns: [(&str, ArrayRef); 4] = [
        ("status", Arc::new(StringArray::from(vec!["paid", "open", "paid"]))),
        ("Price", Arc::new(price)),
        ("qty", Arc::new(Int64Array::from(vec![Some(2), Some(4), None]))),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![0, 86_400_000_000, 5]).with_timezone("UTC"))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
}

#[test]
fn a_condition_keeps_rows_where_it_is_true() {
    for (sql, columns, expected) in [
        ("status = 'paid'", vec!["status"], [true, false, true]),
        ("qty > 1", vec!["qty"], [true, true, false]),
        ("qty is null or Price >= 2.5", vec!["qty", "Price"], [false, true, true]),
        ("at >= '1970-01-02'", vec!["at"], [false, true, false]),
        ("at < timestamp '1970-01-01T12:00:00Z'", vec!["at"], [true, false, true]),
        ("date_trunc('day', at) = '1970-01-01'", vec!["at"], [true, false, true]),
        ("status in ('open', 'void') -- why", vec!["status"], [false, true, false]),
        ("lower(status) like 'PA%' or coalesce(qty, 0) = 0", vec!["qty", "status"], [false, false, true]),
        ("true", vec![], [true, true, true]),
    ] {
        let filter = Filter::parse(sql, &fields()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(filter.columns(), columns, "{sql}");
        assert_eq!(filter.keep(&batch()).unwrap(), BooleanArray::from(expected.to_vec()), "{sql}");
    }
}

/// Guards hold for each row by itself, however many other rows stand beside it.
#[test]
fn a_guarded_division_sees_only_rows_that_pass_the_guard() {
    let numbers = |n: i64| if n % 3 == 0 { None } else { Some(n % 2 * n) };
    for rows in [1, 2, 5, 100] {
        let qty = Int64Array::from_iter((0..rows).map(numbers));
        let price = Decimal128Array::from_iter_values((0..rows).map(|n| n as i128 * 100)).with_precision_and_scale(18, 2).unwrap();
        let columns: [(&str, ArrayRef); 2] = [("qty", Arc::new(qty)), ("Price", Arc::new(price))];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
        let expected: BooleanArray = (0..rows).map(|n| Some(numbers(n).is_some_and(|q| q != 0))).collect();
        for sql in [
            "qty <> 0 and 10 / qty >= 0",
            "not (qty = 0 or 10 / qty < 0)",
            "qty <> 0 and Price is not null and (10 / qty >= 0 or 1 / qty > 2)",
            "case when qty <> 0 then 10 / qty >= 0 else false end",
            "case when qty = 0 then -1 else 10 / qty end >= 0",
            "qty <> 0 and (qty = 0 or 10 / qty >= 0) and 5 / qty < 100",
        ] {
            let filter = Filter::parse(sql, &fields()).unwrap();
            assert_eq!(filter.keep(&batch).unwrap_or_else(|e| panic!("{sql}: {e}")), expected, "{sql}, {rows} rows");
        }
        for sql in ["sum(10 / qty) filter (where qty <> 0)", "sum(case when qty <> 0 then 10 / qty end)"] {
            let mut state = Aggregate::parse(sql, &fields()).unwrap().start();
            state.update(&batch).unwrap_or_else(|e| panic!("{sql}: {e}"));
            state.finish().unwrap();
        }
        if rows > 2 {
            for sql in ["10 / qty >= 0 and qty <> 0", "qty <> 0 or 10 / qty > 1"] {
                let error = Filter::parse(sql, &fields()).unwrap().keep(&batch).unwrap_err();
                assert!(error.to_string().contains("zero"), "{sql}: {error}");
            }
        }
    }
}

#[test]
fn conditions_that_are_none_are_refused() {
    for (sql, message) in [
        ("qty", "\"qty\" is not a condition: its type is int64"),
        ("at < now()", "now() cannot be used here"),
        ("random() < 0.5", "random() cannot be used here"),
        ("sum(qty) > 1", "sum(qty) is an aggregate"),
        ("exists (select 1)", "a subquery cannot be used here"),
        ("qty = $1", "parameter $1 cannot be used here"),
        ("price > 1", "unknown column \"price\""),
        ("qty > 1; drop table x", "expected: end of expression"),
        ("qty > 1) from input where (true", "expected: end of expression"),
        ("", "expected: an expression"),
    ] {
        let error = Filter::parse(sql, &fields()).unwrap_err();
        assert!(matches!(error, QueryError::Sql { .. }), "{sql}: {error:?}");
        assert!(error.to_string().starts_with(message), "{sql}: {error}");
    }
    assert_eq!(Filter::parse("price > 1", &fields()).unwrap_err().hint(), Some("did you mean \"Price\"?"));
    let missing = Filter::parse("long > 1", &fields()).unwrap().keep(&batch()).unwrap_err();
    assert_eq!(missing.to_string(), "unknown column \"long\"");
    let overflow = Filter::parse("qty + 9223372036854775807 > 0", &fields()).unwrap().keep(&batch()).unwrap_err();
    assert!(matches!(overflow, QueryError::Execution { .. }), "{overflow}");
}

#[test]
fn an_aggregate_is_fed_batch_by_batch() {
    for (sql, columns, expected) in [
        ("count(*)", vec![], "6"),
        ("count(qty)", vec!["qty"], "4"),
        ("sum(qty)", vec!["qty"], "12"),
        ("sum(qty) filter (where status = 'void')", vec!["qty", "status"], "null"),
        ("sum(qty) filter (where qty is null)", vec!["qty"], "null"),
        ("sum(distinct qty)", vec!["qty"], "6"),
        ("sum(qty - 3)", vec!["qty"], "0"),
        ("sum(Price)", vec!["Price"], "8.00"),
        ("sum(qty * Price)", vec!["qty", "Price"], "26.00"),
        ("sum(Price) filter (where status = 'paid')", vec!["Price", "status"], "3.00"),
        ("sum(Price) filter (where status = 'void')", vec!["Price", "status"], "null"),
        ("sum(qty) / count(*) + 1", vec!["qty"], "3"),
        ("coalesce(sum(Price), 0) - sum(Price)", vec!["Price"], "0.00"),
        ("count(distinct status)", vec!["status"], "2"),
        ("max(at)", vec!["at"], "1970-01-02T00:00:00Z"),
        ("min(status)", vec!["status"], "open"),
        ("avg(qty)", vec!["qty"], "3"),
        ("sum(case when status = 'paid' then 1 else 0 end)", vec!["status"], "4"),
        ("max(qty) > 3", vec!["qty"], "true"),
    ] {
        let aggregate = Aggregate::parse(sql, &fields()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(aggregate.columns(), columns, "{sql}");
        let (mut state, untouched) = (aggregate.start(), aggregate.start());
        state.update(&batch()).unwrap();
        state.update(&batch()).unwrap();
        assert_eq!(state.finish().unwrap_or_else(|e| panic!("{sql}: {e}")).to_string(), expected, "{sql}");
        untouched.finish().unwrap();
    }
}

#[test]
fn aggregates_that_are_none_are_refused() {
    for (sql, message) in [
        ("qty", "\"qty\" is not an aggregate"),
        ("sum(qty) + qty", "column \"qty\" stands outside an aggregate"),
        ("array_agg(qty)", "array_agg(), which depends on the order of rows, cannot be used here"),
        ("sum(qty) filter (where at < now())", "now() cannot be used here"),
        ("sum(qtyy)", "unknown column \"qtyy\""),
        ("sum(qty) over ()", "a window function cannot be used here"),
        ("sum(qty) from input", "expected: end of expression"),
    ] {
        let error = Aggregate::parse(sql, &fields()).unwrap_err();
        assert!(error.to_string().starts_with(message), "{sql}: {error}");
    }
}

#[test]
fn sums_that_do_not_fit_are_told() {
    let longest = Decimal128Array::from(vec![99_999_999_999_999_999_999_999_999_999_999_999_999; 4]).with_precision_and_scale(38, 0).unwrap();
    let columns: [(&str, ArrayRef); 2] = [("qty", Arc::new(Int64Array::from(vec![i64::MAX; 4]))), ("long", Arc::new(longest))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for sql in ["sum(qty)", "sum(long)", "sum(qty * 2)"] {
        let mut state = Aggregate::parse(sql, &fields()).unwrap().start();
        let error = state.update(&batch).and_then(|()| state.finish()).unwrap_err();
        assert!(matches!(error, QueryError::Execution { .. }), "{sql}: {error}");
    }
}

#[test]
fn expressions_cross_threads() {
    fn check<T: Send>(_: T) {}
    fn shared<T: Send + Sync + Clone>(_: T) {}
    shared(Filter::parse("qty = 1", &fields()).unwrap());
    shared(Aggregate::parse("sum(qty)", &fields()).unwrap());
    check(Aggregate::parse("sum(qty)", &fields()).unwrap().start());
}
