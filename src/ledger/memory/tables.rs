//! What a ledger in memory holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::event::{Batch, Event, Incoming, TopicPartition};
use crate::identity::EventKey;
use crate::ledger::{Failure, Parked, Position, Verdict};
use crate::outcome::Tally;

/// A record as it is kept for another attempt.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The id as text.
    pub id: String,
    /// Where it was read.
    pub at: TopicPartition,
    /// Its offset there.
    pub offset: i64,
    /// Its timestamp.
    pub timestamp_ms: Option<i64>,
    /// The Kafka key.
    pub key: Option<Vec<u8>>,
    /// The headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value.
    pub payload: Option<Vec<u8>>,
    /// Attempts that failed, with their reasons.
    pub failures: Vec<Failure>,
    /// Attempts made.
    pub attempts: u32,
    /// When it may be tried again; only for waiting ones.
    pub due_at: Instant,
}

/// Everything that is committed.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The rows of `position`.
    pub positions: BTreeMap<TopicPartition, Row>,
    /// The ledger: every known id with its body hash.
    pub ledger: BTreeMap<EventKey, Option<i64>>,
    /// Ids that wait for another attempt.
    pub waiting: BTreeMap<EventKey, Arc<Kept>>,
    /// Dead letters.
    pub dead: BTreeMap<EventKey, Arc<Kept>>,
    /// What handlers wrote: how often each id had an effect.
    pub effects: BTreeMap<String, u32>,
    /// The namespace of marks.
    pub mark_namespace: i32,
}

/// A row of `position`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The position.
    pub position: Position,
    /// Who owns it.
    pub owner: Option<Uuid>,
    /// Outcomes of the records that were consumed.
    pub tally: Tally,
    /// Ids that came with another body.
    pub conflicts: u64,
}

pub(super) fn keep(parked: &Parked<'_>) -> Kept {
    let event: &Event<'_> = &parked.event;
    let delay = match parked.verdict {
        Verdict::RetryAfter(delay) => delay,
        Verdict::Dead => Duration::ZERO,
    };
    Kept {
        id: parked.id.to_owned(),
        at: event.at().clone(),
        offset: event.offset(),
        timestamp_ms: event.timestamp_ms(),
        key: event.key().map(<[u8]>::to_vec),
        headers: event
            .headers()
            .map(|(n, v)| (n.to_owned(), v.map(<[u8]>::to_vec)))
            .collect(),
        payload: event.payload().map(<[u8]>::to_vec),
        failures: vec![parked.failure.clone()],
        attempts: 1,
        due_at: Instant::now() + delay,
    }
}

pub(super) fn replay(batch: &mut Batch, kept: &Kept) {
    let slot = batch.slice(&kept.at, 0);
    let record = Incoming {
        offset: kept.offset,
        timestamp_ms: kept.timestamp_ms,
        key: kept.key.as_deref(),
        payload: kept.payload.as_deref(),
    };
    batch.push(
        slot,
        record,
        kept.headers.iter().map(|(n, v)| (n.as_str(), v.as_deref())),
    );
}
