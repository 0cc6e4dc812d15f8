//! The crown property: any order, repetition and batching of the same raw data publishes the same bits as one full rebuild.
//! Random, with seeds that are fixed: a failure names its seed.

use crate::support::{Lab, ORDERS, order};
use restitch::{
    manifest::{Kind, Mode},
    pipeline::RunRequest,
    plan::Reason,
};

/// xorshift64*: a test needs repeatable numbers, not good ones.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

const CHECKSUMS: &str = "select partition, checksum from restitch_partitions where rows > 0 order by 1";

/// Orders of five days; duplicates repeat their record exactly, so that no order of arrival can matter.
fn records(random: &mut Random) -> Vec<String> {
    let mut lines: Vec<String> = (0..60)
        .map(|i| {
            let time = format!("2026-05-0{}T{:02}:{:02}:00Z", 1 + random.below(5), random.below(24), random.below(60));
            order(&format!("e{i}"), &time, &format!("C{}", random.below(6)), &format!("{}.{:02}", random.below(900), random.below(100)))
        })
        .collect();
    for _ in 0..20 {
        let again = lines[random.below(lines.len())].clone();
        lines.push(again);
    }
    for i in (1..lines.len()).rev() {
        lines.swap(i, random.below(i + 1));
    }
    lines
}

#[test]
fn any_order_split_and_repetition_ends_in_the_bits_of_one_rebuild() {
    for seed in 1..=6 {
        let mut random = Random(seed * 7919);
        let lines = records(&mut random);
        let rebuilt = Lab::new(ORDERS);
        rebuilt.land("all.jsonl", lines.concat());
        rebuilt.backfill("2026-05-01", "2026-05-05");
        let lived = Lab { workers: 1 + random.below(3), ..Lab::new(ORDERS) };
        let mut rest = lines.as_slice();
        let mut n = 0;
        while !rest.is_empty() {
            let (piece, next) = rest.split_at((1 + random.below(25)).min(rest.len()));
            lived.land(&format!("{n}.jsonl"), piece.concat() + &"\n".repeat(n));
            rest = next;
            n += 1;
            match random.below(4) {
                0 => drop(lived.go(Lab::request(Kind::Run, None))),
                1 => drop(lived.try_go(Lab::request(Kind::Repair, None))),
                2 => drop(lived.go(RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Run, None) })),
                _ => {}
            }
        }
        lived.go(Lab::request(Kind::Run, None));
        lived.go(RunRequest { only: Some(Reason::Dirty), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-05"))) });
        assert_eq!(lived.rows(CHECKSUMS), rebuilt.rows(CHECKSUMS), "seed {seed}");
        assert_eq!(lived.published(), rebuilt.published(), "seed {seed}");
        assert_eq!(lived.rows("select count(*) from restitch_queue"), ["0"], "seed {seed}");
    }
}

/// A partition that does not fit into memory is streamed and spilled, and gives the same bits.
#[test]
fn a_partition_larger_than_memory_gives_the_same_bits() {
    let month = ORDERS.replace("partition = \"day\"", "partition = \"month\"");
    let mut random = Random(4711);
    let lines: String = (0..60_000)
        .map(|i| {
            // A third repeats an earlier id, on another day of the month: file order is not arrival order.
            let id = if i % 3 == 0 { random.below(i + 1) } else { i };
            order(
                &format!("e{id}"),
                &format!("2026-05-{:02}T{:02}:00:00Z", 1 + random.below(28), random.below(24)),
                &format!("C{}", random.below(20_000)),
                &format!("{}.{:02}", i % 1000, i % 100),
            )
        })
        .collect();
    let (large, small) = (Lab::new(&month), Lab { memory_bytes: 1 << 20, ..Lab::new(&month) });
    for lab in [&large, &small] {
        lab.land("may.jsonl", &lines);
    }
    let (a, b) = (large.backfill("2026-05", "2026-05"), small.backfill("2026-05", "2026-05"));
    let key = |m: &restitch::manifest::Manifest| {
        let p = &m.partitions[0];
        (p.records, p.duplicates, p.conflicts, p.rows, p.input_checksum, p.checksum)
    };
    assert_eq!(key(&a), key(&b));
    assert!(a.partitions[0].duplicates > 10_000);
}
