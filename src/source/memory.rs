//! A log and its consumer group in memory, for simulation and for tests without a broker.
//!
//! It behaves like Kafka where it matters: partitions with offsets that rise but may have gaps,
//! committed offsets with word of who wrote them, assignments that move with or without the old
//! owner knowing, and delivery from earlier offsets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use super::{Assigned, Committed, Next, Source, TopicStart};
use crate::error::Error;
use crate::event::{Batch, Incoming, TopicPartition};

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
struct PartitionLog {
    records: BTreeMap<i64, MemoryRecord>,
    low: i64,
    end: i64,
    committed: Option<Committed>,
    /// Who owns it as the group sees it.
    member: Option<usize>,
    /// Who gets it once the owner has let go.
    heir: Option<usize>,
}

#[derive(Debug)]
struct Reading {
    session: u64,
    offset: i64,
}

#[derive(Debug, Default)]
struct Member {
    inbox: VecDeque<Next>,
    reading: BTreeMap<TopicPartition, Reading>,
    /// Partitions that this member believes to have.
    holds: BTreeSet<TopicPartition>,
    closing: bool,
}

#[derive(Debug, Default)]
struct Log {
    partitions: BTreeMap<TopicPartition, PartitionLog>,
    topic_ids: BTreeMap<Arc<str>, Uuid>,
    members: Vec<Member>,
}

/// A log that any number of [`MemorySource`]s read as one group.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    log: Arc<Mutex<Log>>,
    changed: Arc<Notify>,
}

impl Log {
    fn assigned(&self, at: &TopicPartition) -> Option<Assigned> {
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

    fn hand_over(&mut self, at: &TopicPartition, member: usize) {
        if let Some(partition) = self.partitions.get_mut(at) {
            (partition.member, partition.heir) = (Some(member), None);
        }
        let assigned = self.assigned(at);
        if let (Some(member), Some(assigned)) = (self.members.get_mut(member), assigned) {
            member.inbox.push_back(Next::Assigned(vec![assigned]));
        }
    }

    fn is_owner(&self, member: usize, at: &TopicPartition) -> bool {
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

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
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
        MemorySource {
            log: self.clone(),
            member,
            max_events,
        }
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

/// One member's end of a [`MemoryLog`].
#[derive(Debug)]
pub struct MemorySource {
    log: MemoryLog,
    member: usize,
    max_events: usize,
}

impl MemorySource {
    /// The member's number.
    pub fn member(&self) -> usize {
        self.member
    }

    fn poll(&self) -> Option<Next> {
        let mut log = self.log.lock();
        let log = &mut *log;
        let member = log.members.get_mut(self.member)?;
        if let Some(next) = member.inbox.pop_front() {
            if let Next::Assigned(assigned) = &next {
                member
                    .holds
                    .extend(assigned.iter().map(|assigned| assigned.at.clone()));
            }
            return Some(next);
        }
        if member.closing {
            return Some(Next::Closed);
        }
        let mut batch = Batch::new();
        for (at, reading) in &mut member.reading {
            if let Some(partition) = log.partitions.get(at) {
                read(&mut batch, at, reading, partition, self.max_events);
            }
        }
        (!batch.is_idle()).then_some(Next::Batch(batch))
    }
}

fn read(
    batch: &mut Batch,
    at: &TopicPartition,
    reading: &mut Reading,
    log: &PartitionLog,
    max: usize,
) {
    if reading.offset >= log.end || batch.len() >= max {
        return;
    }
    let slot = batch.slice(at, reading.session);
    for (&offset, record) in log.records.range(reading.offset..) {
        if batch.len() >= max {
            return;
        }
        let incoming = Incoming {
            offset,
            timestamp_ms: record.timestamp_ms,
            key: record.key.as_deref(),
            payload: record.payload.as_deref(),
        };
        batch.push(
            slot,
            incoming,
            record
                .headers
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_deref())),
        );
        reading.offset = offset + 1;
    }
    reading.offset = log.end;
    batch.read_to(slot, log.end);
}

impl Source for MemorySource {
    async fn next(&mut self) -> Result<Next, Error> {
        loop {
            let changed = self.log.changed.clone();
            let changed = changed.notified();
            if let Some(next) = self.poll() {
                return Ok(next);
            }
            changed.await;
        }
    }

    async fn interrupted(&mut self) {
        loop {
            let changed = self.log.changed.clone();
            let changed = changed.notified();
            let waits = |next: &Next| matches!(next, Next::Revoked(_));
            if self.log.lock().members[self.member].inbox.iter().any(waits) {
                return;
            }
            changed.await;
        }
    }

    async fn starts(&mut self, topic: &str, first: bool) -> Result<Vec<TopicStart>, Error> {
        let log = self.log.lock();
        let mut starts: Vec<TopicStart> = Vec::new();
        for (at, partition) in &log.partitions {
            if !first && &*at.topic != topic {
                continue;
            }
            let begin = (at.partition, partition.low);
            match starts.last_mut().filter(|last| last.topic == at.topic) {
                Some(last) => last.offsets.push(begin),
                None => starts.push(TopicStart {
                    topic: Arc::clone(&at.topic),
                    offsets: vec![begin],
                }),
            }
        }
        Ok(starts)
    }

    fn start(&mut self, at: &TopicPartition, session: u64, offset: i64) {
        self.log.change(|log| {
            let member = &mut log.members[self.member];
            if member.holds.contains(at) {
                member
                    .reading
                    .insert(at.clone(), Reading { session, offset });
            }
        });
    }

    fn halt(&mut self, at: &TopicPartition) {
        self.log
            .change(|log| log.members[self.member].reading.remove(at));
    }

    fn reassign(&mut self, at: &TopicPartition, offset: i64) {
        self.log.change(|log| {
            if !log.is_owner(self.member, at) {
                return;
            }
            if let Some(partition) = log.partitions.get_mut(at) {
                partition.committed = Some(Committed { offset, ours: true });
            }
            log.hand_over(at, self.member);
        });
    }

    fn acknowledge(&mut self, at: &TopicPartition, next_offset: i64) {
        self.log.change(|log| {
            let owner = log.is_owner(self.member, at);
            if let Some(partition) = log.partitions.get_mut(at).filter(|_| owner) {
                partition.committed = Some(Committed {
                    offset: next_offset,
                    ours: true,
                });
            }
        });
    }

    fn released(&mut self, partitions: &[TopicPartition]) {
        self.log.change(|log| {
            for at in partitions {
                let member = &mut log.members[self.member];
                member.holds.remove(at);
                member.reading.remove(at);
                if !log.is_owner(self.member, at) {
                    continue;
                }
                let Some(partition) = log.partitions.get_mut(at) else {
                    continue;
                };
                if let Some(heir) = partition.heir {
                    log.hand_over(at, heir);
                }
            }
        });
    }
}
