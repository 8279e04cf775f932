//! What runs for every event, part by part. A part's time is that of a batch of the default size;
//! its throughput is in events.

mod batch;
mod handler;
mod identity;
mod marks;
mod recent;

use criterion::{criterion_group, criterion_main};

/// The default size of a batch.
const EVENTS: usize = 5000;

criterion_group!(
    per_event,
    identity::extraction,
    identity::keys,
    recent::set,
    marks::encoding,
    handler::screening,
    handler::rows
);
criterion_main!(per_event);
