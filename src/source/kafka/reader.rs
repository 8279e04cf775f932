//! The thread that polls the client and copies records into batches.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::assignment::{Stage, list};
use super::desk::lock;
use super::inquiry::{Finding, Inquiries};
use super::membership::Membership;
use super::native::{self, Commits};
use crate::event::{Incoming, TopicPartition};

/// How long a poll waits: the longest that a worker's wish waits for an idle thread.
const POLL_WAIT: Duration = Duration::from_millis(20);

/// Records between two looks at what workers wish.
const BURST: usize = 512;

/// How long the client is not polled when there is no room, before partitions are paused: pausing
/// throws away what the client has fetched already.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often acknowledged offsets are committed, and how soon when there is nothing else to do.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
const COMMIT_IDLE: Duration = Duration::from_millis(200);

/// Whether there is room for more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Open,
    /// Not polling.
    Full {
        since: Instant,
    },
    /// Polling for events only.
    Paused,
}

/// Owns the client's polling.
pub(super) struct Reader {
    /// Dropped before the client.
    commits: Commits,
    pub(super) consumer: Arc<BaseConsumer<Membership>>,
    pub(super) membership: Arc<Membership>,
    pub(super) inquiries: Inquiries,
    pub(super) findings: Receiver<Finding>,
    in_flight_bytes: usize,
    pub(super) flow: Flow,
    /// The last poll found nothing.
    idle: bool,
    /// Workers that got something since they were last told that there is no more.
    touched: Vec<bool>,
    committed_at: Instant,
}

impl Reader {
    pub(super) fn new(
        consumer: Arc<BaseConsumer<Membership>>,
        inquiries: Inquiries,
        findings: Receiver<Finding>,
        in_flight_bytes: usize,
    ) -> KafkaResult<Self> {
        let membership = Arc::clone(consumer.context());
        Ok(Self {
            commits: Commits::new(consumer.client())?,
            touched: vec![false; membership.mailboxes.len()],
            consumer,
            membership,
            inquiries,
            findings,
            in_flight_bytes,
            flow: Flow::Open,
            idle: true,
            committed_at: Instant::now(),
        })
    }

    /// Reads until the source is closed, then lets everything go.
    pub(super) fn run(&mut self) {
        while !self.membership.desk.closing() {
            self.obey();
            self.learn();
            self.ask();
            self.start_due();
            self.regulate();
            self.settle_pauses();
            self.hear();
            self.commit();
            self.read();
        }
        let everything = lock(&self.membership.assignment).partitions();
        let lost = self.consumer.assignment_lost();
        self.membership.let_go(&self.consumer, &everything, lost);
    }

    /// Closes the tap when too much is in flight, and opens it again at half.
    fn regulate(&mut self) {
        let held = self.membership.desk.held();
        let limit = self.in_flight_bytes;
        self.flow = match self.flow {
            Flow::Open | Flow::Full { .. } if held < limit => Flow::Open,
            Flow::Open => {
                self.tell_drained();
                Flow::Full {
                    since: Instant::now(),
                }
            }
            Flow::Full { since } if since.elapsed() < PATIENCE => Flow::Full { since },
            Flow::Full { .. } => Flow::Paused,
            Flow::Paused if held <= limit / 2 => Flow::Open,
            Flow::Paused => Flow::Paused,
        };
    }

    /// Commits what workers acknowledged, without waiting for the answer.
    fn commit(&mut self) {
        let since = self.committed_at.elapsed();
        if since < COMMIT_IDLE || since < COMMIT_EVERY && !self.idle {
            return;
        }
        self.committed_at = Instant::now();
        let mut offsets = Vec::new();
        let mut assignment = lock(&self.membership.assignment);
        for (at, offset) in self.membership.desk.acknowledged() {
            let Some(owned) = assignment.get(&at) else {
                continue;
            };
            if owned.committed.is_none_or(|committed| committed < offset) {
                owned.committed = Some(offset);
                offsets.push((at, offset));
            }
        }
        drop(assignment);
        if offsets.is_empty() {
            return;
        }
        let client = self.consumer.client();
        let sent = self
            .membership
            .in_our_name(&offsets)
            .and_then(|list| self.commits.send(client, &list));
        if let Err(error) = sent {
            self.membership.health.commit_failed(&error);
        }
    }

    /// Takes answers to commits. What was not taken, as happens in a rebalance, is said again.
    fn hear(&mut self) {
        while let Some(answer) = self.commits.answer(Duration::ZERO) {
            let Err(error) = &answer.result else {
                continue;
            };
            self.membership.health.commit_failed(error);
            let mut assignment = lock(&self.membership.assignment);
            for entry in &answer.offsets {
                let owned = assignment.find(&entry.topic, entry.partition);
                if let Some(owned) = owned.filter(|o| o.committed == Some(entry.offset)) {
                    owned.committed = None;
                }
            }
        }
    }

    /// Polls: one burst of records, or one wait for something to happen.
    fn read(&mut self) {
        if let Flow::Full { since } = self.flow {
            let slice = (Instant::now() + POLL_WAIT).min(since + PATIENCE);
            return self
                .membership
                .desk
                .wait_for_room(self.in_flight_bytes, slice);
        }
        let consumer = Arc::clone(&self.consumer);
        let mut nothing = 0;
        for _ in 0..BURST {
            let wait = if self.idle { POLL_WAIT } else { Duration::ZERO };
            match consumer.poll(wait) {
                Some(Ok(message)) => {
                    (self.idle, nothing) = (false, 0);
                    self.take(&message);
                    if self.membership.desk.held() >= self.in_flight_bytes {
                        return;
                    }
                }
                Some(Err(error)) => {
                    (self.idle, nothing) = (false, 0);
                    self.meet(&error);
                }
                // Also after an event that was served, though records may wait behind it.
                None => {
                    nothing += 1;
                    if self.idle || nothing == 2 {
                        self.idle = true;
                        self.tell_drained();
                        return;
                    }
                }
            }
            if self.membership.desk.closing() {
                return;
            }
        }
    }

    fn tell_drained(&mut self) {
        for (mailbox, touched) in self.membership.mailboxes.iter().zip(&mut self.touched) {
            if std::mem::take(touched) {
                mailbox.drained();
            }
        }
    }

    /// Copies a record into its worker's batch.
    fn take(&mut self, message: &BorrowedMessage<'_>) {
        let mut assignment = lock(&self.membership.assignment);
        let Some(owned) = assignment.find(message.topic(), message.partition()) else {
            return;
        };
        // What is read before a partition is started, or again, belongs to no session.
        let Stage::Reading { session } = owned.stage else {
            return;
        };
        if message.offset() < owned.next {
            return;
        }
        owned.next = message.offset() + 1;
        let Some(mailbox) = self.membership.mailboxes.get(owned.worker) else {
            return;
        };
        if let Some(touched) = self.touched.get_mut(owned.worker) {
            *touched = true;
        }
        let headers = native::headers(message);
        let bytes = message.key_len()
            + message.payload_len()
            + headers
                .iter()
                .map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len) + 8)
                .sum::<usize>();
        let headers = headers.iter().map(|(name, value)| (&**name, *value));
        mailbox.push(&owned.at, session, bytes, incoming(message), headers);
    }

    /// Meets what the client reports in place of a record. Most of it came to
    /// [`super::health::Health::error`] already.
    fn meet(&mut self, error: &KafkaError) {
        match error {
            KafkaError::PartitionEOF(partition) => self.read_to_end(*partition),
            KafkaError::MessageConsumptionFatal(_) => {
                let cause = self.consumer.client().fatal_error();
                let cause = cause.map_or_else(|| error.to_string(), |(_, reason)| reason);
                self.membership.health.fail(&format!(
                    "the Kafka client cannot go on: {cause}: restart this process"
                ));
            }
            _ if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) => {
                self.ask_all();
            }
            _ => {}
        }
    }

    /// A partition of this number was read to its end, the client does not say of which topic:
    /// moves positions past what there is nothing to deliver of.
    fn read_to_end(&mut self, partition: i32) {
        self.membership.health.connected(true);
        let reading: Vec<TopicPartition> = lock(&self.membership.assignment)
            .iter()
            .filter(|o| o.is_reading() && o.at.partition == partition)
            .map(|o| o.at.clone())
            .collect();
        let positions = list(reading.iter().map(|at| (at, None)));
        native::positions(self.consumer.client(), &positions);
        let mut assignment = lock(&self.membership.assignment);
        for entry in native::entries(&positions) {
            let Some(owned) = assignment.find(&entry.topic, entry.partition) else {
                continue;
            };
            let Stage::Reading { session } = owned.stage else {
                continue;
            };
            if !entry.valid || entry.offset <= owned.next {
                continue;
            }
            owned.next = entry.offset;
            if let Some(mailbox) = self.membership.mailboxes.get(owned.worker) {
                mailbox.read_to(&owned.at, session, entry.offset);
            }
            if let Some(touched) = self.touched.get_mut(owned.worker) {
                *touched = true;
            }
        }
    }
}

/// What a batch copies of a record, but for its headers.
pub(super) fn incoming<'a>(message: &'a BorrowedMessage<'_>) -> Incoming<'a> {
    Incoming {
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis(),
        key: message.key(),
        payload: message.payload(),
    }
}
