//! How deep the trees of a query may be, and the stack on which they are walked.
//! Never lets in what that stack does not hold: a stack that overflows ends the process.
//! `Session`, conditions and aggregates parse and plan through it.

use super::QueryError;
use datafusion::sql::sqlparser::{
    dialect::GenericDialect,
    keywords::Keyword,
    tokenizer::{Token, Tokenizer},
};
use std::{panic::resume_unwind, thread};

/// Stack of the threads that walk the trees of queries: of address space, which is taken as it is used.
pub(super) const STACK_BYTES: usize = 256 << 20;

/// Levels of the trees that a text may become. Parentheses end far earlier, at the parser's own bound.
const LEVELS_MAX: usize = 2000;

/// What an operator of arithmetic counts: at each of them types are worked out anew, from the bottom.
const ARITHMETIC_LEVELS: usize = 4;

/// Does `work` on a thread with room for trees of as many levels as are let in.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn deep<T: Send>(work: impl FnOnce() -> Result<T, QueryError> + Send) -> Result<T, QueryError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("restitch-query".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|source| QueryError::Io { action: "start the query threads", source })?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Refuses a text whose trees could be deeper than the stack holds.
pub(super) fn refuse_deep(sql: &str) -> Result<(), QueryError> {
    // What is no SQL is told by the parser.
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize().unwrap_or_default();
    if levels(&tokens) > LEVELS_MAX { Err(too_deep()) } else { Ok(()) }
}

pub(super) fn too_deep() -> QueryError {
    QueryError::Sql {
        message: "the expression is nested too deeply".into(),
        hint: Some("a chain of operators is nested too: write x IN (…) instead of x = … OR x = … OR …, or join with (VALUES …)".into()),
    }
}

/// What stands between two parentheses.
#[derive(Default)]
struct Group {
    /// Levels of all before the last SELECT or FROM.
    before: usize,
    /// Of the elements of the list at hand, the most.
    widest: usize,
    /// Of the last of them: what makes a level, and the levels of groups inside.
    own: usize,
    inner: usize,
    /// Whether commas join, too: tables after FROM, and queries after WITH, which read each other.
    joins: bool,
}

impl Group {
    fn levels(&self) -> usize {
        self.before + self.widest.max(self.own + self.inner)
    }

    fn clause(&mut self, joins: bool) {
        *self = Group { before: self.levels() + 1, joins, ..Group::default() };
    }

    fn comma(&mut self) {
        if self.joins {
            self.own += 1;
        } else {
            *self = Group { before: self.before, widest: self.widest.max(self.own + self.inner), ..Group::default() };
        }
    }

    fn close(&mut self, levels: usize) {
        self.inner = if self.joins { self.inner + levels } else { self.inner.max(levels) };
    }
}

/// Returns a bound on the levels of the trees that the tokens become: elements of a list stand beside each other; all else, at worst, is inside
/// of what stands before it.
fn levels(tokens: &[Token]) -> usize {
    let (mut outer, mut group) = (Vec::new(), Group::default());
    let mut value_before = false;
    for token in tokens {
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                group.own += 1;
                outer.push(std::mem::take(&mut group));
            }
            Token::RParen | Token::RBracket | Token::RBrace => {
                let levels = group.levels();
                group = outer.pop().unwrap_or_default();
                group.close(levels);
            }
            Token::Comma => group.comma(),
            Token::Word(word) if word.quote_style.is_some() || word.keyword == Keyword::NoKeyword => {}
            Token::Word(word) if word.keyword == Keyword::SELECT => group.clause(false),
            Token::Word(word) if matches!(word.keyword, Keyword::FROM | Keyword::WITH) => group.clause(true),
            Token::Whitespace(_) => continue,
            Token::Period | Token::Number(..) | Token::SingleQuotedString(_) | Token::HexStringLiteral(_) => {}
            Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod if value_before => group.own += ARITHMETIC_LEVELS,
            _ => group.own += 1,
        }
        value_before = match token {
            Token::Word(word) => word.quote_style.is_some() || word.keyword == Keyword::NoKeyword,
            token => matches!(token, Token::RParen | Token::RBracket | Token::Number(..) | Token::SingleQuotedString(_)),
        };
    }
    outer.iter().map(Group::levels).sum::<usize>() + group.levels()
}

#[cfg(test)]
mod tests {
    use super::{super::*, *};
    use crate::schema::{DataType, Field};

    const HINT: &str = "a chain of operators is nested too: write x IN (…) instead of x = … OR x = … OR …, or join with (VALUES …)";

    fn chain(first: &str, count: usize, link: &str) -> String {
        first.to_owned() + &link.repeat(count)
    }

    fn session() -> Session {
        let session = Session::new(None, None).unwrap();
        let rows = (0..3).map(|n| vec![StateValue::Int(n), StateValue::Text(format!("t{n}"))]).collect();
        session.register_rows("t", &[("n".into(), true), ("s".into(), false)], rows).unwrap();
        session
    }

    /// How often what is slow, by the square or the cube of its length, is tried.
    const SLOW: usize = 80;

    #[test]
    fn chains_are_answered_as_long_as_they_are_let_in_and_refused_beyond() {
        let session = session();
        for (first, link, last, tried) in [
            ("select n from t where n < 0", " or n <> 1 and s > 't'", "", LEVELS_MAX),
            ("select n from t where n > 0", " and s <> 'x'", "", LEVELS_MAX),
            ("select n", " + 1", " as n from t", SLOW),
            ("select s", " || s", " as n from t limit 1", SLOW),
            ("select n", "::bigint", " as n from t", LEVELS_MAX),
            ("select 1 as n", " union all select 1", "", LEVELS_MAX),
            ("select 1 as n", " except select 7", "", SLOW),
            ("select t.n from t", " join (select 1 as n#) as t# on n# = n", "", 10),
            ("with a0 as (select n from t)", ", a# as (select n from a@)", " select n from a1", SLOW),
        ] {
            let sql = |count: usize| {
                let links = (1..=count).map(|n| link.replace('#', &n.to_string()).replace('@', &(n - 1).to_string()));
                links.fold(first.to_owned(), |sql, link| sql + &link) + last
            };
            let error = session.sql(&sql(LEVELS_MAX)).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.hint()), ("the expression is nested too deeply", Some(HINT)), "{first}{link}");
            let most = (1..=LEVELS_MAX).collect::<Vec<_>>().partition_point(|n| refuse_deep(&sql(*n)).is_ok());
            let found = session.sql(&sql(most.min(tried))).unwrap_or_else(|e| panic!("{first}{link}: {e}"));
            assert!(found.rows() > 0, "{first}{link}");
        }
    }

    #[test]
    fn lists_are_as_long_as_they_like() {
        let list = |of: &str| vec![of; 3 * LEVELS_MAX].join(", ");
        for sql in [
            format!("select n from t where n in ({})", list("-1")),
            format!("select n from t where s not in ({})", list("arrow_cast('a', 'Utf8')")),
            format!("select {} from t", list("sum(cast(n as decimal(38, 0)))")),
            format!("values {}", list("(1, 'a')")),
        ] {
            refuse_deep(&sql).unwrap();
        }
        assert_eq!(session().sql(&format!("select n from t where n in ({})", list("1"))).unwrap().rows(), 1);
    }

    #[test]
    fn conditions_and_aggregates_are_bounded_too() {
        let fields = [Field::new("n", DataType::Int64, true), Field::new("s", DataType::String, true)];
        let batch = RecordBatch::try_from_iter([
            ("n", Arc::new(arrow::array::Int64Array::from(vec![1, 2])) as ArrayRef),
            ("s", Arc::new(arrow::array::StringArray::from(vec!["a", "b"])) as ArrayRef),
        ])
        .unwrap();
        // Each term leaves every row open: none is looked at more than once.
        let filter = Filter::parse(&chain("n = 2", 400, " or n <> 1 and s = 'a'"), &fields).unwrap();
        assert_eq!(filter.keep(&batch).unwrap(), arrow::array::BooleanArray::from(vec![false, true]));
        let filter = Filter::parse(&(chain("n", 100, " + n") + " > 101"), &fields).unwrap();
        assert_eq!(filter.keep(&batch).unwrap(), arrow::array::BooleanArray::from(vec![false, true]));
        for count in [300, LEVELS_MAX] {
            let error = Filter::parse(&(chain("n", count, " + n") + " > 5"), &fields).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.hint()), ("the expression is nested too deeply", Some(HINT)));
            Aggregate::parse(&chain("sum(n)", count, " + sum(n)"), &fields).map(drop).unwrap_err();
            Aggregate::parse(&format!("sum({})", chain("n", count, " + n")), &fields).map(drop).unwrap_err();
        }
        Filter::parse(&chain("n = 2", LEVELS_MAX, " or n <> 1"), &fields).unwrap_err();
    }
}
