//! Encoding of what is asked of Redis.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use onceonly::filter::redis::{Layout, RedisFilter, RedisSettings};
use onceonly::filter::{Lookup, Mark, MarkOrder, Place};
use onceonly::identity::EventKey;

use crate::{EVENTS, batch};

fn ids() -> Vec<(String, EventKey)> {
    let texts = batch::ids().map(|id| (id.to_string(), EventKey(id)));
    texts.collect()
}

fn places() -> Vec<Place> {
    let place = |partition| Place {
        topic: "0a1b2c3d-4e5f6071".to_owned(),
        partition,
    };
    (0..12).map(place).collect()
}

fn lookup((id, key): &(String, EventKey), place: u32) -> Lookup<'_> {
    Lookup {
        scope: None,
        id: Some(id),
        key: *key,
        place,
        offset: 123_456_789,
    }
}

fn mark((id, key): &(String, EventKey), place: u32) -> Mark<'_> {
    Mark {
        scope: None,
        id: Some(id),
        key: *key,
        place,
        overwrite: false,
    }
}

fn filter(layout: Layout) -> RedisFilter {
    RedisFilter::open(RedisSettings {
        url: "redis://localhost".to_owned(),
        timeout: Duration::from_millis(50),
        ttl: Duration::from_hours(24),
        pipeline: "orders".to_owned(),
        mark: MarkOrder::After,
        layout,
    })
    .expect("a URL of a Redis")
}

pub fn encoding(c: &mut Criterion) {
    // The filter's task lives in it; nothing connects.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let (ids, places) = (ids(), places());
    let committed = vec![123_456_789; places.len()];
    let placed = || ids.iter().zip((0..places.len() as u32).cycle());
    let lookups: Vec<_> = placed().map(|(id, place)| lookup(id, place)).collect();
    let marks: Vec<_> = placed().map(|(id, place)| mark(id, place)).collect();
    let mut group = c.benchmark_group("redis");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, layout) in [("keys", Layout::Keys), ("buckets", Layout::Buckets)] {
        let filter = filter(layout);
        group.bench_function(format!("{name}/look"), |b| {
            b.iter(|| filter.packed_looks(black_box(&lookups)));
        });
        group.bench_function(format!("{name}/mark"), |b| {
            b.iter(|| filter.packed_marks(&places, &committed, black_box(&marks)));
        });
    }
    group.finish();
}
