//! Where records come from: a log whose partitions are assigned to members of a group.
//!
//! A source hands one worker its partitions, the records of those that were started, and word of
//! those that it loses. It never decides where reading starts: the worker claims a partition in the
//! ledger first and then says so.

use std::sync::Arc;

use uuid::Uuid;

use crate::error::Error;
use crate::event::{Batch, TopicPartition};

#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;

/// A partition that this worker was given, and what the log says about it.
///
/// It is paused until [`Source::start`].
#[derive(Clone, Debug)]
pub struct Assigned {
    /// The partition.
    pub at: TopicPartition,
    /// The topic's id; `None` where the broker does not tell. A topic that was deleted and made
    /// again has another.
    pub topic_id: Option<Uuid>,
    /// The cluster's id; `None` where the broker does not tell.
    pub cluster_id: Option<Arc<str>>,
    /// The group's committed offset.
    pub committed: Option<Committed>,
    /// The first offset that the log still holds.
    pub low: i64,
    /// The offset behind the last record.
    pub high: i64,
}

/// An offset committed in the log, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The offset of the next record to read.
    pub offset: i64,
    /// Whether a onceonly member wrote it; another's commit is an operator speaking.
    pub ours: bool,
}

/// Where each partition that a topic has now begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStart {
    /// The topic.
    pub topic: Arc<str>,
    /// Partitions and their first offsets.
    pub offsets: Vec<(i32, i64)>,
}

/// What a worker is told next.
#[derive(Debug)]
pub enum Next {
    /// Partitions to claim.
    Assigned(Vec<Assigned>),
    /// Partitions to let go of. The source waits for [`Source::released`], though not for ever.
    Revoked(Vec<TopicPartition>),
    /// Records, or positions to move.
    Batch(Batch),
    /// The source is over, every partition was revoked before.
    Closed,
}

/// One worker's end of a log.
pub trait Source: Send {
    /// Waits for what comes next.
    ///
    /// Cancel-safe: nothing is lost when the future is dropped.
    fn next(&mut self) -> impl Future<Output = Result<Next, Error>> + Send;

    /// Returns once a revocation or the end waits behind [`Source::next`], so that a worker which
    /// waits for something else can give up and look.
    fn interrupted(&mut self) -> impl Future<Output = ()> + Send;

    /// Where the partitions begin of topics that were never claimed.
    ///
    /// With `first` the pipeline has claimed nothing yet: every topic that it reads now begins by
    /// the configuration's `kafka.start`. Otherwise this is about `topic` alone: one that the
    /// configuration names begins by `kafka.start`, one that a pattern has found since then begins
    /// at its beginning.
    fn starts(
        &mut self,
        topic: &str,
        first: bool,
    ) -> impl Future<Output = Result<Vec<TopicStart>, Error>> + Send;

    /// Begins to read a claimed partition at an offset; earlier sessions of it end. Batches carry
    /// the session given.
    fn start(&mut self, at: &TopicPartition, session: u64, offset: i64);

    /// Stops reading a partition until it is started again. It stays assigned.
    fn halt(&mut self, at: &TopicPartition);

    /// Commits exactly this offset to the log, waits for the answer, and assigns the partition
    /// again if the commit succeeded and the partition is still this member's; with backoff.
    fn reassign(&mut self, at: &TopicPartition, offset: i64);

    /// Says how far the effects of partitions are committed. A hint: it may be lost.
    fn acknowledge(&mut self, at: &TopicPartition, next_offset: i64);

    /// Answers a [`Next::Revoked`]: nothing of these partitions is in work any more.
    fn released(&mut self, partitions: &[TopicPartition]);
}
