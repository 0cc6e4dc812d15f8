//! AND and OR of any number of conditions, which look at a row only as long as it is open.
//! Never evaluates a condition twice, and never on a row that an earlier one has decided.
//! `expression` puts them in the place of DataFusion's own.

use arrow::{
    array::{Array, AsArray, BooleanArray, RecordBatch},
    buffer::BooleanBuffer,
    compute::{and_kleene, or_kleene},
    datatypes::{DataType as ArrowType, Schema},
};
use datafusion::{
    common::Result as PlanResult,
    logical_expr::{ColumnarValue, Operator},
    physical_expr::PhysicalExpr,
};
use std::{fmt, sync::Arc};

/// `terms` with AND or OR between them, from left to right.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Chain {
    op: Operator,
    terms: Vec<Arc<dyn PhysicalExpr>>,
}

impl Chain {
    /// Returns `left` and `right` with `op`, AND or OR, between them. A chain of the same kind is made longer, not deeper.
    pub(super) fn of(op: Operator, left: &Arc<dyn PhysicalExpr>, right: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        let mut terms = match left.downcast_ref::<Chain>() {
            Some(chain) if chain.op == op => chain.terms.clone(),
            _ => vec![Arc::clone(left)],
        };
        terms.push(Arc::clone(right));
        Arc::new(Chain { op, terms })
    }

    /// Returns the rows that a term after these `values` can still change.
    fn open(&self, values: &BooleanArray) -> BooleanArray {
        let undecided = if self.op == Operator::And { values.values().clone() } else { !values.values() };
        BooleanArray::new(values.nulls().map_or(undecided.clone(), |known| &undecided | &!known.inner()), None)
    }
}

impl PhysicalExpr for Chain {
    fn data_type(&self, _: &Schema) -> PlanResult<ArrowType> {
        Ok(ArrowType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> PlanResult<bool> {
        self.terms.iter().try_fold(false, |any, t| Ok(any || t.nullable(schema)?))
    }

    fn evaluate(&self, batch: &RecordBatch) -> PlanResult<ColumnarValue> {
        let rows = batch.num_rows();
        // Nothing decides AND but false, and OR but true.
        let mut values =
            BooleanArray::new(if self.op == Operator::And { BooleanBuffer::new_set(rows) } else { BooleanBuffer::new_unset(rows) }, None);
        for term in &self.terms {
            let open = self.open(&values);
            if !open.has_true() {
                break;
            }
            let term = term.evaluate_selection(batch, &open)?.into_array(rows)?;
            values = if self.op == Operator::And { and_kleene(&values, term.as_boolean())? } else { or_kleene(&values, term.as_boolean())? };
        }
        Ok(ColumnarValue::Array(Arc::new(values)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.terms.iter().collect()
    }

    fn with_new_children(self: Arc<Self>, terms: Vec<Arc<dyn PhysicalExpr>>) -> PlanResult<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Chain { op: self.op, terms }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                write!(f, " {} ", self.op)?;
            }
            write!(f, "({term})")?;
        }
        Ok(())
    }
}
