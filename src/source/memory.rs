//! A log and its consumer group in memory, for simulation and for tests without a broker.
//!
//! It behaves like Kafka where it matters: partitions with offsets that rise but may have gaps,
//! committed offsets with word of who wrote them, assignments that move with or without the old
//! owner knowing, and delivery from earlier offsets.

use std::sync::Arc;

use super::{Committed, Next, Source, TopicStart};
use crate::error::Error;
use crate::event::{Batch, Incoming, TopicPartition};

mod log;

pub use log::{MemoryLog, MemoryRecord};

use log::{PartitionLog, Reading};

/// One member's end of a [`MemoryLog`].
#[derive(Debug)]
pub struct MemorySource {
    log: MemoryLog,
    member: usize,
    max_events: usize,
}

impl MemorySource {
    fn new(log: MemoryLog, member: usize, max_events: usize) -> Self {
        Self {
            log,
            member,
            max_events,
        }
    }

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
