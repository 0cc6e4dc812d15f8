//! Rules of access: who may publish a dataset, whose word is needed, what is frozen.
//! Never judges anybody; `access` does, from what is declared here.
//! `config/text` reads `[access]`, and what a dataset says instead, through it.

use super::text::{Reader, Text};
use super::{ConfigError, EventTime, Span};
use crate::{id::Digest, time};
use chrono::NaiveDate;
use chrono_tz::Tz;
use serde::Deserialize;
use toml::Spanned;

/// When a run needs the word of somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rule {
    /// Where it changes what is older than the repair window, if approvers are declared.
    #[default]
    Late,
    /// Always.
    Required,
}

/// Who may change what is published of a dataset. The default lets everybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Operators who may publish; empty: everybody.
    pub publishers: Vec<String>,
    /// Operators whose word counts for runs of others.
    pub approvers: Vec<String>,
    /// When a word is needed.
    pub approval: Rule,
    /// How long it can be given and used, from when it was asked for.
    pub approval_expires: Span,
    /// Partitions that begin before it are never changed.
    pub frozen_before: Option<EventTime>,
}

impl Default for Access {
    fn default() -> Access {
        Access { publishers: Vec::new(), approvers: Vec::new(), approval: Rule::Late, approval_expires: Span::Days(7), frozen_before: None }
    }
}

/// The keys of `[access]`; a dataset may have them too.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, expecting = "a table of access")]
pub(super) struct AccessText {
    pub(super) publishers: Option<Spanned<Vec<String>>>,
    pub(super) approvers: Option<Spanned<Vec<String>>>,
    pub(super) approval: Option<Text>,
    pub(super) approval_expires: Option<Text>,
    pub(super) frozen_before: Option<Text>,
}

/// The keys of an `[account.NAME]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [account.NAME]")]
pub(super) struct AccountText {
    token_sha256: Text,
}

impl AccountText {
    /// Returns the SHA-256 of the account's token.
    pub(super) fn digest(&self, reader: &Reader) -> Result<Digest, ConfigError> {
        reader.value(&self.token_sha256, |t| t.parse().ok(), "the SHA-256 of a token (64 hex digits; `printf %s TOKEN | sha256sum` prints it)")
    }
}

impl AccessText {
    /// Returns whether it has a rule at all.
    pub(super) fn has_rule(&self) -> bool {
        let AccessText { publishers, approvers, approval, approval_expires, frozen_before } = self;
        publishers.is_some() || approvers.is_some() || [approval, approval_expires, frozen_before].iter().any(|key| key.is_some())
    }

    /// Checks that somebody may publish: an empty list would be read as nobody by one, and as everybody by another.
    pub(super) fn named(&self, reader: &Reader) -> Result<(), ConfigError> {
        match &self.publishers {
            Some(list) if list.as_ref().is_empty() => {
                let hint = "name who may publish; without the key everybody may";
                Err(reader.error(list.span(), "publishers names nobody", Some(hint.into())))
            }
            _ => Ok(()),
        }
    }

    /// Returns these keys, and `general` for those that are not there.
    pub(super) fn or(self, general: &AccessText) -> AccessText {
        let general = general.clone();
        AccessText {
            publishers: self.publishers.or(general.publishers),
            approvers: self.approvers.or(general.approvers),
            approval: self.approval.or(general.approval),
            approval_expires: self.approval_expires.or(general.approval_expires),
            frozen_before: self.frozen_before.or(general.frozen_before),
        }
    }

    /// Returns the rules for a dataset whose days are those of `zone`.
    pub(super) fn read(self, reader: &Reader, zone: Tz) -> Result<Access, ConfigError> {
        let default = Access::default();
        let approval = reader.choice(&self.approval, &[("late", Rule::Late), ("required", Rule::Required)], default.approval)?;
        let approvers = self.approvers.map(Spanned::into_inner).unwrap_or_default();
        if let (Rule::Required, [], Some(text)) = (approval, approvers.as_slice(), &self.approval) {
            let message = "approval = \"required\" needs approvers: nobody could give it";
            return Err(reader.error(text.span(), message, Some("approvers = [\"…\"] names them".into())));
        }
        let midnight = |t: &str| t.parse::<NaiveDate>().ok().and_then(|_| time::parse(t, zone).ok());
        let positive = |t: &str| Span::parse(t).filter(|s| !matches!(s, Span::Days(0) | Span::Elapsed(0)));
        Ok(Access {
            publishers: self.publishers.map(Spanned::into_inner).unwrap_or_default(),
            approvers,
            approval,
            approval_expires: reader.optional(&self.approval_expires, positive, "a duration (like 12h or 7d)")?.unwrap_or(default.approval_expires),
            frozen_before: reader.optional(&self.frozen_before, midnight, "a date (like 2026-01-01)")?,
        })
    }
}
