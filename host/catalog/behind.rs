//! Slots of all time or of a window, and what published partitions were computed without: the slots and the rows of the repair queue that are newer.
//! Never decides that a partition is behind: planning does, and finds the same in these rows as in all of them.
//! Reads stand on [`View`].

use super::{CatalogError, PublishedRow, QueueRow, SLOT_US, Slot, View};
use crate::{id::SnapshotId, time::EventTime, window::Window};
use rusqlite::params;
use std::collections::HashMap;

/// The first and the last event that a landing and all later ones have brought.
struct Hull {
    snapshot: i64,
    first: i64,
    last: i64,
}

impl View<'_> {
    /// Returns the slots of `sources` up to the snapshot `at`, in order of time.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn slots(&self, sources: &[String], at: SnapshotId) -> Result<Vec<Slot>, CatalogError> {
        self.slots_of(sources, at, |_| Ok(vec![(i64::MIN, i64::MAX)]))
    }

    /// Returns the slots of `sources` that begin or end inside `window`, up to the snapshot `at`, in order of time.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn slots_inside(&self, sources: &[String], at: SnapshotId, window: Window) -> Result<Vec<Slot>, CatalogError> {
        self.slots_of(sources, at, |_| Ok(vec![(window.start().0, window.end().0)]))
    }

    /// Returns the slots of `sources`, up to the snapshot `at` and in order of time, that lie in none of the published partitions or came after what
    /// their partition was computed from. Others may be among them: what every landing brought is known by its first and last event alone.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn slots_behind(&self, sources: &[String], at: SnapshotId, published: &[PublishedRow]) -> Result<Vec<Slot>, CatalogError> {
        let oldest = published.iter().map(|p| p.input_snapshot).min().unwrap_or(SnapshotId(-1));
        self.slots_of(sources, at, |source| {
            let landed = self.landed_from(source, oldest)?;
            // Every landing after the one that the partition was computed from is in the first of the hulls that begin after it.
            let behind = |p: &PublishedRow| {
                let later = landed.get(landed.partition_point(|l| l.snapshot <= p.input_snapshot.0));
                later.is_some_and(|l| l.first < p.window.end().0.saturating_add(SLOT_US) && l.last > p.window.start().0.saturating_sub(SLOT_US))
            };
            let (mut spans, mut upto): (Vec<(i64, i64)>, i64) = (Vec::new(), i64::MIN);
            let mut add = |from: i64, to: i64| match spans.last_mut() {
                _ if from >= to => {}
                Some(last) if last.1 >= from => last.1 = to,
                _ => spans.push((from, to)),
            };
            for p in published {
                let (start, end) = (p.window.start().0, p.window.end().0);
                add(upto, start);
                if behind(p) {
                    add(start, end);
                }
                upto = upto.max(end);
            }
            add(upto, i64::MAX);
            Ok(spans)
        })
    }

    /// Returns, oldest first, the landings of `source` after the snapshot `since`, each with the first and the last event that it or a later one brought.
    fn landed_from(&self, source: &str, since: SnapshotId) -> Result<Vec<Hull>, CatalogError> {
        let sql = "SELECT snapshot_id, min(first_event_us), max(last_event_us) FROM restitch_file
                   WHERE source = ?1 AND snapshot_id > ?2 AND records > 0 GROUP BY snapshot_id ORDER BY snapshot_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let bounds = |r: &rusqlite::Row| {
            let (first, last): (Option<i64>, Option<i64>) = (r.get(1)?, r.get(2)?);
            Ok(Hull { snapshot: r.get(0)?, first: first.unwrap_or(i64::MIN), last: last.unwrap_or(i64::MAX) })
        };
        let mut landed = statement.query_map(params![source, since.0], bounds)?.collect::<Result<Vec<_>, _>>()?;
        for i in (1..landed.len()).rev() {
            let (first, last) = (landed[i].first, landed[i].last);
            let before = &mut landed[i - 1];
            (before.first, before.last) = (before.first.min(first), before.last.max(last));
        }
        Ok(landed)
    }

    /// The slots that touch the spans of a source, which are in order and apart.
    fn slots_of(
        &self,
        sources: &[String],
        at: SnapshotId,
        spans: impl Fn(&str) -> Result<Vec<(i64, i64)>, CatalogError>,
    ) -> Result<Vec<Slot>, CatalogError> {
        let mut slots = Vec::new();
        for source in sources {
            // A slot that a border cuts counts on both sides, and is read once.
            let mut read = i64::MIN;
            for (from, to) in spans(source)? {
                self.read_slots(source, (from.saturating_sub(SLOT_US).max(read), to), (SnapshotId(i64::MIN), at), &mut slots)?;
                read = to - 1;
            }
        }
        slots.sort_by_key(|s| (s.start, s.snapshot));
        Ok(slots)
    }

    /// Returns the repair queue of `dataset`, by partition, of those partitions that it has a row for from after what they were computed from, or that are not published.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn queue_behind(&self, dataset: &str, published: &[PublishedRow]) -> Result<Vec<QueueRow>, CatalogError> {
        let read: HashMap<i64, i64> = published.iter().map(|p| (p.window.start().0, p.input_snapshot.0)).collect();
        let sql = "SELECT start_us, max(snapshot_id) FROM restitch_repair_queue WHERE dataset = ?1 GROUP BY start_us ORDER BY start_us";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut newest = statement.query([dataset])?;
        let mut queue = Vec::new();
        while let Some(r) = newest.next()? {
            let (start, snapshot): (i64, i64) = (r.get(0)?, r.get(1)?);
            let alone = Window::new(EventTime(start), EventTime(start.saturating_add(1)));
            if let (None, Ok(alone)) = (read.get(&start).filter(|read| snapshot <= **read), alone) {
                queue.extend(self.queue(dataset, Some(alone))?);
            }
        }
        Ok(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;
    use std::collections::BTreeMap;

    const DAY: i64 = 24 * 3_600_000_000;
    const DAYS: u64 = 6;

    /// A warehouse's tables with random landings of a source.
    fn landed(random: &mut impl FnMut(u64) -> u64, snapshots: i64) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::schema::DUCKLAKE).unwrap();
        connection.execute_batch(super::super::schema::STATE).unwrap();
        for snapshot in 1..=snapshots {
            let (mut bounds, mut slots): (Option<(i64, i64)>, BTreeMap<i64, Slot>) = (None, BTreeMap::new());
            for _ in 0..random(5) {
                let slot = random(DAYS * 96) as i64 * SLOT_US;
                let event = slot + random(SLOT_US as u64) as i64;
                slots.insert(slot, Slot { start: EventTime(slot), snapshot: SnapshotId(snapshot), records: 1, late: 0, future: 0 });
                bounds = Some(bounds.map_or((event, event), |(a, b)| (a.min(event), b.max(event))));
                let queued = "INSERT INTO restitch_repair_queue(dataset, partition, start_us, end_us, source, snapshot_id, file, kind, tier, records, least_late_us, most_late_us)
                              VALUES ('d', 'p', ?1, ?2, 's', ?3, 'f', 'late', 'repair', 1, 1, 1)";
                let start = slot.div_euclid(DAY) * DAY;
                connection.execute(queued, [start, start + DAY, snapshot]).unwrap();
            }
            super::super::slots::put_slots(&connection, "s", SnapshotId(snapshot), slots.into_values()).unwrap();
            let file = "INSERT INTO restitch_file VALUES ('s', ?1, '', '', 0, ?1, ?2, 0, 0, 0, ?3, ?4, 0, NULL, NULL)";
            connection.execute(file, params![snapshot, bounds.is_some(), bounds.map(|b| b.0), bounds.map(|b| b.1)]).unwrap();
        }
        connection
    }

    fn published(start: i64, input: i64) -> PublishedRow {
        let (none, window) = (crate::id::Digest([0; 32]), Window::new(EventTime(start), EventTime(start + DAY)).unwrap());
        PublishedRow {
            window,
            partition: String::new(),
            run: crate::id::RunId(1),
            input_snapshot: SnapshotId(input),
            published_snapshot: SnapshotId(input + 1),
            transform_digest: none,
            rows: 0,
            bytes: 0,
            checksum: none,
            settings_digest: none,
        }
    }

    #[test]
    fn nothing_that_a_partition_was_computed_without_is_left_out() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (sources, mut left_out) = (["s".to_owned()], 0);
        for round in 0..300 {
            let connection = landed(&mut random, 5);
            let view = View { connection: &connection, data_path: "" };
            // Borders of days in a zone of the past cut slots.
            let offset = [0, 300_000_000][round % 2];
            let days: Vec<i64> = (0..DAYS as i64).filter(|_| random(3) > 0).collect();
            let rows: Vec<PublishedRow> = days.into_iter().map(|day| published(day * DAY + offset, random(6) as i64)).collect();
            let (all, behind) = (view.slots(&sources, SnapshotId(5)).unwrap(), view.slots_behind(&sources, SnapshotId(5), &rows).unwrap());
            let settled = |at: i64, snapshot: SnapshotId| {
                rows.iter().any(|p| p.window.start().0 <= at && at < p.window.end().0 && snapshot <= p.input_snapshot)
            };
            let needed = all.iter().filter(|s| !settled(s.start.0, s.snapshot) || !settled(s.start.0 + SLOT_US - 1, s.snapshot));
            assert!(needed.clone().all(|s| behind.contains(s)), "round {round}");
            // In their order, and none twice.
            assert_eq!(all.iter().filter(|s| behind.contains(s)).collect::<Vec<_>>(), behind.iter().collect::<Vec<_>>(), "round {round}");
            left_out += all.len() - behind.len();
            let span = Window::new(EventTime(DAY + offset), EventTime(2 * DAY + offset)).unwrap();
            let inside = view.slots_inside(&sources, SnapshotId(3), span).unwrap();
            let touches = |s: &&Slot| s.start.0 + SLOT_US > span.start().0 && s.start < span.end() && s.snapshot <= SnapshotId(3);
            assert_eq!(all.iter().filter(touches).collect::<Vec<_>>(), inside.iter().collect::<Vec<_>>(), "round {round}");
            let read = |q: &QueueRow| rows.iter().find(|p| p.window.start() == q.window.start()).map(|p| p.input_snapshot);
            let waits = |q: &&QueueRow| read(q).is_none_or(|read| q.snapshot > read);
            let (all, queued) = (view.queue("d", None).unwrap(), view.queue_behind("d", &rows).unwrap());
            let key = |q: &QueueRow| (q.window.start(), q.snapshot);
            let waiting = |queue: &[QueueRow]| queue.iter().filter(waits).map(key).collect::<Vec<_>>();
            assert_eq!(waiting(&all), waiting(&queued), "round {round}");
        }
        assert!(left_out > 300, "{left_out}: it reads everything");
    }
}
