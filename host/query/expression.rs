//! SQL conditions and aggregates over a fixed schema, compiled once and fed batch by batch.
//! Never takes what could answer differently another time: clocks, randomness, subqueries, order of arrival.
//! Source filters and balance checks are made of them.

use super::{
    QueryError, Value,
    chain::Chain,
    config,
    depth::{deep, refuse_deep, too_deep},
    table::nullable_schema,
    unsound::{both_zeros, unlike},
};
use crate::schema::Field;
use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, RecordBatch, RecordBatchOptions},
    compute::{cast, filter_record_batch, prep_null_mask_filter},
    datatypes::{DataType as ArrowType, Int64Type, SchemaRef},
};
use datafusion::{
    common::{
        Column, DFSchema,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::{DataFusionError, Result as PlanResult},
    execution::SessionState,
    logical_expr::{
        Accumulator, EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, Operator, Volatility, expr::AggregateFunction,
        physical_planning_context::PhysicalPlanningContext, simplify::SimplifyContext, utils::find_aggregate_exprs,
    },
    optimizer::simplify_expressions::ExprSimplifier,
    physical_expr::{
        PhysicalExpr,
        aggregate::{AggregateFunctionExpr, LoweredAggregateBuilder},
        create_physical_expr,
        expressions::{BinaryExpr, CastExpr},
    },
    prelude::SessionContext,
    scalar::ScalarValue,
};
use std::{fmt, sync::Arc};

/// A condition on a row.
#[derive(Clone)]
pub struct Filter {
    sql: Arc<str>,
    inputs: Inputs,
    condition: Arc<dyn PhysicalExpr>,
}

/// An aggregate over rows.
#[derive(Clone)]
pub struct Aggregate {
    sql: Arc<str>,
    inputs: Inputs,
    parts: Arc<[Part]>,
    /// The expression around the aggregates, over a row of what they came to.
    result: Arc<dyn PhysicalExpr>,
    result_schema: SchemaRef,
}

/// An aggregate that has seen some rows.
pub struct AggregateState {
    aggregate: Aggregate,
    accumulators: Vec<Box<dyn Accumulator>>,
}

/// The columns that an expression reads, in the schema's order.
#[derive(Clone)]
struct Inputs {
    columns: Arc<[String]>,
    schema: SchemaRef,
}

/// One aggregate function of an expression.
struct Part {
    function: Arc<AggregateFunctionExpr>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    filter: Option<Arc<dyn PhysicalExpr>>,
    /// For a sum of 64-bit integers: what is summed, before it was made wide.
    narrow: Option<Arc<dyn PhysicalExpr>>,
}

impl Filter {
    /// Returns the condition that `sql` is over `fields`.
    ///
    /// # Errors
    /// It is no condition over these columns, or not one that always answers alike.
    pub fn parse(sql: &str, fields: &[Field]) -> Result<Filter, QueryError> {
        refuse_deep(sql)?;
        deep(|| Filter::planned(sql, fields))
    }

    fn planned(sql: &str, fields: &[Field]) -> Result<Filter, QueryError> {
        let state = state();
        let expr = logical(&state, sql, fields)?;
        if let Some(aggregate) = find_aggregate_exprs([&expr]).first() {
            return Err(refused(format!("{aggregate} is an aggregate"), "a condition looks at one row"));
        }
        let inputs = Inputs::of(&expr, fields);
        let schema = inputs.df_schema()?;
        let simplifier = simplifier(&state, &schema);
        let expr = simplifier.coerce(expr, &schema).and_then(|e| simplifier.simplify(e)).map_err(told)?;
        let condition = physical(&state, &expr, &schema).map_err(told)?;
        let data_type = condition.data_type(&inputs.schema).map_err(told)?;
        if data_type != ArrowType::Boolean {
            return Err(refused(format!("{:?} is not a condition: its type is {}", sql.trim(), type_name(&data_type)), "compare it with something"));
        }
        Ok(Filter { sql: sql.trim().into(), inputs, condition })
    }

    /// Returns the columns it reads.
    pub fn columns(&self) -> &[String] {
        &self.inputs.columns
    }

    /// Returns which rows of `batch` meet the condition; unknown is no. Columns are found by name.
    ///
    /// # Errors
    /// A column is missing, or the condition fails on a value: an overflow, a division by zero.
    pub fn keep(&self, batch: &RecordBatch) -> Result<BooleanArray, QueryError> {
        let mask = evaluate(&self.condition, &self.inputs.pick(batch)?)?;
        let mask = mask.as_boolean();
        Ok(if mask.nulls().is_some() { prep_null_mask_filter(mask) } else { mask.clone() })
    }
}

impl Aggregate {
    /// Returns the aggregate that `sql` is over `fields`, `sum(amount)` or `sum(qty * price) filter (where paid)` for one.
    ///
    /// # Errors
    /// It is no aggregate over these columns, or not one that always answers alike.
    pub fn parse(sql: &str, fields: &[Field]) -> Result<Aggregate, QueryError> {
        refuse_deep(sql)?;
        deep(|| Aggregate::planned(sql, fields))
    }

    fn planned(sql: &str, fields: &[Field]) -> Result<Aggregate, QueryError> {
        let state = state();
        let expr = logical(&state, sql, fields)?;
        let inputs = Inputs::of(&expr, fields);
        let (top, aggregates, input) = plan(&state, sql, expr, &inputs)?;
        let parts = aggregates.aggr_expr.iter().map(|e| Part::new(&state, e, &input)).collect::<Result<Vec<_>, _>>()?;
        let top = simplifier(&state, &aggregates.schema).simplify(top).map_err(told)?;
        let result = physical(&state, &top, &aggregates.schema).map_err(told)?;
        let result_schema = Arc::clone(aggregates.schema.inner());
        Ok(Aggregate { sql: sql.trim().into(), inputs, parts: parts.into(), result, result_schema })
    }

    /// Returns the columns it reads.
    pub fn columns(&self) -> &[String] {
        &self.inputs.columns
    }

    /// Returns its state before the first row.
    ///
    /// # Panics
    /// Never: that accumulators can be made was tried by [`Aggregate::parse`].
    pub fn start(&self) -> AggregateState {
        let accumulators = self.parts.iter().map(|p| p.function.create_accumulator().expect("BUG: parse has made one")).collect();
        AggregateState { aggregate: self.clone(), accumulators }
    }
}

impl AggregateState {
    /// Takes the rows of a batch in. Columns are found by name.
    ///
    /// # Errors
    /// A column is missing, or an argument fails on a value.
    pub fn update(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        let batch = self.aggregate.inputs.pick(batch)?;
        for (part, accumulator) in self.aggregate.parts.iter().zip(&mut self.accumulators) {
            // The filter guards the arguments: they see only rows that pass.
            let passed = match &part.filter {
                Some(condition) => &filter_record_batch(&batch, evaluate(condition, &batch)?.as_boolean())?,
                None => &batch,
            };
            let arguments = match &part.narrow {
                Some(narrow) => vec![wide_sum(&evaluate(narrow, passed)?)?],
                None => part.arguments.iter().map(|a| evaluate(a, passed)).collect::<Result<Vec<_>, _>>()?,
            };
            accumulator.update_batch(&arguments).map_err(told)?;
        }
        Ok(())
    }

    /// Returns what the rows came to.
    ///
    /// # Errors
    /// A sum does not fit its type, or the expression around the aggregates fails.
    pub fn finish(mut self) -> Result<Value, QueryError> {
        let mut row: Vec<ArrayRef> = Vec::new();
        for (field, accumulator) in self.aggregate.result_schema.fields().iter().zip(&mut self.accumulators) {
            let value = accumulator.evaluate().map_err(told)?;
            // Sums are taken wider than they are declared, so that one that does not fit is seen.
            let fits = value.cast_to(field.data_type()).map_err(|_| QueryError::Execution {
                message: format!("{} comes to {value}, which does not fit {}", self.aggregate.sql, type_name(field.data_type())),
            })?;
            row.push(fits.to_array().map_err(told)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let batch = RecordBatch::try_new_with_options(nullable(&self.aggregate.result_schema), row, &options)?;
        let result = evaluate(&self.aggregate.result, &batch)?;
        Value::of(&ScalarValue::try_from_array(&result, 0).map_err(told)?)
    }
}

impl Inputs {
    fn of(expr: &Expr, fields: &[Field]) -> Inputs {
        let used = expr.column_refs();
        let fields: Vec<Field> = fields.iter().filter(|f| used.iter().any(|c| c.name == f.name)).cloned().collect();
        Inputs { columns: fields.iter().map(|f| f.name.clone()).collect(), schema: nullable_schema(&fields) }
    }

    fn df_schema(&self) -> Result<DFSchema, QueryError> {
        DFSchema::try_from(Arc::clone(&self.schema)).map_err(told)
    }

    /// Returns the columns of `batch` that the expression reads, with its types.
    fn pick(&self, batch: &RecordBatch) -> Result<RecordBatch, QueryError> {
        let column = |name: &String, data_type: &ArrowType| match batch.column_by_name(name) {
            Some(column) if column.data_type() == data_type => Ok(Arc::clone(column)),
            Some(column) => Ok(cast(column, data_type)?),
            None => {
                let schema = batch.schema();
                Err(QueryError::unknown_column(name, &schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>()))
            }
        };
        let columns = self.columns.iter().zip(self.schema.fields()).map(|(c, f)| column(c, f.data_type())).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?)
    }
}

impl Part {
    fn new(state: &SessionState, expr: &Expr, input: &DFSchema) -> Result<Part, QueryError> {
        let simplifier = simplifier(state, input);
        let wide = expr.clone().transform_up(|e| widen(e, input, &simplifier)).map_err(told)?.data;
        let context = PhysicalPlanningContext::default();
        let lowered = LoweredAggregateBuilder::new(&wide, input, input.as_arrow(), state.execution_props(), &context).build().map_err(told)?;
        if !lowered.order_bys.is_empty() {
            return Err(refused(format!("{expr} asks for an order of rows"), "an aggregate here sees rows in any order"));
        }
        lowered.aggregate.create_accumulator().map_err(told)?;
        let arguments = lowered.aggregate.expressions().into_iter().map(checked).collect::<PlanResult<Vec<_>>>().map_err(told)?;
        let filter = lowered.filter.map(checked).transpose().map_err(told)?;
        let narrow = narrow(&lowered.aggregate, &arguments, input);
        Ok(Part { function: lowered.aggregate, arguments, filter, narrow })
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Filter").field(&self.sql).finish()
    }
}

impl fmt::Debug for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Aggregate").field(&self.sql).finish()
    }
}

fn state() -> SessionState {
    SessionContext::new_with_config(config(1, true)).state()
}

fn told(error: DataFusionError) -> QueryError {
    QueryError::of(error, &[])
}

fn refused(message: String, hint: &str) -> QueryError {
    QueryError::Sql { message, hint: Some(hint.into()) }
}

pub(super) fn type_name(data_type: &ArrowType) -> String {
    match data_type {
        ArrowType::Decimal128(p, s) | ArrowType::Decimal256(p, s) => format!("decimal({p},{s})"),
        ArrowType::Utf8 | ArrowType::Utf8View | ArrowType::LargeUtf8 => "string".into(),
        other => other.to_string().to_lowercase(),
    }
}

/// Parses one expression, and refuses what would not answer alike every time.
fn logical(state: &SessionState, sql: &str, fields: &[Field]) -> Result<Expr, QueryError> {
    let schema = DFSchema::try_from(nullable_schema(fields)).map_err(told)?;
    let expr = state.create_logical_expr(sql, &schema).map_err(told)?;
    let mut reason = None;
    let walk = expr.apply(|e| {
        reason = unrepeatable(e);
        Ok(if reason.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walk.map_err(told)?;
    if let Some(error) = unlike(&expr) {
        return Err(error);
    }
    match reason {
        Some(what) => Err(refused(format!("{what} cannot be used here"), "a replay has to come to the same answer, from the row alone")),
        None => Ok(expr),
    }
}

fn unrepeatable(expr: &Expr) -> Option<String> {
    const BY_ARRIVAL: [&str; 8] = [
        "array_agg",
        "first_value",
        "last_value",
        "nth_value",
        "string_agg",
        "approx_percentile_cont",
        "approx_percentile_cont_with_weight",
        "approx_median",
    ];
    match expr {
        Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable => Some(format!("{}()", f.func.name())),
        Expr::AggregateFunction(a) if BY_ARRIVAL.contains(&a.func.name()) => {
            Some(format!("{}(), which depends on the order of rows,", a.func.name()))
        }
        Expr::WindowFunction(_) => Some("a window function".into()),
        Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::OuterReferenceColumn(..) => {
            Some("a subquery".into())
        }
        Expr::Placeholder(p) => Some(format!("parameter {}", p.id)),
        Expr::ScalarVariable(_, names) => Some(format!("variable {}", names.join("."))),
        _ => None,
    }
}

/// Splits `expr` into its aggregate functions and what is around them, with types coerced.
fn plan(state: &SessionState, sql: &str, expr: Expr, inputs: &Inputs) -> Result<(Expr, datafusion::logical_expr::Aggregate, DFSchema), QueryError> {
    let functions = find_aggregate_exprs([&expr]);
    if functions.is_empty() {
        return Err(refused(format!("{:?} is not an aggregate", sql.trim()), "sum(…), count(*), min(…), max(…) and avg(…) are"));
    }
    let input = inputs.df_schema()?;
    let empty = LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema: Arc::new(input.clone()) });
    let aggregate = LogicalPlanBuilder::from(empty).aggregate(Vec::<Expr>::new(), functions.clone()).and_then(|b| b.build()).map_err(told)?;
    let outputs = aggregate.schema().columns();
    let around = expr.transform_down(|e| match functions.iter().position(|f| *f == e) {
        Some(i) => Ok(Transformed::new(Expr::Column(outputs[i].clone()), true, TreeNodeRecursion::Jump)),
        None => Ok(Transformed::no(e)),
    });
    let around = around.map_err(told)?.data;
    if let Some(Column { name, .. }) = around.column_refs().into_iter().find(|c| !outputs.contains(c)) {
        return Err(refused(format!("column {name:?} stands outside an aggregate"), "put sum(…), min(…) or max(…) around it"));
    }
    let plan = LogicalPlanBuilder::from(aggregate).project([around]).and_then(|b| b.build()).map_err(told)?;
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).map_err(told)?;
    if let LogicalPlan::Projection(projection) = &plan
        && let LogicalPlan::Aggregate(aggregate) = &*projection.input
        && let [around] = &projection.expr[..]
    {
        let input = aggregate.input.schema().as_ref().clone();
        return Ok((around.clone(), aggregate.clone(), input));
    }
    Err(QueryError::Plan { message: format!("{:?} is not one aggregate", sql.trim()) })
}

/// Simplifies what an aggregate function looks at, and sums integers as decimals and long decimals as longer
/// ones: DataFusion's own sums wrap around silently.
fn widen(expr: Expr, input: &DFSchema, simplifier: &ExprSimplifier) -> PlanResult<Transformed<Expr>> {
    use datafusion::logical_expr::{ExprSchemable, cast};
    let Expr::AggregateFunction(AggregateFunction { func, mut params }) = expr else { return Ok(Transformed::no(expr)) };
    let simple = |e: Expr| Ok::<_, DataFusionError>(both_zeros(simplifier.simplify(e)?)?.data);
    params.args = params.args.into_iter().map(simple).collect::<PlanResult<_>>()?;
    params.filter = params.filter.map(|f| simple(*f).map(Box::new)).transpose()?;
    if func.name() == "sum"
        && let [argument] = &params.args[..]
    {
        let wide = match argument.get_type(input)? {
            ArrowType::Int64 | ArrowType::UInt64 => Some(SUM),
            ArrowType::Decimal128(p, s) if p > 28 => Some(ArrowType::Decimal256(76, s)),
            _ => None,
        };
        if let Some(wide) = wide {
            params.args = vec![cast(argument.clone(), wide)];
        }
    }
    Ok(Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params })))
}

/// Returns what a sum of 64-bit integers is over, without the cast that made it wide.
fn narrow(function: &AggregateFunctionExpr, arguments: &[Arc<dyn PhysicalExpr>], input: &DFSchema) -> Option<Arc<dyn PhysicalExpr>> {
    let [argument] = arguments else { return None };
    let cast = argument.downcast_ref::<CastExpr>().filter(|_| function.fun().name() == "sum" && !function.is_distinct())?;
    let is_narrow = cast.expr().data_type(input.as_arrow()).is_ok_and(|t| t == ArrowType::Int64);
    (is_narrow && *cast.cast_type() == SUM).then(|| Arc::clone(cast.expr()))
}

/// What sums of integers are.
const SUM: ArrowType = ArrowType::Decimal128(38, 0);

/// Returns the sum of 64-bit integers as the one value of an array: a batch of them does not exceed it, and one sum is taken in faster than
/// each integer made wide. Without a value there is none.
fn wide_sum(integers: &ArrayRef) -> Result<ArrayRef, QueryError> {
    let integers = integers.as_primitive::<Int64Type>();
    let some = integers.null_count() < integers.len();
    let sum: i128 = match integers.nulls() {
        None => integers.values().iter().map(|n| i128::from(*n)).sum(),
        Some(_) => integers.iter().flatten().map(i128::from).sum(),
    };
    Ok(Arc::new(Decimal128Array::from_iter(some.then_some(Some(sum))).with_data_type(SUM)))
}

/// Some functions, `coalesce` for one, are only there after simplification.
fn simplifier(state: &SessionState, schema: &DFSchema) -> ExprSimplifier {
    let context = SimplifyContext::builder().with_schema(Arc::new(schema.clone())).with_config_options(Arc::clone(state.config_options()));
    ExprSimplifier::new(context.build())
}

fn physical(state: &SessionState, expr: &Expr, schema: &DFSchema) -> PlanResult<Arc<dyn PhysicalExpr>> {
    let expr = both_zeros(expr.clone())?.data;
    checked(create_physical_expr(&expr, schema, state.execution_props(), &PhysicalPlanningContext::default())?)
}

/// Makes integer arithmetic fail where it would wrap around, and AND and OR look at their right side
/// only where the left one leaves it open: whether `qty <> 0 and total / qty > 1` fails must not
/// depend on what other rows are in the batch, on which DataFusion decides.
fn checked(expr: Arc<dyn PhysicalExpr>) -> PlanResult<Arc<dyn PhysicalExpr>> {
    let strict = expr.transform_up(|e| match e.downcast_ref::<BinaryExpr>() {
        Some(b) if matches!(b.op(), Operator::And | Operator::Or) => Ok(Transformed::yes(Chain::of(*b.op(), b.left(), b.right()))),
        Some(b) if matches!(b.op(), Operator::Plus | Operator::Minus | Operator::Multiply) => {
            let strict = BinaryExpr::new(Arc::clone(b.left()), *b.op(), Arc::clone(b.right())).with_fail_on_overflow(true);
            Ok(Transformed::yes(Arc::new(strict) as Arc<dyn PhysicalExpr>))
        }
        _ => Ok(Transformed::no(e)),
    });
    let strict = strict?.data;
    if depth(&strict) > DEPTH_MAX { Err(DataFusionError::External(Box::new(too_deep()))) } else { Ok(strict) }
}

/// Levels of an expression that is evaluated: whoever does it has an ordinary stack.
const DEPTH_MAX: usize = 200;

fn depth(expr: &Arc<dyn PhysicalExpr>) -> usize {
    1 + expr.children().into_iter().map(depth).max().unwrap_or(0)
}

fn evaluate(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<ArrayRef, QueryError> {
    expr.evaluate(batch).and_then(|v| v.into_array(batch.num_rows())).map_err(told)
}

fn nullable(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>();
    Arc::new(arrow::datatypes::Schema::new(fields))
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
