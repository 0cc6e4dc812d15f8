//! SQL that DataFusion answers wrongly without a word: refused, or put right.
//! Never changes what is answered rightly.
//! `Session` plans with it, as do conditions and aggregates.

use super::QueryError;
use datafusion::{
    common::{
        JoinType, NullEquality, Result as PlanResult, ScalarValue,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    logical_expr::{Expr, LogicalPlan, expr::InList, expr_rewriter::NamePreserver, lit},
    optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule},
    prelude::SessionContext,
};
use std::sync::Arc;

/// Makes all that `context` plans from now on take both zeros for one in a list.
pub(super) fn mend(context: &SessionContext) {
    context.add_optimizer_rule(Arc::new(BothZeros));
}

/// Refuses a plan, fresh from its text, that would be answered wrongly.
pub(super) fn refuse(plan: &LogicalPlan) -> Result<(), QueryError> {
    let mut found = None;
    let walk = plan.apply_with_subqueries(|plan| {
        found = found.take().or_else(|| all_of_a_set(plan)).or_else(|| plan.expressions().iter().find_map(unlike));
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walk.map_err(|e| QueryError::of(e, &[]))?;
    found.map_or(Ok(()), Err)
}

/// EXCEPT ALL and INTERSECT ALL become a join that does not count. Without ALL, or over rows that are distinct, there is nothing to count.
fn all_of_a_set(plan: &LogicalPlan) -> Option<QueryError> {
    let LogicalPlan::Join(join) = plan else { return None };
    let what = match join.join_type {
        JoinType::LeftAnti => "EXCEPT",
        JoinType::LeftSemi => "INTERSECT",
        _ => return None,
    };
    (join.null_equality == NullEquality::NullEqualsNull && !matches!(*join.left, LogicalPlan::Distinct(_))).then(|| QueryError::Sql {
        message: format!("{what} ALL is not taken: how often a row occurs would not count"),
        hint: Some(format!("count on both sides: SELECT a, count(*) FROM … GROUP BY a {what} SELECT a, count(*) FROM … GROUP BY a")),
    })
}

/// SIMILAR TO is taken for a regular expression that may match anywhere, in which % and _ mean themselves.
pub(super) fn unlike(expr: &Expr) -> Option<QueryError> {
    let similar = expr.exists(|e| Ok(matches!(e, Expr::SimilarTo(_)))).unwrap_or(false);
    similar.then(|| QueryError::Sql {
        message: "SIMILAR TO is not taken: it would not follow the standard".into(),
        hint: Some("write a LIKE 'x%', or a ~ '^(x|y).*$' with a regular expression".into()),
    })
}

/// Values of a list are found by their bits, and the two zeros of floating-point numbers are equal, but not in their bits.
#[derive(Debug)]
struct BothZeros;

impl OptimizerRule for BothZeros {
    fn name(&self) -> &str {
        "both_zeros"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let both = both_zeros(expr)?;
            Ok(if both.transformed { both.update_data(|e| name.restore(e)) } else { both })
        })
    }
}

/// Puts both zeros into lists that have one of them. A list that is no list of values is a chain of comparisons, which know both.
pub(super) fn both_zeros(expr: Expr) -> PlanResult<Transformed<Expr>> {
    expr.transform_up(|e| match e {
        Expr::InList(InList { expr, mut list, negated }) => {
            if list.iter().all(|e| matches!(e, Expr::Literal(..))) || expr.is_volatile() {
                let zeros: Vec<Expr> = list.iter().filter_map(other_zero).filter(|zero| !list.contains(zero)).collect();
                let more = !zeros.is_empty();
                list.extend(zeros);
                return Ok(Transformed::new_transformed(Expr::InList(InList { expr, list, negated }), more));
            }
            let any = any_equal(&expr, &list);
            Ok(Transformed::yes(if negated { !any } else { any }))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// Halved again and again, so that a long list does not become a deep tree.
fn any_equal(expr: &Expr, list: &[Expr]) -> Expr {
    match list {
        [] => lit(false),
        [one] => expr.clone().eq(one.clone()),
        _ => {
            let (first, second) = list.split_at(list.len() / 2);
            any_equal(expr, first).or(any_equal(expr, second))
        }
    }
}

fn other_zero(expr: &Expr) -> Option<Expr> {
    let Expr::Literal(value, metadata) = expr else { return None };
    let other = match value {
        ScalarValue::Float64(Some(x)) if *x == 0.0 => ScalarValue::Float64(Some(-x)),
        ScalarValue::Float32(Some(x)) if *x == 0.0 => ScalarValue::Float32(Some(-x)),
        _ => return None,
    };
    Some(Expr::Literal(other, metadata.clone()))
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};
    use crate::schema::{DataType, Field};
    use arrow::array::{BooleanArray, Float64Array};

    fn batch() -> RecordBatch {
        let x = Float64Array::from(vec![Some(-0.0), Some(0.0), Some(1.0), None]);
        let y = Float64Array::from(vec![0.0, -0.0, 0.0, 0.0]);
        RecordBatch::try_from_iter_with_nullable([("x", Arc::new(x) as ArrayRef, true), ("y", Arc::new(y) as ArrayRef, true)]).unwrap()
    }

    fn session() -> Session {
        let session = Session::new(None, None).unwrap();
        session.register_batches("t", batch().schema(), vec![batch()]).unwrap();
        session
    }

    #[test]
    fn both_zeros_are_in_a_list_of_any_length() {
        let fields = [Field::new("x", DataType::Float64, true), Field::new("y", DataType::Float64, true)];
        for (condition, rows) in [
            ("x in (0)", [true, true, false, false]),
            ("x in (0, 5, 6, 7)", [true, true, false, false]),
            ("x in (-0.0, 5, 6, 7, 8, 9)", [true, true, false, false]),
            ("x = 0 or x = 5 or x = 6 or x = 7 or x = 8", [true, true, false, false]),
            ("x not in (0, 5, 6, 7)", [false, false, true, false]),
            ("x <> 0 and x <> 5 and x <> 6 and x <> 7 and x <> 8", [false, false, true, false]),
            ("x in (y, 5, 6, 7)", [true, true, false, false]),
            ("0.0 in (x, 5, 6, 7)", [true, true, false, false]),
            ("x not in (y, 5, 6, 7)", [false, false, true, false]),
            ("x in (1, 5, 6, 7)", [false, false, true, false]),
        ] {
            let count = rows.iter().filter(|r| **r).count() as i64;
            let sql = |of: &str| session().sql(of).unwrap_or_else(|e| panic!("{condition}: {e}")).scalar_i64("n");
            assert_eq!(sql(&format!("select count(*) n from t where {condition}")), Some(count), "{condition}");
            assert_eq!(sql(&format!("select count(*) filter (where {condition}) n from t")), Some(count), "{condition}");
            assert_eq!(sql(&format!("select sum(cast({condition} as int)) n from t")), Some(count), "{condition}");
            assert_eq!(Filter::parse(condition, &fields).unwrap().keep(&batch()).unwrap(), BooleanArray::from(rows.to_vec()), "{condition}");
            let mut state = Aggregate::parse(&format!("count(*) filter (where {condition})"), &fields).unwrap().start();
            state.update(&batch()).unwrap();
            assert_eq!(state.finish().unwrap().to_string(), count.to_string(), "{condition}");
        }
        assert_eq!(session().sql("select count(*) n from t where x in (select y from t)").unwrap().scalar_i64("n"), Some(2));
    }

    #[test]
    fn what_would_be_answered_wrongly_is_refused() {
        for (sql, message) in [
            ("select x from t except all select y from t", "EXCEPT ALL is not taken: how often a row occurs would not count"),
            ("select x from t intersect all select y from t", "INTERSECT ALL is not taken: how often a row occurs would not count"),
            ("with a as (select x from t except all select x from t) select * from a", "EXCEPT ALL is not taken"),
            ("select 1 where exists (select x from t except all select y from t)", "EXCEPT ALL is not taken"),
            ("explain select x from t except all select y from t", "EXCEPT ALL is not taken"),
            ("select x from t where 'abc' similar to 'b'", "SIMILAR TO is not taken: it would not follow the standard"),
            ("select case when 'abc' not similar to 'a%' then 1 end from t", "SIMILAR TO is not taken"),
            ("select 1 where 1 in (select 1 from t where 'a' similar to 'a')", "SIMILAR TO is not taken"),
        ] {
            let error = session().sql(sql).unwrap_err();
            assert!(error.to_string().starts_with(message) && error.hint().is_some(), "{sql}: {error}");
        }
        let error = Filter::parse("'a' similar to 'a'", &[]).unwrap_err();
        assert!(error.to_string().starts_with("SIMILAR TO is not taken"), "{error}");
        for (sql, rows) in [
            ("select x from t except select 1", 2),
            ("select x from t intersect select y from t", 1),
            ("select distinct x from t except all select 1", 2),
            ("select a.x from t a left semi join t b on a.x = b.x", 3),
            ("select x from t where 'abc' ~ '^(a|b).*$'", 4),
            ("select x from t where not exists (select 1 from t u where u.x = t.x)", 1),
        ] {
            let found = session().sql(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert_eq!(found.rows(), rows, "{sql}");
        }
    }
}
