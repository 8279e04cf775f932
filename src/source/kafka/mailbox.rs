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
            let next = Batch::as_large_as(&self.filling);
            self.ready
                .push_back(std::mem::replace(&mut self.filling, next));
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_events: 3,
        max_bytes: 1_000,
        max_wait: Duration::from_millis(100),
    };

    fn mailbox() -> (Arc<Mailbox>, Arc<Desk>) {
        let desk = Arc::new(Desk::new(2));
        (Arc::new(Mailbox::new(LIMITS, Arc::clone(&desk))), desk)
    }

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("t", partition)
    }

    fn push(mailbox: &Mailbox, partition: i32, offset: i64, size: usize) {
        let payload = vec![b'x'; size];
        let record = Incoming {
            offset,
            payload: Some(&payload),
            ..Incoming::default()
        };
        mailbox.push(&at(partition), 1, size, record, std::iter::empty());
    }

    fn offer(mailbox: &Mailbox, partitions: &[i32]) {
        let offer = |partition: &i32| Assigned {
            at: at(*partition),
            topic_id: None,
            cluster_id: None,
            committed: None,
            low: 0,
            high: 0,
        };
        mailbox.assign(partitions.iter().map(offer).collect());
    }

    /// What waits, as words.
    async fn next(mailbox: &Mailbox) -> String {
        let waiting = tokio::time::timeout(Duration::from_secs(10), mailbox.next());
        match waiting.await {
            Err(_) => "nothing".into(),
            Ok(Err(error)) => format!("error {error}"),
            Ok(Ok(Next::Assigned(a))) => {
                format!(
                    "assigned {:?}",
                    a.iter().map(|a| a.at.partition).collect::<Vec<_>>()
                )
            }
            Ok(Ok(Next::Revoked(r))) => {
                format!(
                    "revoked {:?}",
                    r.iter().map(|r| r.partition).collect::<Vec<_>>()
                )
            }
            Ok(Ok(Next::Batch(b))) => {
                format!(
                    "batch {:?}",
                    b.events().map(|e| e.offset()).collect::<Vec<_>>()
                )
            }
            Ok(Ok(Next::Closed)) => "closed".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_handed_over_when_full_or_when_there_is_no_more() {
        let (mailbox, _) = mailbox();
        for offset in 0..4 {
            push(&mailbox, 0, offset, 10);
        }
        mailbox.drained();
        assert_eq!(next(&mailbox).await, "batch [0, 1, 2]");
        assert_eq!(next(&mailbox).await, "batch [3]");
        assert_eq!(next(&mailbox).await, "nothing");
    }

    #[tokio::test]
    async fn a_batch_that_fills_is_handed_over_after_the_longest_wait() {
        let (mailbox, _) = mailbox();
        push(&mailbox, 0, 0, 10);
        let begun = Instant::now();
        assert_eq!(next(&mailbox).await, "batch [0]");
        assert!(begun.elapsed() >= LIMITS.max_wait);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_above_the_limit_is_a_batch_alone() {
        let (mailbox, _) = mailbox();
        for (offset, size) in [(0, 10), (1, 2_000), (2, 10)] {
            push(&mailbox, 0, offset, size);
        }
        mailbox.drained();
        for batch in ["batch [0]", "batch [1]", "batch [2]"] {
            assert_eq!(next(&mailbox).await, batch);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_in_flight_until_the_worker_comes_for_more() {
        let (mailbox, desk) = mailbox();
        push(&mailbox, 0, 0, 10);
        mailbox.drained();
        assert_eq!(next(&mailbox).await, "batch [0]");
        assert!(desk.held() > 0);
        assert_eq!(next(&mailbox).await, "nothing");
        assert_eq!(desk.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_revocation_comes_before_batches_and_takes_their_records_along() {
        let (mailbox, desk) = mailbox();
        offer(&mailbox, &[0, 1]);
        assert_eq!(next(&mailbox).await, "assigned [0, 1]");
        for offset in 0..4 {
            push(&mailbox, 0, offset, 10);
        }
        let held = desk.held();
        mailbox.revoke(&[at(0)], true);
        assert!(held > 0);
        assert_eq!(desk.held(), 0);
        push(&mailbox, 1, 7, 10);
        mailbox.drained();
        assert_eq!(next(&mailbox).await, "revoked [0]");
        assert_eq!(next(&mailbox).await, "batch [7]");
        assert_eq!(desk.await_release(Duration::ZERO), [at(0)], "it is awaited");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_never_hears_of_partitions_that_went_before_it_looked() {
        let (mailbox, desk) = mailbox();
        offer(&mailbox, &[0, 1]);
        offer(&mailbox, &[2]);
        mailbox.revoke(&[at(1), at(2)], true);
        assert!(desk.await_release(Duration::ZERO).is_empty());
        assert_eq!(next(&mailbox).await, "assigned [0]");
        assert_eq!(next(&mailbox).await, "nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_worker_that_is_gone() {
        let (mailbox, desk) = mailbox();
        offer(&mailbox, &[0]);
        assert_eq!(next(&mailbox).await, "assigned [0]");
        push(&mailbox, 0, 0, 10);
        mailbox.revoke(&[at(0)], true);
        mailbox.abandon();
        assert!(desk.await_release(Duration::ZERO).is_empty());
        push(&mailbox, 0, 1, 10);
        assert_eq!(desk.held(), 0);
        assert!(!desk.closing(), "another worker is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_met_again_and_again() {
        let (mailbox, _) = mailbox();
        mailbox.fail("first");
        mailbox.fail("second");
        for _ in 0..2 {
            assert_eq!(next(&mailbox).await, "error first");
        }
    }
}
