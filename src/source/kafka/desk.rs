//! What workers tell the thread that reads, and what the two sides wait for from each other.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::event::TopicPartition;

/// Locks; a panic elsewhere leaves nothing half done that matters here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a worker asks for.
#[derive(Debug)]
pub(super) enum Command {
    Start {
        at: TopicPartition,
        session: u64,
        offset: i64,
    },
    Halt {
        at: TopicPartition,
    },
    Reassign {
        at: TopicPartition,
        offset: i64,
    },
}

impl Command {
    fn at(&self) -> &TopicPartition {
        match self {
            Self::Start { at, .. } | Self::Halt { at } | Self::Reassign { at, .. } => at,
        }
    }
}

#[derive(Default)]
struct Papers {
    commands: VecDeque<Command>,
    /// Partitions that workers were told to let go of and have not yet.
    awaited: BTreeSet<TopicPartition>,
    acknowledged: HashMap<TopicPartition, i64>,
}

/// Shared by the thread and all workers; every lock on it is short.
#[derive(Default)]
pub(super) struct Desk {
    papers: Mutex<Papers>,
    changed: Condvar,
    /// Bytes read and not yet finished.
    held: AtomicUsize,
    commanded: AtomicBool,
    /// Workers whose end still exists.
    workers: AtomicUsize,
    closing: AtomicBool,
}

impl Desk {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers: AtomicUsize::new(workers),
            ..Self::default()
        }
    }

    /// A worker's end was dropped. Without any left there is nobody to read for.
    pub(super) fn dismiss(&self) {
        if self.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    pub(super) fn command(&self, command: Command) {
        lock(&self.papers).commands.push_back(command);
        self.commanded.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub(super) fn take_commands(&self) -> VecDeque<Command> {
        if !self.commanded.swap(false, Ordering::Acquire) {
            return VecDeque::new();
        }
        std::mem::take(&mut lock(&self.papers).commands)
    }

    /// Offsets only rise; [`Desk::forget`] begins anew.
    pub(super) fn acknowledge(&self, at: &TopicPartition, next_offset: i64) {
        let mut papers = lock(&self.papers);
        match papers.acknowledged.get_mut(at) {
            Some(known) => *known = next_offset.max(*known),
            None => {
                papers.acknowledged.insert(at.clone(), next_offset);
            }
        }
    }

    pub(super) fn acknowledged(&self) -> HashMap<TopicPartition, i64> {
        lock(&self.papers).acknowledged.clone()
    }

    /// Forgets what workers said of partitions that begin or end; returns what was acknowledged.
    pub(super) fn forget(&self, partitions: &[TopicPartition]) -> Vec<(TopicPartition, i64)> {
        let mut papers = lock(&self.papers);
        papers.commands.retain(|c| !partitions.contains(c.at()));
        partitions
            .iter()
            .filter_map(|at| papers.acknowledged.remove_entry(at))
            .collect()
    }

    /// Must precede telling the workers, or an answer could come before it is awaited.
    pub(super) fn expect_release(&self, partitions: impl IntoIterator<Item = TopicPartition>) {
        lock(&self.papers).awaited.extend(partitions);
    }

    pub(super) fn release<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) {
        let mut papers = lock(&self.papers);
        for at in partitions {
            papers.awaited.remove(at);
        }
        drop(papers);
        self.changed.notify_all();
    }

    /// Waits until everything expected is released; returns what was not in time.
    pub(super) fn await_release(&self, timeout: Duration) -> Vec<TopicPartition> {
        let papers = lock(&self.papers);
        let (mut papers, _) = self
            .changed
            .wait_timeout_while(papers, timeout, |papers| !papers.awaited.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut papers.awaited).into_iter().collect()
    }

    pub(super) fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn free(&self, bytes: usize) {
        if bytes > 0 {
            self.held.fetch_sub(bytes, Ordering::AcqRel);
            // Taken and given back, so that a thread about to wait does not miss the change.
            drop(lock(&self.papers));
            self.changed.notify_all();
        }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Waits until fewer bytes are held, a command came, or the deadline.
    pub(super) fn wait_for_room(&self, bytes: usize, deadline: Instant) {
        let papers = lock(&self.papers);
        let timeout = deadline.saturating_duration_since(Instant::now());
        drop(
            self.changed
                .wait_timeout_while(papers, timeout, |papers| {
                    self.held() >= bytes && papers.commands.is_empty() && !self.closing()
                })
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        drop(lock(&self.papers));
        self.changed.notify_all();
    }

    pub(super) fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    #[test]
    fn a_release_ends_the_wait_and_the_late_ones_are_named() {
        let desk = Arc::new(Desk::default());
        desk.expect_release([at(0), at(1)]);
        let worker = Arc::clone(&desk);
        let released = std::thread::spawn(move || worker.release(&[at(0)]));
        assert_eq!(desk.await_release(Duration::from_millis(200)), [at(1)]);
        released.join().unwrap();
        assert!(
            desk.await_release(Duration::ZERO).is_empty(),
            "waits only once"
        );
    }

    #[test]
    fn acknowledged_offsets_only_rise_until_they_are_forgotten() {
        let desk = Desk::default();
        for offset in [5, 9, 7] {
            desk.acknowledge(&at(0), offset);
        }
        assert_eq!(desk.forget(&[at(0), at(1)]), [(at(0), 9)]);
        desk.acknowledge(&at(0), 3);
        assert_eq!(desk.acknowledged().get(&at(0)), Some(&3));
    }

    #[test]
    fn forgotten_partitions_lose_their_commands_too() {
        let desk = Desk::default();
        desk.command(Command::Halt { at: at(0) });
        desk.command(Command::Halt { at: at(1) });
        desk.forget(&[at(0)]);
        let left = desk.take_commands();
        assert_eq!(left.iter().map(Command::at).collect::<Vec<_>>(), [&at(1)]);
    }
}
