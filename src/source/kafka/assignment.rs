//! The partitions that the group gave to this member, and what each is about to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rdkafka::{Offset, TopicPartitionList};

use crate::event::TopicPartition;

/// What an assigned partition is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Paused, until the log is asked about it.
    New,
    /// Paused, while the log is asked about it.
    Asked,
    /// Paused, its worker was told.
    Offered,
    /// To be read from an offset, as soon as the client has a fetcher for it.
    Starting {
        session: u64,
        offset: i64,
        tries: u32,
        due: Instant,
    },
    /// Its records are read.
    Reading { session: u64 },
    /// Paused by its worker.
    Halted,
}

/// A partition that this member has.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) at: TopicPartition,
    pub(super) worker: usize,
    /// Tells this assignment of the partition from an earlier one.
    pub(super) generation: u64,
    /// False once it was revoked: nobody needs answers about it any more.
    pub(super) alive: Arc<AtomicBool>,
    pub(super) stage: Stage,
    /// Whether the client was last told to pause it.
    pub(super) paused: bool,
    /// The next offset to be delivered, once it was started.
    pub(super) next: i64,
    /// Where it was last started.
    pub(super) begun: Option<i64>,
    /// What was last committed in this assignment.
    pub(super) committed: Option<i64>,
    /// The client gave up fetching it: only a new assignment in the client starts it again.
    pub(super) given_up: bool,
}

impl Owned {
    /// Whether the client should fetch it.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Reading { .. })
    }
}

/// All partitions of this member.
#[derive(Debug)]
pub(super) struct Assignment {
    owned: Vec<Owned>,
    workers: usize,
    generation: u64,
    /// Where the last look-up by name found its partition: records come in runs.
    hint: usize,
}

impl Assignment {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            owned: Vec::new(),
            workers,
            generation: 0,
            hint: 0,
        }
    }

    /// Adds partitions, each to the worker that has the fewest. They keep it while assigned.
    pub(super) fn add(&mut self, partitions: Vec<TopicPartition>) {
        for at in partitions {
            if self.get(&at).is_some() {
                continue;
            }
            self.generation += 1;
            let worker = self.least_loaded();
            self.owned.push(Owned {
                at,
                worker,
                generation: self.generation,
                alive: Arc::new(AtomicBool::new(true)),
                stage: Stage::New,
                paused: true,
                next: 0,
                begun: None,
                committed: None,
                given_up: false,
            });
        }
    }

    fn least_loaded(&self) -> usize {
        let mut loads = vec![0; self.workers];
        for owned in &self.owned {
            if let Some(load) = loads.get_mut(owned.worker) {
                *load += 1;
            }
        }
        let least = loads.iter().enumerate().min_by_key(|(_, load)| **load);
        least.map_or(0, |(worker, _)| worker)
    }

    /// Takes partitions out; what was asked about them is void.
    pub(super) fn remove(&mut self, partitions: &[TopicPartition]) -> Vec<Owned> {
        let (gone, kept) = std::mem::take(&mut self.owned)
            .into_iter()
            .partition(|owned| partitions.contains(&owned.at));
        self.owned = kept;
        for owned in &gone {
            let owned: &Owned = owned;
            owned.alive.store(false, Ordering::Release);
        }
        gone
    }

    pub(super) fn get(&mut self, at: &TopicPartition) -> Option<&mut Owned> {
        self.find(&at.topic, at.partition)
    }

    /// The partition, if its worker was offered it: otherwise the worker speaks of an earlier
    /// assignment.
    pub(super) fn offered(&mut self, at: &TopicPartition) -> Option<&mut Owned> {
        self.get(at)
            .filter(|owned| !matches!(owned.stage, Stage::New | Stage::Asked))
    }

    /// The partition, if it is still in the assignment that a question was asked for.
    pub(super) fn same(&mut self, at: &TopicPartition, generation: u64) -> Option<&mut Owned> {
        self.get(at).filter(|owned| owned.generation == generation)
    }

    pub(super) fn find(&mut self, topic: &str, partition: i32) -> Option<&mut Owned> {
        let is = |o: &Owned| o.at.partition == partition && *o.at.topic == *topic;
        if !self.owned.get(self.hint).is_some_and(is) {
            self.hint = self.owned.iter().position(is)?;
        }
        self.owned.get_mut(self.hint)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Owned> {
        self.owned.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Owned> {
        self.owned.iter_mut()
    }

    pub(super) fn partitions(&self) -> Vec<TopicPartition> {
        self.owned.iter().map(|owned| owned.at.clone()).collect()
    }
}

/// The client's form of partitions with absolute offsets; one without an offset is only named.
pub(super) fn list<'a>(
    partitions: impl IntoIterator<Item = (&'a TopicPartition, Option<i64>)>,
) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (at, offset) in partitions {
        let mut element = list.add_partition(&at.topic, at.partition);
        if let Some(offset) = offset {
            // Refuses only a negative offset, which no caller has; the entry stays invalid then.
            let _ = element.set_offset(Offset::Offset(offset));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    #[test]
    fn partitions_spread_evenly_and_stay_with_their_worker() {
        let mut assignment = Assignment::new(2);
        assignment.add((0..4).map(at).collect());
        let workers = |a: &Assignment| {
            a.iter()
                .map(|o| (o.at.partition, o.worker))
                .collect::<Vec<_>>()
        };
        assert_eq!(workers(&assignment), [(0, 0), (1, 1), (2, 0), (3, 1)]);
        assignment.remove(&[at(0), at(2)]);
        assignment.add(vec![at(3), at(4), at(5)]);
        assert_eq!(workers(&assignment), [(1, 1), (3, 1), (4, 0), (5, 0)]);
    }

    #[test]
    fn answers_for_an_earlier_assignment_are_void() {
        let mut assignment = Assignment::new(1);
        assignment.add(vec![at(0)]);
        let (generation, alive) = assignment
            .get(&at(0))
            .map(|o| (o.generation, Arc::clone(&o.alive)))
            .unwrap();
        assignment.remove(&[at(0)]);
        assert!(!alive.load(Ordering::Acquire));
        assignment.add(vec![at(0)]);
        assert!(assignment.same(&at(0), generation).is_none());
        assert!(assignment.same(&at(0), generation + 1).is_some());
    }
}
