//! The log behind sources in memory, and its consumer group.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::MemorySource;
use crate::event::TopicPartition;
use crate::source::{Assigned, Committed, Next};

/// A record of a [`MemoryLog`].
#[derive(Clone, Debug, Default)]
pub struct MemoryRecord {
    /// The timestamp.
    pub timestamp_ms: Option<i64>,
    /// The Kafka key.
    pub key: Option<Vec<u8>>,
    /// The headers.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value.
    pub payload: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct PartitionLog {
    pub(super) records: BTreeMap<i64, MemoryRecord>,
    pub(super) low: i64,
    pub(super) end: i64,
    pub(super) committed: Option<Committed>,
    /// Who owns it as the group sees it.
    pub(super) member: Option<usize>,
    /// Who gets it once the owner has let go.
    pub(super) heir: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) session: u64,
    pub(super) offset: i64,
}

#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) inbox: VecDeque<Next>,
    pub(super) reading: BTreeMap<TopicPartition, Reading>,
    /// Partitions that this member believes to have.
    pub(super) holds: BTreeSet<TopicPartition>,
    pub(super) closing: bool,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) partitions: BTreeMap<TopicPartition, PartitionLog>,
    pub(super) topic_ids: BTreeMap<Arc<str>, Uuid>,
    pub(super) members: Vec<Member>,
}

/// A log that any number of [`MemorySource`]s read as one group.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    log: Arc<Mutex<Log>>,
    pub(super) changed: Arc<Notify>,
}

impl Log {
    pub(super) fn assigned(&self, at: &TopicPartition) -> Option<Assigned> {
        let partition = self.partitions.get(at)?;
        Some(Assigned {
            at: at.clone(),
            topic_id: self.topic_ids.get(&at.topic).copied(),
            cluster_id: Some("memory".into()),
            committed: partition.committed,
            low: partition.low,
            high: partition.end,
        })
    }

    pub(super) fn hand_over(&mut self, at: &TopicPartition, member: usize) {
        let partition = self.partitions.entry(at.clone()).or_default();
        (partition.member, partition.heir) = (Some(member), None);
        let assigned = self.assigned(at);
        if let (Some(member), Some(assigned)) = (self.members.get_mut(member), assigned) {
            member.inbox.push_back(Next::Assigned(vec![assigned]));
        }
    }

    pub(super) fn is_owner(&self, member: usize, at: &TopicPartition) -> bool {
        self.partitions
            .get(at)
            .is_some_and(|partition| partition.member == Some(member))
    }
}

impl MemoryLog {
    /// An empty log.
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    /// Appends a record behind a gap of `skip` offsets and returns its offset.
    pub fn append(&self, at: &TopicPartition, record: MemoryRecord, skip: i64) -> i64 {
        self.change(|log| {
            let partition = log.partitions.entry(at.clone()).or_default();
            let offset = partition.end + skip;
            partition.records.insert(offset, record);
            partition.end = offset + 1;
            offset
        })
    }

    /// Moves the end of a partition past offsets that hold nothing.
    pub fn append_gap(&self, at: &TopicPartition, length: i64) {
        self.change(|log| log.partitions.entry(at.clone()).or_default().end += length);
    }

    /// The offset behind the last record.
    pub fn end(&self, at: &TopicPartition) -> i64 {
        self.lock()
            .partitions
            .get(at)
            .map_or(0, |partition| partition.end)
    }

    /// The group's committed offset.
    pub fn committed(&self, at: &TopicPartition) -> Option<Committed> {
        self.lock().partitions.get(at)?.committed
    }

    /// The member that owns a partition, as the group sees it.
    pub fn owner(&self, at: &TopicPartition) -> Option<usize> {
        self.lock().partitions.get(at)?.member
    }

    /// Commits as another tool would.
    pub fn commit_foreign(&self, at: &TopicPartition, offset: i64) {
        self.change(|log| {
            if let Some(partition) = log.partitions.get_mut(at) {
                partition.committed = Some(Committed {
                    offset,
                    ours: false,
                });
            }
        });
    }

    /// A member that has nothing yet. `max_events` bounds its batches.
    pub fn join(&self, max_events: usize) -> MemorySource {
        let member = self.change(|log| {
            log.members.push(Member::default());
            log.members.len() - 1
        });
        MemorySource::new(self.clone(), member, max_events)
    }

    /// Gives a partition to a member. The old owner is asked first, and waited for.
    pub fn assign(&self, at: &TopicPartition, member: usize) {
        self.change(|log| {
            let owner = log.partitions.entry(at.clone()).or_default().member;
            let Some(owner) = owner.filter(|owner| *owner != member) else {
                return log.hand_over(at, member);
            };
            if let Some(partition) = log.partitions.get_mut(at) {
                partition.heir = Some(member);
            }
            log.members[owner]
                .inbox
                .push_back(Next::Revoked(vec![at.clone()]));
        });
    }

    /// Gives a partition to a member behind the back of the old owner, which goes on as if it
    /// still had it: the session timed out.
    pub fn steal(&self, at: &TopicPartition, member: usize) {
        self.change(|log| log.hand_over(at, member));
    }

    /// Tells a member at last which partitions it lost.
    pub fn tell_lost(&self, member: usize) {
        self.change(|log| {
            let holds: Vec<_> = log.members[member].holds.iter().cloned().collect();
            let lost: Vec<_> = holds
                .into_iter()
                .filter(|at| !log.is_owner(member, at))
                .collect();
            if !lost.is_empty() {
                log.members[member].inbox.push_back(Next::Revoked(lost));
            }
        });
    }

    /// Delivers again from an earlier offset, in the session that is being read.
    pub fn deliver_again(&self, at: &TopicPartition, offset: i64) {
        self.change(|log| {
            for member in &mut log.members {
                if let Some(reading) = member.reading.get_mut(at) {
                    reading.offset = reading.offset.min(offset);
                }
            }
        });
    }

    /// Ends a member: it lets go of everything, and its source is over.
    pub fn close(&self, member: usize) {
        self.change(|log| {
            let holds: Vec<_> = log.members[member].holds.iter().cloned().collect();
            log.members[member].inbox.push_back(Next::Revoked(holds));
            log.members[member].closing = true;
        });
    }
}
