//! What the SQL handler does with an event before Postgres gets it.

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use onceonly::handler::Handler as _;
use onceonly::handler::sql::{PayloadKind, SqlHandler, SqlSettings};

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
