//! The points of the line at which a process can end, and parts that end it there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceonly::error::Error;
use onceonly::event::{Event, TopicPartition};
use onceonly::filter::{Filter, Lookup, Mark, Place, Probe, Proofs, Receipt};
use onceonly::handler::{Handler, NewEvents};
use onceonly::ledger::{
    Claim, CommitError, Due, Entry, Failure, Ledger, Move, Parked, Position, Settled, Standing,
    Take,
};
use onceonly::outcome::Tally;
use onceonly::source::{Next, Source, TopicStart};
use uuid::Uuid;

/// Every point, in the order of the line.
pub const POINTS: [&str; 14] = [
    "batch read",
    "before probe",
    "after probe",
    "before begin",
    "after begin",
    "after advance",
    "after claim",
    "before handling",
    "after handling",
    "after counting",
    "after commit",
    "before marks",
    "after marks",
    "after acknowledgement",
];

/// Ends the process at one point, once records were read.
#[derive(Clone)]
pub struct Fuse {
    point: String,
    armed: Arc<AtomicBool>,
}

impl Fuse {
    /// Ends it at this point.
    pub fn new(point: &str) -> Self {
        assert!(POINTS.contains(&point), "{point} is no point of the line");
        Self {
            point: point.to_owned(),
            armed: Arc::default(),
        }
    }

    fn reach(&self, point: &str) {
        debug_assert!(POINTS.contains(&point));
        if self.point == point && self.armed.load(Ordering::SeqCst) {
            std::process::abort();
        }
    }
}

/// A part of the line that ends the process before or after what it does.
pub struct Fused<T> {
    part: T,
    fuse: Fuse,
}

impl<T> Fused<T> {
    /// The part as it is, but for the fuse.
    pub fn new(part: T, fuse: &Fuse) -> Self {
        Self {
            part,
            fuse: fuse.clone(),
        }
    }
}

impl<S: Source> Source for Fused<S> {
    async fn next(&mut self) -> Result<Next, Error> {
        let next = self.part.next().await?;
        if matches!(&next, Next::Batch(batch) if !batch.is_empty()) {
            self.fuse.armed.store(true, Ordering::SeqCst);
            self.fuse.reach("batch read");
        }
        Ok(next)
    }

    async fn interrupted(&mut self) {
        self.part.interrupted().await;
    }

    async fn starts(&mut self, topic: &str, first: bool) -> Result<Vec<TopicStart>, Error> {
        self.part.starts(topic, first).await
    }

    fn start(&mut self, at: &TopicPartition, session: u64, offset: i64) {
        self.part.start(at, session, offset);
    }

    fn halt(&mut self, at: &TopicPartition) {
        self.part.halt(at);
    }

    fn reassign(&mut self, at: &TopicPartition, offset: i64) {
        self.part.reassign(at, offset);
    }

    fn acknowledge(&mut self, at: &TopicPartition, next_offset: i64) {
        self.part.acknowledge(at, next_offset);
        self.fuse.reach("after acknowledgement");
    }

    fn released(&mut self, partitions: &[TopicPartition]) {
        self.part.released(partitions);
    }
}

impl<F: Filter> Filter for Fused<F> {
    async fn probe(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        self.fuse.reach("before probe");
        let answers = self.part.probe(places, lookups, proofs).await;
        self.fuse.reach("after probe");
        answers
    }

    async fn mark(
        &mut self,
        receipt: &Receipt,
        places: &[Place],
        committed: &[i64],
        marks: &[Mark<'_>],
    ) {
        self.fuse.reach("before marks");
        self.part.mark(receipt, places, committed, marks).await;
        self.part.flush(Duration::from_secs(5)).await;
        self.fuse.reach("after marks");
    }

    async fn unclaim(&mut self, places: &[Place], lookups: &[Lookup<'_>]) {
        self.part.unclaim(places, lookups).await;
    }

    async fn flush(&mut self, limit: Duration) {
        self.part.flush(limit).await;
    }

    fn set_namespace(&mut self, namespace: i32) {
        self.part.set_namespace(namespace);
    }

    fn health(&self) -> Result<(), Error> {
        self.part.health()
    }
}

impl<C: Send, H: Handler<C>> Handler<C> for Fused<H> {
    fn name(&self) -> &str {
        self.part.name()
    }

    fn text(&self) -> String {
        self.part.text()
    }

    fn screen(&self, event: &Event<'_>) -> Option<Failure> {
        self.part.screen(event)
    }

    async fn prepare(&self, connection: &mut C) -> Result<(), Error> {
        self.part.prepare(connection).await
    }

    async fn handle(&self, transaction: &mut C, events: &NewEvents<'_>) -> Result<(), Error> {
        self.fuse.reach("before handling");
        self.part.handle(transaction, events).await?;
        self.fuse.reach("after handling");
        Ok(())
    }
}

impl<L: Ledger> Ledger for Fused<L> {
    type Connection = L::Connection;

    async fn connect(&mut self) -> Result<(), Error> {
        self.part.connect().await
    }

    async fn begin(&mut self) -> Result<(), Error> {
        self.fuse.reach("before begin");
        self.part.begin().await?;
        self.fuse.reach("after begin");
        Ok(())
    }

    async fn lock_positions(&mut self, at: &[TopicPartition]) -> Result<Vec<Position>, Error> {
        self.part.lock_positions(at).await
    }

    async fn knows_topic(&mut self, topic: &str) -> Result<bool, Error> {
        self.part.knows_topic(topic).await
    }

    async fn insert_positions(&mut self, topic: &str, starts: &[(i32, i64)]) -> Result<(), Error> {
        self.part.insert_positions(topic, starts).await
    }

    async fn take(&mut self, owner: Uuid, takes: &[Take]) -> Result<Vec<i64>, Error> {
        self.part.take(owner, takes).await
    }

    async fn advance(&mut self, moves: &[Move<'_>]) -> Result<Vec<usize>, Error> {
        let fenced = self.part.advance(moves).await?;
        self.fuse.reach("after advance");
        Ok(fenced)
    }

    async fn claim(&mut self, entries: &[Entry<'_>]) -> Result<Vec<Claim>, Error> {
        let claims = self.part.claim(entries).await?;
        self.fuse.reach("after claim");
        Ok(claims)
    }

    async fn conflicts(&mut self, entries: &[Entry<'_>]) -> Result<Vec<bool>, Error> {
        self.part.conflicts(entries).await
    }

    fn connection(&mut self) -> Result<&mut L::Connection, Error> {
        self.part.connection()
    }

    async fn park(&mut self, parked: &[Parked<'_>]) -> Result<(), Error> {
        self.part.park(parked).await
    }

    async fn count(&mut self, tallies: &[(&TopicPartition, Tally, u64)]) -> Result<(), Error> {
        self.part.count(tallies).await?;
        self.fuse.reach("after counting");
        Ok(())
    }

    async fn commit(&mut self) -> Result<Receipt, CommitError> {
        let receipt = self.part.commit().await?;
        self.fuse.reach("after commit");
        Ok(receipt)
    }

    async fn rollback(&mut self) -> Result<(), Error> {
        self.part.rollback().await
    }

    fn vouch(&mut self) -> Receipt {
        self.part.vouch()
    }

    async fn standings(&mut self) -> Result<Vec<Standing>, Error> {
        self.part.standings().await
    }

    fn history(&self) -> Result<String, Error> {
        self.part.history()
    }

    async fn mark_namespace(&mut self) -> Result<i32, Error> {
        self.part.mark_namespace().await
    }

    async fn bump_mark_namespace(&mut self) -> Result<i32, Error> {
        self.part.bump_mark_namespace().await
    }

    async fn stop(&mut self, at: &TopicPartition, epoch: i64, reason: &str) -> Result<(), Error> {
        self.part.stop(at, epoch, reason).await
    }

    async fn due(&mut self, limit: usize) -> Result<Due, Error> {
        self.part.due(limit).await
    }

    async fn settle(&mut self, settled: &[Settled<'_>]) -> Result<usize, Error> {
        self.part.settle(settled).await
    }
}
