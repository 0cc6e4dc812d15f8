//! Records by quarters of an hour, as they are stored: those that an ingest brought of a UTC day are one row, packed.
//! Never decides which of them matter: that is asked of [`View`] in `behind`.
//! A packed slot is its place in the day (a byte), then how many records, how many of them late and how many in the future (LEB128 each).

use super::{CatalogError, Commit, SLOT_US, Slot, View};
use crate::{
    id::SnapshotId,
    time::{DAY_US, EventTime},
};
use rusqlite::{Connection, params};

/// A packed slot is no shorter.
const PACKED_MIN: usize = 4;

fn pack(slot: &Slot, into: &mut Vec<u8>) {
    into.push((slot.start.0.rem_euclid(DAY_US) / SLOT_US) as u8);
    for count in [slot.records, slot.late, slot.future] {
        let mut rest = count as u64;
        while rest >= 0x80 {
            into.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        into.push(rest as u8);
    }
}

/// Takes the first slot off `packed`; `None` if it is none.
fn unpack(packed: &mut &[u8], day: i64, snapshot: SnapshotId) -> Option<Slot> {
    let mut next = || {
        let (first, rest) = packed.split_first()?;
        *packed = rest;
        Some(*first)
    };
    let start = Some(next()? as i64 * SLOT_US).filter(|start| *start < DAY_US)? + day;
    let mut count = || {
        let mut count = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = next()?;
            count |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return i64::try_from(count).ok();
            }
        }
        None
    };
    Some(Slot { start: EventTime(start), snapshot, records: count()?, late: count()?, future: count()? })
}

pub(super) fn put_slots(connection: &Connection, source: &str, snapshot: SnapshotId, slots: impl Iterator<Item = Slot>) -> Result<(), CatalogError> {
    let mut insert = connection.prepare_cached("INSERT INTO restitch_slot VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let (mut slots, mut packed) = (slots.peekable(), Vec::new());
    let day_of = |slot: &Slot| slot.start.0.div_euclid(DAY_US);
    while let Some(first) = slots.peek() {
        let (day, mut records) = (day_of(first), 0);
        packed.clear();
        while let Some(slot) = slots.next_if(|s| day_of(s) == day) {
            records += slot.records;
            pack(&slot, &mut packed);
        }
        insert.execute(params![source, day * DAY_US, snapshot.0, records, packed])?;
    }
    Ok(())
}

impl Commit<'_> {
    /// Records how many records of this ingest fall into which slots, which come in order of time.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_slots(&self, source: &str, slots: impl Iterator<Item = Slot>) -> Result<(), CatalogError> {
        put_slots(&self.tx, source, self.snapshot(), slots)
    }
}

impl View<'_> {
    /// Appends the slots of `source` that begin after the instant `after` and before `to`, and came from one of the snapshots. They are in order of their days alone.
    pub(super) fn read_slots(
        &self,
        source: &str,
        (after, to): (i64, i64),
        (first, last): (SnapshotId, SnapshotId),
        into: &mut Vec<Slot>,
    ) -> Result<(), CatalogError> {
        let some = "FROM restitch_slot WHERE source = ?1 AND day_us > ?2 AND day_us < ?3 AND snapshot_id BETWEEN ?4 AND ?5";
        let of = params![source, after.saturating_sub(DAY_US), to, first.0, last.0];
        if into.is_empty() {
            let mut length = self.connection.prepare_cached(&format!("SELECT coalesce(sum(length(slots)), 0) {some}"))?;
            let bytes: i64 = length.query_row(of, |r| r.get(0))?;
            into.reserve_exact(bytes as usize / PACKED_MIN);
        }
        let mut statement = self.connection.prepare_cached(&format!("SELECT day_us, snapshot_id, slots {some} ORDER BY day_us, snapshot_id"))?;
        let mut rows = statement.query(of)?;
        while let Some(row) = rows.next()? {
            let (day, snapshot) = (row.get(0)?, SnapshotId(row.get(1)?));
            let mut packed = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            while !packed.is_empty() {
                let damaged = || CatalogError::Value { what: "slots", value: format!("of {source}, day {day}, snapshot {snapshot}") };
                let slot = unpack(&mut packed, day, snapshot).ok_or_else(damaged)?;
                if after < slot.start.0 && slot.start.0 < to {
                    into.push(slot);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_unpacked_as_they_were_packed_and_damage_is_told() {
        let slot = |start: i64, records, late, future| Slot { start: EventTime(start * SLOT_US), snapshot: SnapshotId(7), records, late, future };
        let slots =
            [slot(-96, 1, 0, 0), slot(-1, 127, 128, 300), slot(0, i64::MAX - 16_384, 1, i64::MAX), slot(95, 16_384, 0, 2_097_151), slot(96, 1, 1, 0)];
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(super::super::schema::DUCKLAKE).unwrap();
        connection.execute_batch(super::super::schema::STATE).unwrap();
        put_slots(&connection, "s", SnapshotId(7), slots.into_iter()).unwrap();
        let view = View { connection: &connection, data_path: "" };
        let read = |after, to| {
            let mut slots = Vec::new();
            view.read_slots("s", (after, to), (SnapshotId(0), SnapshotId(7)), &mut slots).map(|()| slots)
        };
        assert_eq!(read(i64::MIN, i64::MAX).unwrap(), slots);
        assert_eq!(read(-SLOT_US, 96 * SLOT_US).unwrap(), slots[2..4]);
        assert_eq!(connection.query_row("SELECT count(*) FROM restitch_slot", [], |r| r.get::<_, i64>(0)).unwrap(), 3);
        connection.execute("UPDATE restitch_slot SET slots = substr(slots, 1, length(slots) - 1) WHERE day_us = 0", []).unwrap();
        assert!(read(i64::MIN, i64::MAX).unwrap_err().to_string().contains("of s, day 0, snapshot 7"));
    }
}
