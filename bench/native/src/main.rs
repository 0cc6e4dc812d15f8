//! The practical limit of the benchmark "orders", by hand: raw Parquet -> window -> dedup -> aggregate -> staged Parquet -> validate -> swap -> manifest.
//! Never safe to use: it knows the file's columns by number, fsyncs nothing unless asked, and has no catalog, checksums or conflicts.
//!
//!     native backfill|repair DATA OUT        environment: THREADS (2), FSYNC=1
use arrow_array::{builder::StringBuilder, cast::AsArray, types::*, *};
use arrow_schema::*;
use mimalloc::MiMalloc;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::statistics::Statistics;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

#[global_allocator]
static A: MiMalloc = MiMalloc;
const DAY: i64 = 86_400_000_000;

/// A string of <= 15 bytes packed big-endian with its length in the last byte (order = byte order); a longer one is
/// an index into the day's `long` list, marked 0xFF.
type Key = u128;
#[inline(always)]
fn pack(s: &[u8]) -> Option<Key> {
    if s.len() > 15 {
        return None;
    }
    let mut b = [0u8; 16];
    b[..s.len()].copy_from_slice(s);
    b[15] = s.len() as u8;
    Some(u128::from_be_bytes(b))
}
#[inline(always)]
fn hash(k: Key) -> u64 {
    let a = (k as u64) ^ 0x9E37_79B9_7F4A_7C15;
    let b = ((k >> 64) as u64) ^ 0xD6E8_FEB8_6659_FD93;
    let m = (a as u128).wrapping_mul(b as u128);
    (m as u64) ^ ((m >> 64) as u64)
}
#[derive(Clone, Copy)]
struct Rec {
    id: Key,
    cust: Key,
    ing: i64,
    amt: i64,
}
#[derive(Default)]
struct Chunk {
    recs: Vec<Rec>,
    long: Vec<Box<[u8]>>,
}
struct Input {
    path: PathBuf,
    meta: ArrowReaderMetadata,
    first: i64,
    last: i64,
}

/// yyyy-mm-dd <-> days since 1970
fn civil(z: i64) -> String {
    let z = z + 719468;
    let era = z.div_euclid(146097);
    let doe = z.rem_euclid(146097);
    let yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let d = doy - (153 * mp + 2) / 5 + 1;
    let m = if mp < 10 { mp + 3 } else { mp - 9 };
    format!("{:04}-{:02}-{:02}", yoe + era * 400 + (m <= 2) as i64, m, d)
}
fn days(s: &str) -> i64 {
    let p: Vec<i64> = s.split('-').map(|x| x.parse().unwrap()).collect();
    let (y, m, d) = (if p[1] <= 2 { p[0] - 1 } else { p[0] }, p[1], p[2]);
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * (if m > 2 { m - 3 } else { m + 9 }) + 2) / 5 + d - 1;
    era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468
}

fn open(path: PathBuf) -> Input {
    let f = File::open(&path).unwrap();
    let meta = ArrowReaderMetadata::load(&f, ArrowReaderOptions::new()).unwrap();
    let (mut lo, mut hi) = (i64::MAX, i64::MIN);
    for rg in meta.metadata().row_groups() {
        match rg.column(1).statistics() {
            Some(Statistics::Int64(s)) => {
                lo = lo.min(*s.min_opt().unwrap());
                hi = hi.max(*s.max_opt().unwrap())
            }
            _ => {
                lo = i64::MIN / 2;
                hi = i64::MAX / 2
            }
        }
    }
    Input { path, meta, first: lo.div_euclid(DAY), last: hi.div_euclid(DAY) }
}

fn read(inp: &Input, lo: i64, hi: i64) -> Vec<Chunk> {
    let mut out: Vec<Chunk> = (lo..hi).map(|_| Chunk::default()).collect();
    let n_total = inp.meta.metadata().file_metadata().num_rows() as usize;
    out[(inp.last.min(hi - 1) - lo) as usize].recs.reserve(n_total * 9 / 10);
    let mask = ProjectionMask::leaves(inp.meta.metadata().file_metadata().schema_descr(), [0, 1, 2, 3, 4]);
    let r = ParquetRecordBatchReaderBuilder::new_with_metadata(File::open(&inp.path).unwrap(), inp.meta.clone())
        .with_projection(mask)
        .with_batch_size(8192)
        .build()
        .unwrap();
    let (tlo, thi) = (lo * DAY, hi * DAY);
    for b in r {
        let b = b.unwrap();
        let id = b.column(0).as_string::<i32>();
        let et = b.column(1).as_primitive::<TimestampMicrosecondType>().values();
        let ig = b.column(2).as_primitive::<TimestampMicrosecondType>().values();
        let cu = b.column(3).as_string::<i32>();
        let am = b.column(4).as_primitive::<Int64Type>().values();
        let (idd, ido, cud, cuo) = (id.value_data(), id.value_offsets(), cu.value_data(), cu.value_offsets());
        for i in 0..b.num_rows() {
            if et[i] < tlo || et[i] >= thi {
                continue;
            }
            let c = &mut out[(et[i].div_euclid(DAY) - lo) as usize];
            let ids = &idd[ido[i] as usize..ido[i + 1] as usize];
            let cus = &cud[cuo[i] as usize..cuo[i + 1] as usize];
            let mut key = |s: &[u8]| {
                pack(s).unwrap_or_else(|| {
                    c.long.push(s.into());
                    ((c.long.len() as u128 - 1) << 8) | 0xFF
                })
            };
            let (id, cust) = (key(ids), key(cus));
            c.recs.push(Rec { id, cust, ing: ig[i], amt: am[i] });
        }
    }
    out
}

#[derive(Clone, Copy)]
struct Part {
    day: i64,
    input: usize,
    deduped: usize,
    rows: usize,
    amount: i64,
    bytes: u64,
}

/// dedup + aggregate + write staged file + validate it
fn finish(day: i64, chunks: Vec<Chunk>, stage: &Path, fsync: bool) -> Part {
    let mut recs: Vec<Rec> = Vec::new();
    let mut names: Vec<Box<[u8]>> = Vec::new();
    let any_long = chunks.iter().any(|c| !c.long.is_empty());
    if any_long {
        let mut ix: HashMap<Box<[u8]>, u128> = HashMap::new();
        for c in chunks {
            let map: Vec<u128> = c
                .long
                .into_iter()
                .map(|s| {
                    *ix.entry(s).or_insert_with_key(|s| {
                        names.push(s.clone());
                        ((names.len() as u128 - 1) << 8) | 0xFF
                    })
                })
                .collect();
            let f = |k: Key| if k as u8 == 0xFF { map[(k >> 8) as usize] } else { k };
            recs.extend(c.recs.into_iter().map(|r| Rec { id: f(r.id), cust: f(r.cust), ..r }));
        }
    } else {
        let n: usize = chunks.iter().map(|c| c.recs.len()).sum();
        let mut it = chunks.into_iter().filter(|c| !c.recs.is_empty()).map(|c| c.recs).collect::<Vec<_>>();
        it.sort_by_key(|v| std::cmp::Reverse(v.len()));
        for v in it {
            if recs.is_empty() {
                recs = v;
                recs.reserve(n - recs.len())
            } else {
                recs.extend_from_slice(&v)
            }
        }
    }
    let n = recs.len();
    // dedup: open addressing of record indexes, the latest ingested_at wins
    let cap = (n * 2).next_power_of_two().max(16);
    let mask = cap - 1;
    let mut tab = vec![u32::MAX; cap];
    let mut uniq = 0usize;
    for i in 0..n {
        let k = recs[i].id;
        let mut p = hash(k) as usize & mask;
        loop {
            let t = tab[p];
            if t == u32::MAX {
                tab[p] = i as u32;
                uniq += 1;
                break;
            }
            if recs[t as usize].id == k {
                if recs[i].ing > recs[t as usize].ing {
                    tab[p] = i as u32
                }
                break;
            }
            p = (p + 1) & mask;
        }
    }
    // aggregate per customer
    let mut acc: Vec<(Key, i64, i64)> = Vec::with_capacity(uniq / 2);
    let mut at = vec![u32::MAX; (uniq * 2).next_power_of_two().max(16)];
    let am = at.len() - 1;
    for &t in tab.iter().filter(|t| **t != u32::MAX) {
        let r = &recs[t as usize];
        let mut p = hash(r.cust) as usize & am;
        loop {
            let a = at[p];
            if a == u32::MAX {
                at[p] = acc.len() as u32;
                acc.push((r.cust, 1, r.amt));
                break;
            }
            let e = &mut acc[a as usize];
            if e.0 == r.cust {
                e.1 += 1;
                e.2 += r.amt;
                break;
            }
            p = (p + 1) & am;
        }
    }
    if any_long {
        acc.sort_by(|a, b| text(&a.0, &names).cmp(text(&b.0, &names)))
    } else {
        acc.sort_unstable_by_key(|a| a.0)
    }
    let mut sb = StringBuilder::with_capacity(acc.len(), acc.len() * 12);
    for a in &acc {
        let kb;
        sb.append_value(unsafe {
            std::str::from_utf8_unchecked(if a.0 as u8 == 0xFF {
                text(&a.0, &names)
            } else {
                kb = a.0.to_be_bytes();
                &kb[..kb[15] as usize]
            })
        })
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("customer_id", DataType::Utf8, false),
        Field::new("orders", DataType::Int64, false),
        Field::new("amount_cents", DataType::Int64, false),
    ]));
    let batch = RecordBatch::try_new(
        schema.clone(),
        vec![
            Arc::new(sb.finish()),
            Arc::new(Int64Array::from_iter_values(acc.iter().map(|a| a.1))),
            Arc::new(Int64Array::from_iter_values(acc.iter().map(|a| a.2))),
        ],
    )
    .unwrap();
    let dir = stage.join(format!("event_date={}", civil(day)));
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("part-0.parquet");
    let props = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_column_dictionary_enabled("customer_id".into(), false)
        .set_column_encoding("customer_id".into(), Encoding::DELTA_BYTE_ARRAY)
        .build();
    let mut w = ArrowWriter::try_new(File::create(&path).unwrap(), schema, Some(props)).unwrap();
    w.write(&batch).unwrap();
    w.close().unwrap();
    // validate the staged bytes by reading them back
    let f = File::open(&path).unwrap();
    if fsync {
        f.sync_all().unwrap();
        File::open(&dir).unwrap().sync_all().unwrap();
    }
    let bytes = f.metadata().unwrap().len();
    let (mut rows, mut orders, mut amount) = (0, 0, 0);
    for b in ParquetRecordBatchReaderBuilder::try_new(f).unwrap().with_batch_size(65536).build().unwrap() {
        let b = b.unwrap();
        rows += b.num_rows();
        orders += b.column(1).as_primitive::<Int64Type>().values().iter().sum::<i64>();
        amount += b.column(2).as_primitive::<Int64Type>().values().iter().sum::<i64>();
    }
    assert!(rows == acc.len() && orders as usize == uniq, "validation failed for {}", civil(day));
    assert_eq!(amount, acc.iter().map(|a| a.2).sum::<i64>());
    Part { day, input: n, deduped: uniq, rows, amount, bytes }
}
fn text<'a>(k: &'a Key, names: &'a [Box<[u8]>]) -> &'a [u8] {
    if *k as u8 == 0xFF {
        &names[(*k >> 8) as usize]
    } else {
        // big-endian bytes are needed, so only the long-string path comes here
        Box::leak(Box::new(k.to_be_bytes())).split_at((*k as u8) as usize).0
    }
}

fn backfill(op: &str, data: &str, out: &str) {
    let t0 = Instant::now();
    let meta = fs::read_to_string(format!("{data}/meta.json")).unwrap();
    let get = |k: &str| {
        let p = meta.find(&format!("\"{k}\": \"")).unwrap() + k.len() + 5;
        meta[p..p + 10].to_string()
    };
    let (lo, hi) = if op == "repair" { (days(&get("repair_start")), days(&get("repair_end"))) } else { (days(&get("start")), days(&get("end"))) };
    let threads: usize = std::env::var("THREADS").ok().map_or(2, |x| x.parse().unwrap());
    let fsync = std::env::var("FSYNC").is_ok();
    let out = Path::new(out);
    if op == "backfill" {
        let _ = fs::remove_dir_all(out);
    }
    let (stage, table) = (out.join("stage"), out.join("table"));
    let _ = fs::remove_dir_all(&stage);
    fs::create_dir_all(&stage).unwrap();
    fs::create_dir_all(&table).unwrap();
    let mut paths: Vec<PathBuf> = fs::read_dir(format!("{data}/parquet")).unwrap().map(|e| e.unwrap().path()).collect();
    if op == "repair" {
        paths.push(format!("{data}/repair/parquet/corrections.parquet").into());
    }
    paths.sort();
    // footers in parallel, prune by event_time statistics
    let half: Vec<Vec<PathBuf>> = (0..threads).map(|t| paths.iter().skip(t).step_by(threads).cloned().collect()).collect();
    let mut inputs: Vec<Input> = std::thread::scope(|s| {
        let h: Vec<_> = half.into_iter().map(|p| s.spawn(move || p.into_iter().map(open).collect::<Vec<_>>())).collect();
        h.into_iter().flat_map(|h| h.join().unwrap()).collect()
    });
    let scanned = inputs.len();
    inputs.retain(|i| i.first < hi && i.last >= lo);
    inputs.sort_by(|a, b| (a.first, &a.path).cmp(&(b.first, &b.path)));
    let t_meta = t0.elapsed();
    let n = (hi - lo) as usize;
    // a day is finished as soon as every file whose statistics cover it has been read
    let left: Vec<AtomicUsize> =
        (0..n).map(|d| AtomicUsize::new(inputs.iter().filter(|i| i.first <= lo + d as i64 && i.last >= lo + d as i64).count())).collect();
    let buckets: Vec<Mutex<Vec<Chunk>>> = (0..n).map(|_| Mutex::new(Vec::new())).collect();
    struct Q {
        ready: Vec<usize>,
        next: usize,
        done: usize,
    }
    let total = left.iter().filter(|l| l.load(Relaxed) > 0).count();
    let (q, cv) = (Mutex::new(Q { ready: vec![], next: 0, done: 0 }), Condvar::new());
    let parts = Mutex::new(Vec::<Part>::new());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let mut g = q.lock().unwrap();
                    let (day, file) = loop {
                        if g.done == total {
                            return;
                        }
                        if let Some(d) = g.ready.pop() {
                            break (Some(d), 0);
                        }
                        if g.next < inputs.len() {
                            g.next += 1;
                            break (None, g.next - 1);
                        }
                        g = cv.wait(g).unwrap();
                    };
                    drop(g);
                    if let Some(d) = day {
                        let c = std::mem::take(&mut *buckets[d].lock().unwrap());
                        let p = finish(lo + d as i64, c, &stage, fsync);
                        parts.lock().unwrap().push(p);
                        let mut g = q.lock().unwrap();
                        g.done += 1;
                        if g.done == total {
                            cv.notify_all();
                        }
                    } else {
                        let i = &inputs[file];
                        let (a, b) = (i.first.max(lo), (i.last + 1).min(hi));
                        for (k, c) in read(i, a, b).into_iter().enumerate() {
                            let d = (a - lo) as usize + k;
                            if !c.recs.is_empty() {
                                buckets[d].lock().unwrap().push(c);
                            }
                            if left[d].fetch_sub(1, AcqRel) == 1 {
                                q.lock().unwrap().ready.push(d);
                                cv.notify_one();
                            }
                        }
                    }
                }
            });
        }
    });
    let t_work = t0.elapsed();
    // publish: swap each partition directory atomically, then the manifest
    let mut parts = parts.into_inner().unwrap();
    parts.sort_by_key(|p| p.day);
    let mut man = String::from("{\"partitions\":[\n");
    for (i, p) in parts.iter().enumerate() {
        let name = format!("event_date={}", civil(p.day));
        let (a, b) = (stage.join(&name), table.join(&name));
        if b.exists() {
            let (ca, cb) = (std::ffi::CString::new(a.to_str().unwrap()).unwrap(), std::ffi::CString::new(b.to_str().unwrap()).unwrap());
            let r = unsafe { libc::renameat2(libc::AT_FDCWD, ca.as_ptr(), libc::AT_FDCWD, cb.as_ptr(), libc::RENAME_EXCHANGE) };
            assert_eq!(r, 0);
        } else {
            fs::rename(&a, &b).unwrap();
        }
        man += &format!(
            "{}{{\"p\":\"{name}\",\"input\":{},\"deduped\":{},\"rows\":{},\"amount\":{},\"bytes\":{}}}",
            if i > 0 { ",\n" } else { "" },
            p.input,
            p.deduped,
            p.rows,
            p.amount,
            p.bytes
        );
    }
    man += "\n]}\n";
    fs::write(out.join("manifest.tmp"), man).unwrap();
    if fsync {
        File::open(out.join("manifest.tmp")).unwrap().sync_all().unwrap();
        File::open(&table).unwrap().sync_all().unwrap();
    }
    fs::rename(out.join("manifest.tmp"), out.join("manifest.json")).unwrap();
    let _ = fs::remove_dir_all(&stage);
    eprintln!(
        "files {} of {scanned}; rows in {}, deduped {}, out {}; meta {:.3}s work {:.3}s publish {:.3}s",
        inputs.len(),
        parts.iter().map(|p| p.input).sum::<usize>(),
        parts.iter().map(|p| p.deduped).sum::<usize>(),
        parts.iter().map(|p| p.rows).sum::<usize>(),
        t_meta.as_secs_f64(),
        (t_work - t_meta).as_secs_f64(),
        (t0.elapsed() - t_work).as_secs_f64()
    );
}

fn main() {
    let a: Vec<String> = std::env::args().collect();
    backfill(&a[1], &a[2], &a[3])
}
