//! Sums and arithmetic of integers and decimals that fail where DataFusion's own wrap around without a word.
//! Never changes a name or a type of a query's columns.
//! `Session` plans with them; conditions and aggregates have `expression`.

use super::expression::type_name;
use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray},
    compute::{CastOptions, cast, cast_with_options, kernels::numeric},
    datatypes::{DataType as ArrowType, Decimal128Type, Field, FieldRef},
    error::ArrowError,
};
use datafusion::{
    common::{
        Result as PlanResult, ScalarValue,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::DataFusionError,
    functions_aggregate::sum::Sum,
    logical_expr::{
        Accumulator, AggregateUDF, AggregateUDFImpl, BinaryExpr, ColumnarValue, EmitTo, Expr, ExprSchemable, GroupsAccumulator, LogicalPlan,
        Operator, ReturnFieldArgs, ReversedUDAF, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
        expr_rewriter::NamePreserver,
        function::{AccumulatorArgs, StateFieldsArgs},
        lit,
        type_coercion::binary::BinaryTypeCoercer,
        utils::{AggregateOrderSensitivity, merge_schema},
    },
    optimizer::AnalyzerRule,
    physical_expr_common::datum::apply,
    prelude::SessionContext,
};
use std::sync::Arc;

/// Makes all that `context` plans from now on fail where it would overflow.
pub(super) fn refuse(context: &SessionContext) {
    context.add_analyzer_rule(Arc::new(Strict));
    context.register_udaf(AggregateUDF::from(StrictSum(Sum::new())));
}

fn overflow(what: &str, value: impl std::fmt::Display, data_type: &ArrowType) -> DataFusionError {
    DataFusionError::Execution(format!("overflow: {what} comes to {value}, which does not fit {}", type_name(data_type)))
}

/// Puts [`Arithmetic`] in the place of `+`, `-` and `*`, when all types are known.
#[derive(Debug)]
struct Strict;

impl AnalyzerRule for Strict {
    fn name(&self) -> &str {
        "refuse_overflow"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> PlanResult<LogicalPlan> {
        let strict = plan.transform_up_with_subqueries(|plan| {
            // Planning wants to see what a LIMIT is.
            if matches!(plan, LogicalPlan::Limit(_)) {
                return Ok(Transformed::no(plan));
            }
            let schema = merge_schema(&plan.inputs());
            let names = NamePreserver::new(&plan);
            let named = |expr: Expr| {
                let name = names.save(&expr);
                let strict = expr.transform_up(|e| strict(e, &schema))?;
                Ok(if strict.transformed { strict.update_data(|e| name.restore(e)) } else { strict })
            };
            let strict = plan.map_expressions(|expr| match expr {
                // Of ROLLUP and its like each expression is a column of its own.
                sets @ Expr::GroupingSet(_) => sets.map_children(named),
                expr => named(expr),
            })?;
            if strict.transformed { strict.map_data(LogicalPlan::recompute_schema) } else { Ok(strict) }
        });
        Ok(strict?.data)
    }
}

fn strict(expr: Expr, schema: &datafusion::common::DFSchema) -> PlanResult<Transformed<Expr>> {
    let exact = |e: &Expr| e.get_type(schema).is_ok_and(|t| t.is_integer() || t.is_decimal());
    let (left, op, right) = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus | Operator::Multiply), right })
            if exact(&left) && exact(&right) =>
        {
            (*left, op, *right)
        }
        // Of the least integer there is no negative one.
        Expr::Negative(e) if e.get_type(schema).is_ok_and(|t| t.is_integer()) => {
            (lit(ScalarValue::new_zero(&e.get_type(schema)?)?), Operator::Minus, *e)
        }
        other => return Ok(Transformed::no(other)),
    };
    let function = ScalarUDF::from(Arithmetic { op, signature: Signature::any(2, Volatility::Immutable) });
    Ok(Transformed::yes(function.call(vec![left, right])))
}

/// `+`, `-` or `*` of integers and decimals.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Arithmetic {
    op: Operator,
    signature: Signature,
}

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        match self.op {
            Operator::Plus => "plus",
            Operator::Minus => "minus",
            _ => "times",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[ArrowType]) -> PlanResult<ArrowType> {
        BinaryTypeCoercer::new(&types[0], &self.op, &types[1]).get_result_type()
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> PlanResult<FieldRef> {
        let [left, right] = [0, 1].map(|i| &args.arg_fields[i]);
        let data_type = self.return_type(&[left.data_type().clone(), right.data_type().clone()])?;
        Ok(Arc::new(Field::new(self.name(), data_type, left.is_nullable() || right.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> PlanResult<ColumnarValue> {
        let kernel = match self.op {
            Operator::Plus => numeric::add,
            Operator::Minus => numeric::sub,
            _ => numeric::mul,
        };
        apply(&args.args[0], &args.args[1], |left, right| {
            let result = kernel(left, right)?;
            // Arrow sees to 128 bits, which hold a little more than 38 digits.
            if let (ArrowType::Decimal128(p, _), Some(decimals)) = (args.return_field.data_type(), result.as_primitive_opt::<Decimal128Type>()) {
                decimals
                    .validate_decimal_precision(*p)
                    .map_err(|_| ArrowError::ArithmeticOverflow(format!("overflow: a result of {} has more than {p} digits", self.op)))?;
            }
            Ok(result)
        })
    }
}

/// `sum`, taken wider than it is declared, so that one that does not fit is seen, and one that fits does not fail over the order of rows.
#[derive(Debug, PartialEq, Eq, Hash)]
struct StrictSum(Sum);

/// Returns what a sum of this type is taken in; `None` if it is taken as it is.
fn wide(of: &FieldRef) -> Option<FieldRef> {
    let data_type = match of.data_type() {
        ArrowType::Int64 | ArrowType::UInt64 | ArrowType::Duration(_) => ArrowType::Decimal128(38, 0),
        ArrowType::Decimal128(_, s) => ArrowType::Decimal256(76, *s),
        _ => return None,
    };
    Some(Arc::new(of.as_ref().clone().with_data_type(data_type)))
}

impl StrictSum {
    /// Makes an accumulator with `make`, of the wide type.
    fn widened(
        &self,
        args: AccumulatorArgs,
        make: fn(&Sum, AccumulatorArgs) -> PlanResult<Box<dyn Accumulator>>,
    ) -> PlanResult<Box<dyn Accumulator>> {
        let Some(wide) = wide(&args.return_field) else { return make(&self.0, args) };
        let types = Types { wide: wide.data_type().clone(), declared: args.return_field.data_type().clone() };
        Ok(Box::new(Wide { inner: make(&self.0, AccumulatorArgs { return_field: wide, ..args })?, types }))
    }
}

impl AggregateUDFImpl for StrictSum {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, types: &[ArrowType]) -> PlanResult<ArrowType> {
        self.0.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> PlanResult<Box<dyn Accumulator>> {
        self.widened(args, Sum::accumulator)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> PlanResult<Box<dyn Accumulator>> {
        // DataFusion has a sliding sum of distinct values for 64-bit integers only, which wraps around.
        if args.is_distinct {
            return Err(DataFusionError::NotImplemented("sum(DISTINCT …) over a frame that moves".into()));
        }
        self.widened(args, Sum::create_sliding_accumulator)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> PlanResult<Vec<FieldRef>> {
        let return_field = wide(&args.return_field).unwrap_or_else(|| Arc::clone(&args.return_field));
        self.0.state_fields(StateFieldsArgs { return_field, ..args })
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.0.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> PlanResult<Box<dyn GroupsAccumulator>> {
        let Some(wide) = wide(&args.return_field) else { return self.0.create_groups_accumulator(args) };
        let types = Types { wide: wide.data_type().clone(), declared: args.return_field.data_type().clone() };
        Ok(Box::new(Wide { inner: self.0.create_groups_accumulator(AccumulatorArgs { return_field: wide, ..args })?, types }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.0.reverse_expr()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }
}

/// An accumulator of a wide type.
#[derive(Debug)]
struct Wide<A> {
    inner: A,
    types: Types,
}

#[derive(Debug)]
struct Types {
    wide: ArrowType,
    declared: ArrowType,
}

impl Types {
    fn widen(&self, values: &[ArrayRef]) -> PlanResult<Vec<ArrayRef>> {
        let widen = |v: &ArrayRef| match self.declared {
            // A decimal is made of numbers only.
            ArrowType::Duration(_) => cast(&cast(v, &ArrowType::Int64)?, &self.wide),
            _ => cast(v, &self.wide),
        };
        Ok(values.iter().map(widen).collect::<Result<_, _>>()?)
    }

    /// Returns sums as they are declared.
    fn declare(&self, sums: &ArrayRef) -> PlanResult<ArrayRef> {
        let options = CastOptions { safe: false, ..Default::default() };
        let declare = |sums: &ArrayRef| match self.declared {
            ArrowType::Duration(_) => cast(&cast_with_options(sums, &ArrowType::Int64, &options)?, &self.declared),
            _ => cast_with_options(sums, &self.declared, &options),
        };
        declare(sums).map_err(|_| {
            let fits = |row: &usize| declare(&sums.slice(*row, 1)).is_ok();
            let row = (0..sums.len()).find(|row| !fits(row)).unwrap_or_default();
            match arrow::util::display::array_value_to_string(sums, row) {
                Ok(sum) => overflow("a sum", sum, &self.declared),
                Err(e) => e.into(),
            }
        })
    }
}

impl Accumulator for Wide<Box<dyn Accumulator>> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        self.inner.update_batch(&self.types.widen(values)?)
    }

    fn evaluate(&mut self) -> PlanResult<ScalarValue> {
        let sum = self.inner.evaluate()?.to_array()?;
        ScalarValue::try_from_array(&self.types.declare(&sum)?, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }

    fn state(&mut self) -> PlanResult<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> PlanResult<()> {
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> PlanResult<()> {
        self.inner.retract_batch(&self.types.widen(values)?)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

impl GroupsAccumulator for Wide<Box<dyn GroupsAccumulator>> {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, count: usize) -> PlanResult<()> {
        self.inner.update_batch(&self.types.widen(values)?, groups, filter, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> PlanResult<ArrayRef> {
        self.types.declare(&self.inner.evaluate(emit_to)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> PlanResult<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> PlanResult<()> {
        self.inner.merge_batch(states, groups, count)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> PlanResult<Vec<ArrayRef>> {
        self.inner.convert_to_state(&self.types.widen(values)?, filter)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{QueryError, Session, StateValue, rows_json};

    const MAX: i64 = i64::MAX;
    /// The greatest decimal(38,2).
    const NINES: &str = "arrow_cast('999999999999999999999999999999999999.99', 'Decimal128(38, 2)')";

    fn answer(sql: &str) -> Result<String, QueryError> {
        let session = Session::new(None, None).unwrap();
        let row = |g: &str, n: i64| vec![StateValue::Text(g.into()), StateValue::Int(n)];
        let rows = vec![row("a", MAX), row("a", 1), row("a", -5), row("b", MAX), row("b", 1), row("c", i64::MIN)];
        session.register_rows("t", &[("g".into(), false), ("n".into(), true)], rows).unwrap();
        session.sql(sql).map(|rows| rows_json(&rows).as_array().unwrap().iter().map(|r| r.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn sums_and_arithmetic_that_overflow_are_errors() {
        for sql in [
            "select sum(n) s from t where g = 'b'".into(),
            "select g, sum(n) s from t group by g".into(),
            "select sum(distinct n) s from t where g = 'b'".into(),
            "select g, sum(distinct n) s, count(*) c from t group by g".into(),
            "select sum(n) filter (where n > 0) s from t".into(),
            "select sum(n) over (partition by g) s from t".into(),
            "select sum(n) over (order by n rows between 1 preceding and current row) s from t where g = 'b'".into(),
            "select n + 1 s from t".into(),
            "select n - 1 s from t".into(),
            "select n * 2 s from t".into(),
            "select -n s from t".into(),
            "select count(*) from t where n + 1 > 5".into(),
            "select count(*) from t group by n + 1".into(),
            "select 1 from t order by n * 2".into(),
            "select sum(arrow_cast(n, 'Duration(Nanosecond)')) s from t where g = 'b'".into(),
            "select t.g, sum(timestamp '2026-05-01' - timestamp '1900-05-01') s from t, t u, t v where t.g = 'a' group by t.g".into(),
            "select (select max(n * 2) from t) s".into(),
            "select a.n from t a join t b on a.n = b.n + 1".into(),
            "select sum(n + 1) s from t".into(),
            format!("select {MAX} + 1 s"),
            "select arrow_cast(2147483647, 'Int32') + arrow_cast(1, 'Int32') s".into(),
            format!("select {NINES} + {NINES} s"),
            format!("select {NINES} + arrow_cast('0.01', 'Decimal128(38, 2)') s"),
            format!("select {NINES} * 10 s"),
            format!("select sum(x) s from (select {NINES} x union all select {NINES} x)"),
            format!("select g, sum(x) s from (select g, {NINES} x from t) group by g"),
        ] {
            let error = answer(&sql).unwrap_err();
            assert!(matches!(error, QueryError::Execution { .. }) && error.to_string().contains("verflow"), "{sql}: {error}");
        }
        let error = answer("select g, sum(n) s from t where g = 'b' group by g").unwrap_err();
        assert_eq!(error.to_string(), "the query failed: overflow: a sum comes to 9223372036854775808, which does not fit int64");
    }

    #[test]
    fn what_fits_comes_out_under_its_name_and_type() {
        for (sql, rows) in [
            ("select sum(n) from t where g = 'a'".into(), r#"{"sum(t.n)":9223372036854775803}"#),
            ("select g, sum(n) s from t where g <> 'b' group by g having sum(n) > 0".into(), r#"{"g":"a","s":9223372036854775803}"#),
            ("select sum(n) s from t where n > 5 and n < 5".into(), r#"{"s":null}"#),
            ("select sum(timestamp '2026-05-03' - timestamp '2026-05-01') s from t where g = 'b'".into(), r#"{"s":"PT345600S"}"#),
            ("select n + 1 from t where g = 'c'".into(), r#"{"t.n + Int64(1)":-9223372036854775807}"#),
            ("select n + 1 from t where g = 'c' group by n + 1".into(), r#"{"t.n + Int64(1)":-9223372036854775807}"#),
            ("select sum(n + 2) from t where n < -5".into(), r#"{"sum(t.n + Int64(2))":-9223372036854775806}"#),
            ("select -n m, -9223372036854775808 s from t where n = 1 and g = 'a'".into(), r#"{"m":-1,"s":-9223372036854775808}"#),
            (
                "select sum(n) over (order by n rows 2 preceding) s from t where g = 'a' order by n".into(),
                r#"{"s":-5} {"s":-4} {"s":9223372036854775803}"#,
            ),
            ("select g from t where n = 1 order by g limit 2 - 1".into(), r#"{"g":"a"}"#),
            ("select (select count(*) from t u where u.n = t.n + 0) c, g from t where n = 1 and g = 'a'".into(), r#"{"c":2,"g":"a"}"#),
            ("select sum(f) s, sum(f) over () w from (select 0.5 f) group by f".into(), r#"{"s":0.5,"w":0.5}"#),
            (
                "select n + 1 m, count(*) c from t where g = 'c' or n = -5 group by rollup(n + 1) order by 1".into(),
                r#"{"c":1,"m":-9223372036854775807} {"c":1,"m":-4} {"c":2,"m":null}"#,
            ),
            (format!("select sum(x) - 1 s from (select {NINES} x)"), r#"{"s":"999999999999999999999999999999999998.99"}"#),
        ] {
            assert_eq!(answer(&sql).unwrap_or_else(|e| panic!("{sql}: {e}")), rows, "{sql}");
        }
    }
}
