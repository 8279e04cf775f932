//! What waits for one worker: notices, full batches, and the batch that still fills.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::desk::{Desk, lock};
use crate::error::Error;
use crate::event::{Batch, Incoming, TopicPartition};
use crate::source::{Assigned, Next};

/// When a batch is full, and how long its first record waits for others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_events: usize,
    pub(super) max_bytes: usize,
    pub(super) max_wait: Duration,
}

enum Notice {
    Assigned(Vec<Assigned>),
    Revoked(Vec<TopicPartition>),
}

#[derive(Default)]
struct Mail {
    notices: VecDeque<Notice>,
    ready: VecDeque<Batch>,
    filling: Batch,
    /// When the first record of `filling` came.
    filling_since: Option<Instant>,
    /// Nothing more lies in the client's queue: waiting would gain nothing.
    drained: bool,
    /// Bytes of the batch that the worker has.
    in_work: usize,
    /// Partitions that the worker knows to be its own.
    told: HashSet<TopicPartition>,
    failure: Option<String>,
    closed: bool,
    /// The worker's end was dropped.
    abandoned: bool,
}

impl Mail {
    fn seal(&mut self) {
        if !self.filling.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.filling));
        }
        self.filling_since = None;
    }

    fn is_interrupted(&self) -> bool {
        self.closed
            || self.failure.is_some()
            || self.notices.iter().any(|n| matches!(n, Notice::Revoked(_)))
    }

    fn take_notice(&mut self) -> Option<Next> {
        Some(match self.notices.pop_front()? {
            Notice::Assigned(partitions) => {
                self.told.extend(partitions.iter().map(|a| a.at.clone()));
                Next::Assigned(partitions)
            }
            Notice::Revoked(partitions) => Next::Revoked(partitions),
        })
    }

    /// The next batch, or how long to wait for the one that fills.
    fn take_batch(&mut self, max_wait: Duration) -> Result<Batch, Option<Duration>> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(batch);
        }
        let Some(since) = self.filling_since else {
            return Err(None);
        };
        let left = max_wait.saturating_sub(since.elapsed());
        if self.drained || left.is_zero() {
            self.filling_since = None;
            return Ok(std::mem::take(&mut self.filling));
        }
        Err(Some(left))
    }
}

/// One worker's mail. The thread that reads puts in, the worker takes out.
pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
    interrupt: Notify,
    limits: Limits,
    desk: Arc<Desk>,
}

impl Mailbox {
    pub(super) fn new(limits: Limits, desk: Arc<Desk>) -> Self {
        Self {
            mail: Mutex::default(),
            arrived: Notify::new(),
            interrupt: Notify::new(),
            limits,
            desk,
        }
    }

    /// Appends a record to the batch that fills; `bytes` is its size.
    pub(super) fn push<'a>(
        &self,
        at: &TopicPartition,
        session: u64,
        bytes: usize,
        record: Incoming<'a>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) {
        let mut mail = lock(&self.mail);
        if mail.abandoned {
            return;
        }
        let waiting = mail.ready.len();
        if mail.filling.bytes().saturating_add(bytes) > self.limits.max_bytes {
            mail.seal();
        }
        let before = mail.filling.bytes();
        let slot = mail.filling.slice(at, session);
        mail.filling.push(slot, record, headers);
        self.desk.hold(mail.filling.bytes() - before);
        mail.filling_since.get_or_insert_with(Instant::now);
        mail.drained = false;
        if mail.filling.len() >= self.limits.max_events
            || mail.filling.bytes() >= self.limits.max_bytes
        {
            mail.seal();
        }
        if mail.ready.len() > waiting {
            drop(mail);
            self.arrived.notify_one();
        }
    }

    /// Moves a position past what the log holds nothing of.
    pub(super) fn read_to(&self, at: &TopicPartition, session: u64, next_offset: i64) {
        let mut mail = lock(&self.mail);
        if !mail.abandoned {
            let slot = mail.filling.slice(at, session);
            mail.filling.read_to(slot, next_offset);
            mail.filling_since.get_or_insert_with(Instant::now);
        }
    }

    /// Says that nothing more is to come for now: an idle worker gets what there is.
    pub(super) fn drained(&self) {
        let mut mail = lock(&self.mail);
        mail.drained = true;
        if mail.filling_since.is_some() {
            drop(mail);
            self.arrived.notify_one();
        }
    }

    pub(super) fn assign(&self, partitions: Vec<Assigned>) {
        lock(&self.mail)
            .notices
            .push_back(Notice::Assigned(partitions));
        self.arrived.notify_one();
    }

    /// Takes partitions from the worker. Those that it knows of must be released by it; they are
    /// expected before it can learn of it when `expect` is set.
    pub(super) fn revoke(&self, partitions: &[TopicPartition], expect: bool) {
        let mut mail = lock(&self.mail);
        for notice in &mut mail.notices {
            if let Notice::Assigned(assigned) = notice {
                assigned.retain(|a| !partitions.contains(&a.at));
            }
        }
        mail.notices
            .retain(|n| !matches!(n, Notice::Assigned(a) if a.is_empty()));
        self.drop_batches_of(&mut mail, partitions);
        let told: Vec<_> = partitions
            .iter()
            .filter_map(|at| mail.told.take(at))
            .collect();
        if told.is_empty() || mail.abandoned {
            return;
        }
        if expect {
            self.desk.expect_release(told.iter().cloned());
        }
        mail.notices.push_back(Notice::Revoked(told));
        drop(mail);
        self.interrupt();
    }

    /// Batches that hold nothing else are dropped; in the others the slices are stale.
    fn drop_batches_of(&self, mail: &mut Mail, partitions: &[TopicPartition]) {
        mail.seal();
        let held = |ready: &VecDeque<Batch>| ready.iter().map(Batch::bytes).sum::<usize>();
        let before = held(&mail.ready);
        mail.ready
            .retain(|batch| batch.slices().iter().any(|s| !partitions.contains(&s.at)));
        self.desk.free(before - held(&mail.ready));
    }

    /// The worker meets this error from now on.
    pub(super) fn fail(&self, message: &str) {
        lock(&self.mail)
            .failure
            .get_or_insert_with(|| message.to_owned());
        self.interrupt();
    }

    pub(super) fn close(&self) {
        lock(&self.mail).closed = true;
        self.interrupt();
    }

    fn interrupt(&self) {
        self.arrived.notify_one();
        self.interrupt.notify_one();
    }

    /// Waits for mail. The batch handed over before counts as finished.
    pub(super) async fn next(&self) -> Result<Next, Error> {
        self.finish();
        loop {
            let wait = match self.try_next() {
                Ok(next) => return next,
                Err(wait) => wait,
            };
            match wait {
                None => self.arrived.notified().await,
                Some(wait) => {
                    // Either a fuller batch or the end of patience.
                    let _ = tokio::time::timeout(wait, self.arrived.notified()).await;
                }
            }
        }
    }

    fn try_next(&self) -> Result<Result<Next, Error>, Option<Duration>> {
        let mut mail = lock(&self.mail);
        if let Some(message) = &mail.failure {
            return Ok(Err(Error::fatal(message.clone())));
        }
        if let Some(notice) = mail.take_notice() {
            return Ok(Ok(notice));
        }
        if mail.closed {
            return Ok(Ok(Next::Closed));
        }
        let batch = mail.take_batch(self.limits.max_wait)?;
        mail.in_work = batch.bytes();
        Ok(Ok(Next::Batch(batch)))
    }

    fn finish(&self) {
        let bytes = std::mem::take(&mut lock(&self.mail).in_work);
        self.desk.free(bytes);
    }

    pub(super) async fn interrupted(&self) {
        while !lock(&self.mail).is_interrupted() {
            self.interrupt.notified().await;
        }
    }

    /// The worker is gone: nobody waits for it any more.
    pub(super) fn abandon(&self) {
        self.finish();
        let mut mail = lock(&self.mail);
        mail.abandoned = true;
        mail.seal();
        let bytes = mail.ready.drain(..).map(|batch| batch.bytes()).sum();
        let mut told: Vec<_> = mail.told.drain().collect();
        for notice in mail.notices.drain(..) {
            if let Notice::Revoked(partitions) = notice {
                told.extend(partitions);
            }
        }
        drop(mail);
        self.desk.free(bytes);
        self.desk.release(&told);
        self.desk.dismiss();
    }
}
