//! Metrics: every name, unit and meaning in one place.

/// Records whose transaction committed, by `outcome`.
pub const EVENTS: &str = "onceonly_events_total";
/// Partitions that another member claimed while this one believed to own them.
pub const FENCED: &str = "onceonly_fenced_total";
