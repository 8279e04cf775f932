//! Finding ids, and making the ledger's keys of them.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use onceonly::event::Batch;
use onceonly::identity::{EventKey, IdSource, Identity, Ids, OnMissing, Scope};
use uuid::Uuid;

use crate::EVENTS;
use crate::batch::{batch, ids};

const SOURCES: [&str; 6] = [
    "header:event-id",
    "key",
    "json:/id",
    "cloudevents",
    "position",
    "payload",
];

pub fn extraction(c: &mut Criterion) {
    let batch = batch();
    let mut group = c.benchmark_group("identity");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for source in SOURCES {
        let identity = Identity {
            from: source.parse::<IdSource>().expect("a source"),
            scope: Scope::Pipeline,
            on_missing: OnMissing::DeadLetter,
        };
        let mut ids = Ids::default();
        group.bench_function(source, |b| {
            b.iter(|| identify(&identity, black_box(&batch), &mut ids));
        });
    }
    group.finish();
}

fn identify(identity: &Identity, batch: &Batch, ids: &mut Ids) {
    ids.clear();
    for event in batch.events() {
        identity.identify(event, Some(Uuid::from_u128(7)), ids);
    }
}

/// A canonical UUID is its own key; anything else is hashed.
pub fn keys(c: &mut Criterion) {
    let uuids: Vec<String> = ids().map(|id| id.to_string()).collect();
    let others: Vec<String> = uuids.iter().map(|id| format!("order-{id}")).collect();
    let mut group = c.benchmark_group("key");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, ids) in [("uuid", &uuids), ("text", &others)] {
        group.bench_function(format!("{name}/pipeline"), |b| {
            b.iter(|| sum(black_box(ids), EventKey::in_pipeline));
        });
        group.bench_function(format!("{name}/topic"), |b| {
            b.iter(|| sum(black_box(ids), |id| EventKey::in_topic("orders", id)));
        });
    }
    group.finish();
}

fn sum(ids: &[String], key: impl Fn(&str) -> EventKey) -> u128 {
    ids.iter().fold(0, |sum, id| sum ^ key(id).0.as_u128())
}
