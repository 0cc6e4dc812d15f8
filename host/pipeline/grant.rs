//! By whose word payloads of masked sources are read: by transforms and filters of a run, and by `query`.
//! Never lets a payload through that nobody answered for. What a replay reads was answered for when the run was made.

use super::{Error, RunRequest};
use crate::{
    config::{CheckKind, Dataset, Project, Source},
    manifest::Grant,
    plan::BoundPlan,
    schema::envelope,
    transform::Descriptor,
};

/// Returns the grants that a run needs, given by its operator.
///
/// # Errors
/// It reads a payload of a masked source and no reason was given, or the operator is none of the source's `payload_readers`.
pub(super) fn of_run(project: &Project, dataset: &Dataset, d: &Descriptor, request: &RunRequest, operator: &str) -> Result<Vec<Grant>, Error> {
    let mut grants: Vec<Grant> = Vec::new();
    for_each_reader(project, dataset, d, request.filter.as_deref(), &mut |source, what| {
        if grants.iter().any(|g| g.source == source.name) {
            return Ok(());
        }
        let Some(reason) = &request.grant_payload else { return Err(masked(source, what)) };
        grants.push(grant(source, operator, reason)?);
        Ok(())
    })?;
    if grants.is_empty() && request.grant_payload.is_some() {
        let message = format!("nothing here reads {} of a source that masks columns", envelope::PAYLOAD);
        return Err(Error::Usage { message, hint: Some("leave out --grant-payload".into()) });
    }
    Ok(grants)
}

/// Refuses a plan that reads more payloads now than it was granted, by the word of somebody who may not give it any more, or by that of anybody but
/// the `operator` who carries it out: whoever can write a file can write any name into it.
///
/// # Errors
/// As for [`of_run`]; [`Error::OtherWord`].
pub(super) fn still_hold(project: &Project, dataset: &Dataset, d: &Descriptor, plan: &BoundPlan, operator: &str) -> Result<(), Error> {
    for given in &plan.grants {
        if let Some(source) = project.sources.get(&given.source).filter(|s| s.is_masked()) {
            grant(source, operator, &given.reason)?;
        }
        if given.operator != operator {
            return Err(Error::OtherWord { source_name: given.source.clone(), given: given.operator.clone(), operator: operator.into() });
        }
    }
    for_each_reader(project, dataset, d, plan.recipe.filter.as_deref(), &mut |source, what| {
        plan.grants.iter().find(|g| g.source == source.name).map(|_| ()).ok_or_else(|| masked(source, what))
    })
}

fn masked(source: &Source, what: String) -> Error {
    Error::Masked { what, source_name: source.name.clone(), readers: source.payload_readers.clone() }
}

/// Calls `ask` for everything that reads payloads of a source with masks.
fn for_each_reader(
    project: &Project,
    dataset: &Dataset,
    d: &Descriptor,
    filter: Option<&str>,
    ask: &mut dyn FnMut(&Source, String) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut ask = |source: &Source, what: String| if source.is_masked() { ask(source, what) } else { Ok(()) };
    for (i, input) in d.inputs.iter().enumerate() {
        if !input.fields.iter().any(|f| f.name == envelope::PAYLOAD) {
            continue;
        }
        let lookup = dataset.lookups.get(&input.name);
        for name in if i == 0 { dataset.inputs.as_slice() } else { lookup.map(std::slice::from_ref).unwrap_or_default() } {
            ask(project.source(name)?, format!("input {:?} of transform {} asks for {}", input.name, dataset.transform, envelope::PAYLOAD))?;
        }
    }
    for name in &dataset.inputs {
        let source = project.source(name)?;
        if filter.is_some_and(names_payload) {
            ask(source, format!("the filter asks for {}", envelope::PAYLOAD))?;
        }
        for check in &dataset.checks {
            if let CheckKind::Balance { input, .. } = &check.kind
                && names_payload(input)
            {
                ask(source, format!("the check {:?} asks for {}", check.name, envelope::PAYLOAD))?;
            }
        }
    }
    Ok(())
}

/// Returns the grant of `operator` for the payloads of `source`.
///
/// # Errors
/// The source does not name them among its `payload_readers`.
pub(super) fn grant(source: &Source, operator: &str, reason: &str) -> Result<Grant, Error> {
    if !source.payload_readers.iter().any(|r| r == operator) {
        let readers = source.payload_readers.clone();
        return Err(Error::NotReader { operator: operator.into(), source_name: source.name.clone(), readers });
    }
    if reason.trim().is_empty() {
        return Err(Error::Usage { message: "--grant-payload needs a reason".into(), hint: None });
    }
    Ok(Grant { source: source.name.clone(), column: envelope::PAYLOAD.into(), operator: operator.into(), reason: reason.into() })
}

/// Returns whether SQL names the payload itself, and not only its hash.
pub(super) fn names_payload(sql: &str) -> bool {
    sql.replace(envelope::PAYLOAD_HASH, "").contains(envelope::PAYLOAD)
}

/// Returns whether SQL names that table: the whole word, in any case.
pub(super) fn names_table(sql: &str, table: &str) -> bool {
    let (sql, table) = (sql.to_lowercase(), table.to_lowercase());
    let word = |c: char| c.is_alphanumeric() || c == '_';
    sql.match_indices(&table).any(|(at, _)| !sql[..at].ends_with(word) && !sql[at + table.len()..].starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        manifest::{Kind, Mode, Validation},
        schema::{DataType, Field},
        transform::Input,
    };

    const TOML: &str = r#"
[warehouse]
path = "w"
[source.orders]
format = "jsonl"
event_time = "at"
payload_readers = ["alice"]
columns = { at = { type = "timestamp" }, card = { type = "string", mask = "sha256" } }
[dataset.daily]
input = "orders"
transform = "t@1"
partition = "day"
"#;

    fn asked(toml: &str, operator: &str, reason: Option<&str>) -> Result<Vec<Grant>, Error> {
        let project = Project::parse("restitch.toml", toml).unwrap();
        let fields = vec![Field::new(envelope::PAYLOAD, DataType::Binary, true)];
        let inputs = vec![Input { name: "in".into(), fields }];
        let (name, version, summary) = ("t".into(), "1".into(), String::new());
        let d = Descriptor { name, version, summary, inputs, output: vec![], key: vec![], parameters: vec![] };
        let request = RunRequest {
            kind: Kind::Run,
            dataset: "daily".into(),
            start: None,
            end: None,
            only: None,
            transform: None,
            mode: Mode::Overwrite,
            write: Default::default(),
            validation: Validation::Block,
            filter: None,
            snapshot: None,
            reason: None,
            grant_payload: reason.map(str::to_owned),
            seed: 0,
            params: vec![],
            partitions_max: None,
            bytes_max: None,
        };
        of_run(&project, project.dataset("daily").unwrap(), &d, &request, operator)
    }

    #[test]
    fn a_transform_reads_payloads_of_a_masked_source_by_the_word_of_a_reader_alone() {
        let e = asked(TOML, "alice", None).unwrap_err();
        assert_eq!(e.to_string(), "input \"in\" of transform t@1 asks for _payload, which would show what source orders masks");
        assert!(matches!(asked(TOML, "bob", Some("audit")), Err(Error::NotReader { .. })));
        assert!(matches!(asked(TOML, "alice", Some(" ")), Err(Error::Usage { .. })));
        let grants = asked(TOML, "alice", Some("audit")).unwrap();
        assert_eq!((grants[0].operator.as_str(), grants[0].source.as_str(), grants.len()), ("alice", "orders", 1));
        // Without a mask there is nothing to ask for.
        let open = TOML.replace(", mask = \"sha256\"", "");
        assert_eq!(asked(&open, "bob", None).unwrap(), []);
        assert!(matches!(asked(&open, "bob", Some("audit")), Err(Error::Usage { .. })));
    }

    #[test]
    fn a_table_is_named_by_its_whole_name() {
        assert!(names_table("select * from \"RAW_a\"", "raw_a") && names_table("x raw_a_rejects, raw_a", "raw_a"));
        assert!(!names_table("select * from raw_a_rejects, draw_a", "raw_a"));
    }

    #[test]
    fn the_hash_of_a_payload_is_not_the_payload() {
        assert!(!names_payload("_payload_hash = 1") && names_payload("_payload_hash = 1 and \"_payload\" is null"));
    }
}
