//! What the SQL handler does with an event before Postgres gets it.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use onceonly::handler::sql::{PayloadKind, SqlHandler, SqlSettings};
use onceonly::handler::{Handler as _, NewEvents};
use onceonly::identity::{IdSource, Identity, Ids, OnMissing, Scope};

use crate::EVENTS;
use crate::batch::batch;

fn handler(payload: PayloadKind) -> SqlHandler {
    SqlHandler::new(SqlSettings {
        statements: Vec::new(),
        payload,
        max_event_bytes: 1 << 20,
        schema: "onceonly".to_owned(),
    })
    .expect("a handler")
}

/// Looking for what Postgres would refuse.
pub fn screening(c: &mut Criterion) {
    let batch = batch();
    let mut group = c.benchmark_group("screen");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, payload) in [("json", PayloadKind::Json), ("text", PayloadKind::Text)] {
        let handler = handler(payload);
        let refused = || {
            black_box(&batch)
                .events()
                .filter(|e| handler.screen(e).is_some())
        };
        assert_eq!(refused().count(), 0);
        group.bench_function(name, |b| b.iter(|| refused().count()));
    }
    group.finish();
}

/// Writing rows as they are copied into Postgres.
pub fn rows(c: &mut Criterion) {
    let (batch, mut ids) = (batch(), Ids::default());
    for event in batch.events() {
        identity().identify(event, None, &mut ids);
    }
    let selected: Vec<u32> = (0..EVENTS as u32).collect();
    let events = NewEvents::new(&batch, &ids, &selected);
    let mut group = c.benchmark_group("rows");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, payload) in [("json", PayloadKind::Json), ("text", PayloadKind::Text)] {
        let handler = handler(payload);
        group.bench_function(name, |b| b.iter(|| handler.packed_rows(black_box(&events))));
    }
    group.finish();
}

fn identity() -> Identity {
    Identity {
        from: IdSource::Key,
        scope: Scope::Pipeline,
        on_missing: OnMissing::DeadLetter,
    }
}
