//! The set of the ids applied last.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use onceonly::filter::recent::RecentSet;
use onceonly::identity::EventKey;
use uuid::Uuid;

use crate::EVENTS;
use crate::batch::ids;

/// As many as a worker remembers.
const CAPACITY: usize = 500_000;

pub fn set(c: &mut Criterion) {
    let mut full = RecentSet::new(CAPACITY);
    for n in 0..CAPACITY as u64 {
        let hash = blake3::hash(&(n + EVENTS as u64).to_le_bytes());
        full.insert(EventKey(
            Uuid::from_slice(&hash.as_bytes()[..16]).expect("16 bytes"),
        ));
    }
    let keys: Vec<EventKey> = ids().map(EventKey).collect();
    let found =
        |set: &RecentSet, keys: &[EventKey]| keys.iter().filter(|key| set.contains(**key)).count();
    let mut group = c.benchmark_group("recent");
    group.throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("look/unknown", |b| {
        b.iter(|| found(&full, black_box(&keys)))
    });
    let mut known = full.clone();
    keys.iter().for_each(|key| known.insert(*key));
    group.bench_function("look/known", |b| b.iter(|| found(&known, black_box(&keys))));
    group.bench_function("insert", |b| {
        b.iter(|| black_box(&keys).iter().for_each(|key| full.insert(*key)));
    });
    group.finish();
}
