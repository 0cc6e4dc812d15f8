//! Which published partitions were made by another version of a transform than restitch.toml names.
//! Never recomputes one: it says which, and by what command.

use super::{Error, Workshop, modes::MIXED};
use crate::{
    catalog::TransformRow,
    config::TransformRef,
    id::Digest,
    window::{Calendar, Window},
};
use std::cmp::Ordering;

/// Published partitions of one dataset that one transform has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadeBy {
    /// The transform, as name@version.
    pub transform: String,
    /// Its bytes.
    pub digest: Digest,
    /// Whether it is the one that is declared.
    pub declared: bool,
    /// How many partitions.
    pub partitions: u64,
    /// The first of them.
    pub first: String,
    /// The last of them; there may be others in between.
    pub last: String,
}

/// A dataset, and who made what is published of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatasetVersions {
    /// The dataset.
    pub dataset: String,
    /// What restitch.toml names.
    pub declared: TransformRef,
    /// Whether that is registered.
    pub registered: bool,
    /// A newer registered version of the same name.
    pub newer: Option<TransformRef>,
    /// Who made what is published, the earliest partition first. Frozen partitions, which nobody may make again, are not in it.
    pub made_by: Vec<MadeBy>,
}

impl DatasetVersions {
    /// Returns whether a published partition was made by another transform than the declared one.
    pub fn is_outdated(&self) -> bool {
        self.made_by.iter().any(|m| !m.declared)
    }

    /// Returns the commands that make outdated partitions again, each for the range of one version.
    pub fn commands(&self) -> Vec<String> {
        let outdated = self.made_by.iter().filter(|m| !m.declared && self.registered);
        outdated.map(|m| format!("restitch backfill {} --start {} --end {} --only stale", self.dataset, m.first, m.last)).collect()
    }
}

impl Workshop {
    /// Returns for one dataset, or for all, which versions made what is published.
    ///
    /// # Errors
    /// There is no such dataset, or the catalog cannot be read.
    pub fn versions_of(&mut self, dataset: Option<&str>) -> Result<Vec<DatasetVersions>, Error> {
        let chosen = match dataset {
            Some(name) => vec![self.project.dataset(name)?.clone()],
            None => self.project.datasets.values().cloned().collect(),
        };
        let transforms = self.transforms()?;
        let mut all = Vec::new();
        for d in chosen {
            let published = self.catalog.read(|v| v.published(&d.name, None))?;
            let declared = transforms.iter().find(|t| t.name == d.transform.name && t.version == d.transform.version);
            let frozen = |w: &Window| d.access.frozen_before.is_some_and(|before| w.start() < before);
            let rows: Vec<(Window, Digest)> = published.iter().map(|p| (p.window, p.transform_digest)).filter(|(w, _)| !frozen(w)).collect();
            all.push(DatasetVersions {
                dataset: d.name.clone(),
                declared: d.transform.clone(),
                registered: declared.is_some(),
                newer: newest(&transforms, &d.transform),
                made_by: made_by(d.calendar(), &rows, &transforms, declared.map(|t| t.digest)),
            });
        }
        Ok(all)
    }
}

fn made_by(calendar: Calendar, published: &[(Window, Digest)], transforms: &[TransformRow], declared: Option<Digest>) -> Vec<MadeBy> {
    let mut made: Vec<(Window, Window, MadeBy)> = Vec::new();
    for (window, digest) in published {
        match made.iter_mut().find(|(_, _, m)| m.digest == *digest) {
            Some((first, last, m)) => {
                (*first, *last) = (*window.min(first), *window.max(last));
                m.partitions += 1;
            }
            None => {
                let row = transforms.iter().find(|t| t.digest == *digest);
                let unknown = || if *digest == MIXED { "several".to_owned() } else { digest.short() };
                let transform = row.map_or_else(unknown, |t| format!("{}@{}", t.name, t.version));
                let declared = declared == Some(*digest);
                let (first, last) = (String::new(), String::new());
                made.push((*window, *window, MadeBy { transform, digest: *digest, declared, partitions: 1, first, last }));
            }
        }
    }
    made.sort_by_key(|(first, _, _)| *first);
    made.into_iter().map(|(first, last, m)| MadeBy { first: calendar.name(&first), last: calendar.name(&last), ..m }).collect()
}

fn newest(transforms: &[TransformRow], declared: &TransformRef) -> Option<TransformRef> {
    let same = transforms.iter().filter(|t| t.name == declared.name);
    let newest = same.max_by(|a, b| by_version(&a.version, &b.version))?;
    let newer = by_version(&newest.version, &declared.version) == Ordering::Greater;
    newer.then(|| TransformRef { name: newest.name.clone(), version: newest.version.clone() })
}

/// Compares versions as people number them: 1.10 comes after 1.9, and 2.0.0-rc1 before 2.0.0. What follows a `+` does not count.
fn by_version(a: &str, b: &str) -> Ordering {
    let split = |v: &str| {
        let v = v.split('+').next().unwrap_or_default();
        let (core, pre) = v.split_once('-').map_or((v, None), |(core, pre)| (core, Some(pre.to_owned())));
        // Numbers by value, words after numbers.
        let part = |p: &str| p.parse::<u64>().map_or((1, 0, p.to_owned()), |n| (0, n, String::new()));
        (core.split('.').map(part).collect::<Vec<_>>(), pre.map(|p| p.split('.').map(part).collect::<Vec<_>>()))
    };
    let ((a_core, a_pre), (b_core, b_pre)) = (split(a), split(b));
    a_core.cmp(&b_core).then_with(|| match (a_pre, b_pre) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(&b),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_people_number_them() {
        let order = ["1.0.0-rc.2", "1.0.0-rc.10", "1.0.0", "1.9.0", "1.10.0", "2.0.0-alpha", "2.0.0", "10.0"];
        for pair in order.windows(2) {
            assert_eq!(by_version(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(by_version("1.0.0+a", "1.0.0+b"), Ordering::Equal);
    }
}
