//! The fast first pass: what may be dropped without asking Postgres.
//!
//! A filter only ever saves a trip. Whatever it says, forgets or loses, an event is applied exactly
//! once, because only a proven mark spares Postgres, and everything else goes there.

use std::time::Duration;

use crate::error::Error;
use crate::identity::EventKey;

mod mark_key;
mod mark_value;
pub mod memory;
mod packed_mark;
pub mod recent;
pub mod redis;

/// When an id enters the store (`dedup.mark`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkOrder {
    /// Read, commit, then mark.
    #[default]
    After,
    /// Claim, commit, then mark: of two copies in flight at the same time one knows of the other.
    Before,
}

/// An id to look up, and whose record asks.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a> {
    /// The topic's name where ids are unique within a topic only (`identity.scope = "topic"`).
    pub scope: Option<&'a str>,
    /// The id as text, `None` where the event is known by its place in the log. Within a scope two
    /// ids of the same text are the same event, but no text is the same event as a place.
    pub id: Option<&'a str>,
    /// The ledger's key for it.
    pub key: EventKey,
    /// Index of the record's partition in the marks' [`Places`].
    pub place: u32,
    /// The record's offset.
    pub offset: i64,
}

/// What the filter knows of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Nothing.
    Unknown,
    /// This attempt's own claim stands (`dedup.mark = "before"`).
    Claimed,
    /// Another record's claim stands. Proves nothing.
    ClaimedElsewhere,
    /// A mark whose proof does not hold (yet): Postgres decides.
    Unproven,
    /// A mark whose proof holds: the id was applied.
    Proven,
}

/// What a mark cites as its proof: a position that a transaction committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Names the topic's incarnation: the start of its id, or of a hash of its name where the
    /// broker tells no id.
    pub topic: String,
    /// The partition.
    pub partition: i32,
}

/// How far each place was ever committed, as this worker's connection has read it.
pub trait Proofs: Sync {
    /// The furthest position ever committed, or `None` if this connection has not read one.
    fn high_water(&self, topic: &str, partition: i32) -> Option<i64>;
}

/// An id whose effects are committed.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    /// As in [`Lookup::scope`].
    pub scope: Option<&'a str>,
    /// As in [`Lookup::id`].
    pub id: Option<&'a str>,
    /// The ledger's key for it.
    pub key: EventKey,
    /// Index of its partition in the places.
    pub place: u32,
    /// Whether to write over what is there: our own claim, or a mark whose proof failed. Otherwise
    /// what is there may stay.
    pub overwrite: bool,
}

/// Proof that a transaction committed: only [`crate::ledger::Ledger::commit`] makes one, so that
/// nothing can be marked before.
#[derive(Debug)]
pub struct Receipt(());

impl Receipt {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// A store of marks that may forget, lie about nothing, and fail at any time.
pub trait Filter: Send {
    /// Looks ids up, and claims them where `dedup.mark = "before"`. One answer for each, in order;
    /// when the store does not answer in time all are [`Probe::Unknown`].
    fn probe(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> impl Future<Output = Vec<Probe>> + Send;

    /// Marks ids as applied; `committed[place]` is the position that the transaction committed.
    /// Off the critical path: it returns before the marks are written, and they may be lost.
    fn mark(
        &mut self,
        receipt: &Receipt,
        places: &[Place],
        committed: &[i64],
        marks: &[Mark<'_>],
    ) -> impl Future<Output = ()> + Send;

    /// Gives back claims that the last [`Filter::probe`] made for an attempt that failed; those of
    /// others, and of earlier probes, stay.
    fn unclaim(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
    ) -> impl Future<Output = ()> + Send;

    /// Waits until the marks handed over so far are written or given up, no longer than `limit`.
    fn flush(&mut self, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Changes the namespace of marks: all earlier ones are forgotten.
    fn set_namespace(&mut self, namespace: i32);

    /// A short word on its health, for status and readiness; `Err` says what is wrong.
    fn health(&self) -> Result<(), Error>;

    /// Whether there is no store to ask or to tell.
    fn is_absent(&self) -> bool {
        false
    }
}

/// A filter that may be absent: then the recent set and Postgres alone decide.
impl<F: Filter> Filter for Option<F> {
    async fn probe(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        match self {
            Some(filter) => filter.probe(places, lookups, proofs).await,
            None => vec![Probe::Unknown; lookups.len()],
        }
    }

    async fn mark(
        &mut self,
        receipt: &Receipt,
        places: &[Place],
        committed: &[i64],
        marks: &[Mark<'_>],
    ) {
        if let Some(filter) = self {
            filter.mark(receipt, places, committed, marks).await;
        }
    }

    async fn unclaim(&mut self, places: &[Place], lookups: &[Lookup<'_>]) {
        if let Some(filter) = self {
            filter.unclaim(places, lookups).await;
        }
    }

    async fn flush(&mut self, limit: Duration) {
        if let Some(filter) = self {
            filter.flush(limit).await;
        }
    }

    fn set_namespace(&mut self, namespace: i32) {
        if let Some(filter) = self {
            filter.set_namespace(namespace);
        }
    }

    fn health(&self) -> Result<(), Error> {
        self.as_ref().map_or(Ok(()), Filter::health)
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}
