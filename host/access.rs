//! Who may publish, whose word is needed for it, and what nobody may change any more.
//! Never looks at a clock or a file: it judges from what restitch.toml declares and what it is told.
//! `pipeline` asks it when a project is opened and before anything is published.

use crate::{
    config::{Access, Project, Rule},
    id::Digest,
    time::{EventTime, IngestTime, format_us},
    window::{Calendar, Window},
};
use serde::{Deserialize, Serialize};

/// The word that a run waits for, and what came of it. In the manifest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Approval {
    /// Why it is needed.
    pub why: String,
    /// When it was asked for, in UTC microseconds.
    pub asked_us: i64,
    /// Until when it can be given, and used, in UTC microseconds; exclusive.
    pub expires_us: i64,
    /// Whose word it got.
    pub given: Option<Given>,
}

/// An operator's word for a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Given {
    /// Who gave it: one of the dataset's `approvers`, and not the operator who asked.
    pub operator: String,
    /// Why, in their words.
    pub reason: String,
    /// When, in UTC microseconds.
    pub at_us: i64,
}

/// Why an operator may not do what they asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AccessError {
    /// A name that is not the system's, and has no account.
    #[error("{operator} is neither the system user ({system}) nor a declared account")]
    Unknown {
        /// The name.
        operator: String,
        /// Who the system says it is.
        system: String,
    },
    /// An account without its token, or with another.
    #[error("the account {operator} needs its token, and {}", if *given { "RESTITCH_TOKEN holds another one" } else { "RESTITCH_TOKEN is not set" })]
    Token {
        /// The account.
        operator: String,
        /// Whether a token was given at all.
        given: bool,
    },
    /// Not one of those who may publish.
    #[error("{operator} may not publish {dataset}")]
    Publisher {
        /// Who asked.
        operator: String,
        /// The dataset.
        dataset: String,
        /// Who may.
        publishers: Vec<String>,
    },
    /// Not one of those whose word counts.
    #[error("{operator} may not approve runs of {dataset}")]
    Approver {
        /// Who asked.
        operator: String,
        /// The dataset.
        dataset: String,
        /// Who may.
        approvers: Vec<String>,
    },
    /// The word of somebody whose word does not count any more.
    #[error("{operator} has approved this run, and may not approve runs of {dataset} any more")]
    Withdrawn {
        /// Who gave it.
        operator: String,
        /// The dataset.
        dataset: String,
        /// Who may now.
        approvers: Vec<String>,
    },
    /// The word of the one who asked.
    #[error("{operator} asked for this run, and so cannot approve it")]
    Own {
        /// Who asked.
        operator: String,
        /// Who else may.
        approvers: Vec<String>,
    },
    /// The word came too late, or was used too late.
    #[error("the time to approve this run ended at {at}")]
    Expired {
        /// When.
        at: String,
    },
    /// A partition that nobody may change.
    #[error("{dataset} is frozen before {before}: {partition} begins at {start}")]
    Frozen {
        /// The dataset.
        dataset: String,
        /// The first instant that is not frozen.
        before: String,
        /// The first partition that is.
        partition: String,
        /// Its first instant.
        start: String,
    },
}

impl AccessError {
    /// Returns the way out.
    pub fn hint(&self) -> String {
        let names = |key: &str, list: &[String]| match list {
            [] => format!("{key} names nobody"),
            list => format!("{key}: {}", list.join(", ")),
        };
        match self {
            AccessError::Unknown { .. } => "leave out --operator, or declare the account in restitch.toml with the SHA-256 of its token".into(),
            AccessError::Token { .. } => "set RESTITCH_TOKEN to the token whose SHA-256 restitch.toml declares".into(),
            AccessError::Publisher { publishers, .. } => {
                format!("--mode stage computes it for one who may to publish; {}", names("publishers", publishers))
            }
            AccessError::Withdrawn { approvers, .. } => format!("`restitch approve` by another is needed; {}", names("approvers", approvers)),
            AccessError::Approver { approvers, .. } | AccessError::Own { approvers, .. } => names("approvers", approvers),
            AccessError::Expired { .. } => "run it again; `restitch discard` removes what waits".into(),
            AccessError::Frozen { .. } => "choose a later window; frozen_before in restitch.toml is changed by review, not by a flag".into(),
        }
    }
}

/// Checks that an operator is who they say. Where a project declares no accounts and no rule of access, any name will do.
///
/// # Errors
/// The name is an account's, and the token is not; or it is neither an account's nor that of the system's user.
pub fn authenticate(project: &Project, operator: &str, token: Option<&str>, system: &str) -> Result<(), AccessError> {
    if let Some(expected) = project.accounts.get(operator) {
        // Hashes are compared, so how long it takes tells nothing of the token.
        return match token.map(|t| Digest::of(t.as_bytes())) {
            Some(found) if found == *expected => Ok(()),
            found => Err(AccessError::Token { operator: operator.into(), given: found.is_some() }),
        };
    }
    match !project.governed || operator == system {
        true => Ok(()),
        false => Err(AccessError::Unknown { operator: operator.into(), system: system.into() }),
    }
}

/// Checks that one of `operators` may publish the dataset.
///
/// # Errors
/// None of them may.
pub fn may_publish(dataset: &str, access: &Access, operators: &[&str]) -> Result<(), AccessError> {
    match access.publishers.is_empty() || operators.iter().any(|o| access.publishers.iter().any(|p| p == o)) {
        true => Ok(()),
        false => Err(AccessError::Publisher {
            operator: operators.first().copied().unwrap_or_default().into(),
            dataset: dataset.into(),
            publishers: access.publishers.clone(),
        }),
    }
}

/// Checks that no window begins before the dataset is frozen.
///
/// # Errors
/// One does; the first is named.
pub fn not_frozen(dataset: &str, access: &Access, calendar: Calendar, windows: impl IntoIterator<Item = Window>) -> Result<(), AccessError> {
    let Some(before) = access.frozen_before else { return Ok(()) };
    match windows.into_iter().find(|w| w.start() < before) {
        None => Ok(()),
        Some(w) => Err(AccessError::Frozen {
            dataset: dataset.into(),
            before: before.to_string(),
            partition: calendar.name(&w),
            start: w.start().to_string(),
        }),
    }
}

/// Returns whether it depends on the age of partitions if publishing them needs the word of somebody else.
pub fn asks_for_age(access: &Access) -> bool {
    access.approval == Rule::Late && !access.approvers.is_empty()
}

/// Returns why publishing needs the word of somebody else, or `None`. `old` are the partitions that are published and final, or
/// have late records beyond the repair window.
pub fn approval_needed(access: &Access, old: &[String]) -> Option<String> {
    match access.approval {
        Rule::Required => Some("every publication of the dataset needs approval".into()),
        Rule::Late if asks_for_age(access) && !old.is_empty() => {
            let listed = old.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            let more = if old.len() > 5 { format!(" and {} more", old.len() - 5) } else { String::new() };
            Some(format!("{listed}{more}: older than the repair window"))
        }
        _ => None,
    }
}

impl Approval {
    /// Returns a request for a word, with its end as the dataset declares it.
    pub fn ask(why: String, access: &Access, now: IngestTime) -> Approval {
        let end = access.approval_expires.after(EventTime(now.0), chrono_tz::Tz::UTC);
        Approval { why, asked_us: now.0, expires_us: end.0, given: None }
    }

    /// Takes an operator's word for a run that `asked` asked for.
    ///
    /// # Errors
    /// They may not give it, they asked themselves, or it is too late.
    pub fn give(&mut self, dataset: &str, access: &Access, asked: &str, given: Given) -> Result<(), AccessError> {
        let approvers = || access.approvers.iter().filter(|a| *a != asked).cloned().collect();
        if given.operator == asked {
            return Err(AccessError::Own { operator: given.operator, approvers: approvers() });
        }
        if !access.approvers.contains(&given.operator) {
            return Err(AccessError::Approver { operator: given.operator, dataset: dataset.into(), approvers: approvers() });
        }
        self.in_time(IngestTime(given.at_us))?;
        self.given = Some(given);
        Ok(())
    }

    /// Checks that the word that was given, if one was, is still one of somebody whose word counts.
    ///
    /// # Errors
    /// Its operator is none of the approvers any more.
    pub fn still_counts(&self, dataset: &str, access: &Access, asked: &str) -> Result<(), AccessError> {
        match &self.given {
            Some(given) if !access.approvers.contains(&given.operator) => Err(AccessError::Withdrawn {
                operator: given.operator.clone(),
                dataset: dataset.into(),
                approvers: access.approvers.iter().filter(|a| *a != asked).cloned().collect(),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that the time to give or use the word is not over.
    ///
    /// # Errors
    /// It is.
    pub fn in_time(&self, now: IngestTime) -> Result<(), AccessError> {
        match now.0 < self.expires_us {
            true => Ok(()),
            false => Err(AccessError::Expired { at: format_us(self.expires_us) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Grain;

    fn project(extra: &str) -> Project {
        let text = format!(
            "[warehouse]\npath = \"w\"\n{extra}\n[source.orders]\nformat = \"jsonl\"\nevent_time = \"at\"\ncolumns = {{ at = {{ type = \"timestamp\" }} }}\n[dataset.daily]\ninput = \"orders\"\ntransform = \"t@1\"\npartition = \"day\"\ntime_zone = \"Europe/Berlin\"\n"
        );
        Project::parse("restitch.toml", &text).unwrap()
    }

    #[test]
    fn names_are_free_until_somebody_declares_a_rule() {
        assert_eq!(authenticate(&project(""), "anybody", None, "root"), Ok(()));
        let account = format!("[account.nightly]\ntoken_sha256 = \"{}\"", Digest::of(b"secret"));
        let p = project(&account);
        assert_eq!(authenticate(&p, "root", None, "root"), Ok(()));
        assert_eq!(authenticate(&p, "nightly", Some("secret"), "root"), Ok(()));
        assert_eq!(authenticate(&p, "nightly", Some("Secret"), "root"), Err(AccessError::Token { operator: "nightly".into(), given: true }));
        assert_eq!(authenticate(&p, "nightly", None, "nightly"), Err(AccessError::Token { operator: "nightly".into(), given: false }));
        let unknown = Err(AccessError::Unknown { operator: "ana".into(), system: "root".into() });
        assert_eq!(authenticate(&p, "ana", Some("secret"), "root"), unknown);
        assert_eq!(authenticate(&project("[access]\npublishers = [\"root\"]"), "ana", None, "root"), unknown);
        assert_eq!(authenticate(&project("[access]\napproval = \"late\""), "ana", None, "root"), unknown);
    }

    #[test]
    fn publishers_that_name_nobody_are_refused_and_a_rule_is_one_where_a_dataset_says_otherwise() {
        let text = |access: &str, own: &str| {
            format!(
                "[warehouse]\npath = \"w\"\n[access]\n{access}\n[source.orders]\nformat = \"jsonl\"\nevent_time = \"at\"\n\
                 columns = {{ at = {{ type = \"timestamp\" }} }}\n[dataset.daily]\ninput = \"orders\"\ntransform = \"t@1\"\npartition = \"day\"\n{own}\n"
            )
        };
        for (access, own, place) in [("publishers = []", "", (4, 14)), ("publishers = [\"ana\"]", "publishers = []", (13, 14))] {
            let e = Project::parse("restitch.toml", &text(access, own)).unwrap_err();
            assert_eq!(((e.line, e.column), e.message.as_str()), (place, "publishers names nobody"));
            assert_eq!(e.hint.as_deref(), Some("name who may publish; without the key everybody may"));
        }
        // What a dataset says instead may be what holds without any rule; the project has rules all the same.
        let p = Project::parse("restitch.toml", &text("approvers = [\"ana\"]", "approvers = []")).unwrap();
        assert_eq!(p.datasets["daily"].access, Access::default());
        assert!(authenticate(&p, "eve", None, "root").is_err());
    }

    #[test]
    fn a_word_counts_from_another_who_may_give_it_in_time() {
        let p = project("[access]\napprovers = [\"ana\", \"ben\"]\napproval_expires = \"2d\"");
        let access = &p.datasets["daily"].access;
        let day = 86_400_000_000;
        let mut approval = Approval::ask("because".into(), access, IngestTime(0));
        assert_eq!(approval.expires_us, 2 * day);
        let mut word = |operator: &str, at_us| {
            approval.give("daily", access, "ana", Given { operator: operator.into(), reason: "fine".into(), at_us }).map_err(|e| e.to_string())
        };
        assert_eq!(word("ana", 1).unwrap_err(), "ana asked for this run, and so cannot approve it");
        assert_eq!(word("eve", 1).unwrap_err(), "eve may not approve runs of daily");
        assert_eq!(word("ben", 2 * day).unwrap_err(), "the time to approve this run ended at 1970-01-03T00:00:00Z");
        assert_eq!(word("ben", 2 * day - 1), Ok(()));
        assert!(approval.in_time(IngestTime(2 * day)).is_err());
    }

    #[test]
    fn old_partitions_wait_only_where_somebody_can_approve() {
        let with = |extra: &str| project(extra).datasets["daily"].access.clone();
        let old = ["2026-05-01".to_owned()];
        assert_eq!(approval_needed(&with(""), &old), None);
        let late = with("[access]\napprovers = [\"ben\"]");
        assert_eq!(approval_needed(&late, &[]), None);
        assert_eq!(approval_needed(&late, &old).unwrap(), "2026-05-01: older than the repair window");
        assert!(approval_needed(&with("[access]\napprovers = [\"ben\"]\napproval = \"required\""), &[]).is_some());
    }

    #[test]
    fn frozen_is_by_the_day_of_the_dataset() {
        let p = project("[access]\nfrozen_before = \"2026-05-02\"");
        let calendar = Calendar { grain: Grain::Day, zone: chrono_tz::Europe::Berlin };
        let check = |name: &str| not_frozen("daily", &p.datasets["daily"].access, calendar, calendar.parse(name)).map_err(|e| e.to_string());
        assert_eq!(check("2026-05-02"), Ok(()));
        let error = "daily is frozen before 2026-05-01T22:00:00Z: 2026-05-01 begins at 2026-04-30T22:00:00Z";
        assert_eq!(check("2026-05-01").unwrap_err(), error);
    }
}
