//! Kafka's timestamps in the range of Postgres's.

/// Milliseconds from 1970 to 2000, where Postgres begins to count.
const EPOCH_2000_MS: i64 = 946_684_800_000;
/// The first instant of a `timestamptz`: Julian day 0.
const MIN_MS: i64 = -210_866_803_200_000;
/// A day before the last instant of a `timestamptz`, the end of year 294276: statements compute in
/// floating point, and must not round over it.
const END_MS: i64 = 9_224_318_016_000_000 - 86_400_000;

/// The timestamp, unless no `timestamptz` can hold it: a producer may have written anything.
pub(crate) fn within_range(timestamp_ms: i64) -> Option<i64> {
    (MIN_MS..END_MS)
        .contains(&timestamp_ms)
        .then_some(timestamp_ms)
}

/// A `timestamptz` on the wire: microseconds since 2000.
pub(crate) fn wire_us(timestamp_ms: i64) -> Option<i64> {
    Some((within_range(timestamp_ms)? - EPOCH_2000_MS) * 1000)
}
