//! The thread that polls the client: records into batches, workers' wishes into calls.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;

use super::assignment::{Stage, list};
use super::desk::{Command, lock};
use super::inquiry::{Ask, Finding, Inquiries, Job, Purpose};
use super::membership::Membership;
use super::native;
use crate::event::{Incoming, TopicPartition};
use crate::source::Assigned;

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

/// The longest that one call waits for the client's own threads.
const SEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Tries, 50 ms apart, before the client is made to begin a partition anew.
const SEEK_TRIES: u32 = 20;

/// Whether there is room for more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
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
    consumer: Arc<BaseConsumer<Membership>>,
    membership: Arc<Membership>,
    inquiries: Inquiries,
    findings: Receiver<Finding>,
    in_flight_bytes: usize,
    flow: Flow,
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
    ) -> Self {
        let membership = Arc::clone(consumer.context());
        Self {
            touched: vec![false; membership.mailboxes.len()],
            consumer,
            membership,
            inquiries,
            findings,
            in_flight_bytes,
            flow: Flow::Open,
            idle: true,
            committed_at: Instant::now(),
        }
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
            self.commit();
            self.read();
        }
        let everything = lock(&self.membership.assignment).partitions();
        let lost = self.consumer.assignment_lost();
        self.membership.let_go(&self.consumer, &everything, lost);
    }

    /// Takes what workers wish.
    fn obey(&mut self) {
        for command in self.membership.desk.take_commands() {
            let mut assignment = lock(&self.membership.assignment);
            match command {
                Command::Start {
                    at,
                    session,
                    offset,
                } => {
                    // A partition that its worker was not offered yet is another assignment's.
                    let owned = assignment.get(&at);
                    if let Some(owned) =
                        owned.filter(|o| !matches!(o.stage, Stage::New | Stage::Asked))
                    {
                        (owned.next, owned.begun) = (offset, Some(offset));
                        owned.stage = Stage::Starting {
                            session,
                            offset,
                            tries: 0,
                            due: Instant::now(),
                        };
                    }
                }
                Command::Halt { at } => {
                    let owned = assignment.get(&at);
                    if let Some(owned) =
                        owned.filter(|o| !matches!(o.stage, Stage::New | Stage::Asked))
                    {
                        owned.stage = Stage::Halted;
                    }
                }
                Command::Reassign { at, offset } => {
                    let Some(owned) = assignment.get(&at) else {
                        continue;
                    };
                    owned.stage = Stage::Asked;
                    let ask = Ask::from(&*owned);
                    drop(assignment);
                    self.membership.desk.forget(&[at]);
                    self.inquire(Job::Commit { ask, offset });
                }
            }
        }
    }

    fn inquire(&self, job: Job) {
        if self.inquiries.ask(job).is_err() {
            self.membership
                .health
                .fail("the thread that asks Kafka's brokers has ended: restart this process");
        }
    }

    /// Takes what the brokers answered.
    fn learn(&mut self) {
        while let Ok(finding) = self.findings.try_recv() {
            match finding {
                Finding::Committed {
                    at,
                    generation,
                    offset,
                } => {
                    let mut assignment = lock(&self.membership.assignment);
                    if let Some(owned) = assignment.same(&at, generation) {
                        owned.committed = Some(offset);
                    }
                }
                Finding::Surveyed {
                    purpose: Purpose::Offer,
                    partitions,
                } => self.offer(partitions, |stage| stage == Stage::Asked),
                Finding::Surveyed {
                    purpose: Purpose::Check,
                    partitions,
                } => self.check(partitions),
            }
        }
    }

    /// Hands partitions to their workers, if they are still what the question was about.
    fn offer(&self, partitions: Vec<(u64, Assigned)>, fits: impl Fn(Stage) -> bool) {
        let mut offers: Vec<Vec<Assigned>> = vec![Vec::new(); self.membership.mailboxes.len()];
        let mut assignment = lock(&self.membership.assignment);
        for (generation, assigned) in partitions {
            self.membership.health.saw_end(&assigned.at, assigned.high);
            let Some(owned) = assignment.same(&assigned.at, generation) else {
                continue;
            };
            if fits(owned.stage) {
                owned.stage = Stage::Offered;
                if let Some(offer) = offers.get_mut(owned.worker) {
                    offer.push(assigned);
                }
            }
        }
        drop(assignment);
        for (mailbox, offer) in self.membership.mailboxes.iter().zip(offers) {
            if !offer.is_empty() {
                mailbox.assign(offer);
            }
        }
    }

    /// After the client gave up on some partition: one that is read outside of its log goes to its
    /// worker, which has to decide; the others are read on.
    fn check(&self, partitions: Vec<(u64, Assigned)>) {
        let mut outside = Vec::new();
        let mut assignment = lock(&self.membership.assignment);
        for (generation, assigned) in partitions {
            let Some(owned) = assignment.same(&assigned.at, generation) else {
                continue;
            };
            let Stage::Reading { session } = owned.stage else {
                continue;
            };
            if (assigned.low..=assigned.high).contains(&owned.next) {
                owned.stage = Stage::Starting {
                    session,
                    offset: owned.next,
                    tries: 0,
                    due: Instant::now(),
                };
            } else {
                tracing::warn!(
                    partition = %assigned.at,
                    position = owned.next,
                    low = assigned.low,
                    high = assigned.high,
                    "read outside of the log"
                );
                owned.given_up = true;
                outside.push((generation, assigned));
            }
        }
        drop(assignment);
        self.offer(outside, |stage| matches!(stage, Stage::Reading { .. }));
    }

    /// Asks about partitions that are new.
    fn ask(&self) {
        let mut assignment = lock(&self.membership.assignment);
        let new = assignment.iter_mut().filter(|o| o.stage == Stage::New);
        let asks: Vec<_> = new
            .map(|owned| {
                owned.stage = Stage::Asked;
                Ask::from(&*owned)
            })
            .collect();
        drop(assignment);
        if !asks.is_empty() {
            self.inquire(Job::Survey {
                asks,
                purpose: Purpose::Offer,
            });
        }
    }

    /// Begins to read what is to be started: the client needs a moment to have a fetcher.
    fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = lock(&self.membership.assignment)
            .iter()
            .filter_map(|owned| match owned.stage {
                Stage::Starting {
                    offset, tries, due, ..
                } if due <= now => {
                    let again = owned.given_up || tries > 0 && tries % SEEK_TRIES == 0;
                    Some((owned.at.clone(), offset, again))
                }
                _ => None,
            })
            .collect();
        if due.is_empty() {
            return;
        }
        for (at, _, _) in due.iter().filter(|(_, _, again)| *again) {
            if let Err(error) = self.membership.refetch(&self.consumer, at) {
                let sentence = format!("{at} cannot be read anew: {error}");
                self.membership.health.warn("refetch", &sentence);
            }
        }
        self.settle_pauses();
        let seeks = list(due.iter().map(|(at, offset, _)| (at, Some(*offset))));
        let found = match self.consumer.seek_partitions(seeks, SEEK_TIMEOUT) {
            Ok(found) => native::entries(&found),
            Err(error) => {
                tracing::debug!("seek: {error}");
                Vec::new()
            }
        };
        let mut assignment = lock(&self.membership.assignment);
        for (at, _, _) in &due {
            let sought = found
                .iter()
                .any(|e| e.valid && e.partition == at.partition && *e.topic == *at.topic);
            let Some(owned) = assignment.get(at) else {
                continue;
            };
            if let Stage::Starting {
                session,
                tries,
                due,
                ..
            } = &mut owned.stage
            {
                if sought {
                    owned.stage = Stage::Reading { session: *session };
                } else {
                    *tries += 1;
                    *due = now + Duration::from_millis(50);
                }
            }
        }
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

    /// Tells the client to pause or resume where that differs from what it was told last.
    fn settle_pauses(&mut self) {
        let open = self.flow != Flow::Paused;
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for owned in lock(&self.membership.assignment).iter_mut() {
            let paused = !(open && owned.is_reading());
            if paused == owned.paused {
                continue;
            }
            owned.paused = paused;
            let list = if paused { &mut pause } else { &mut resume };
            list.add_partition(&owned.at.topic, owned.at.partition);
        }
        for (list, resumes) in [(pause, false), (resume, true)] {
            if list.count() == 0 {
                continue;
            }
            let result = if resumes {
                self.consumer.resume(&list)
            } else {
                self.consumer.pause(&list)
            };
            if let Err(error) = result {
                self.membership.health.warn("pause", &error.to_string());
            }
        }
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
        // What fails is counted; the next commit, or the last one, says it again.
        let _ = self
            .membership
            .commit(&self.consumer, &offsets, CommitMode::Async);
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
        let record = Incoming {
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
            key: message.key(),
            payload: message.payload(),
        };
        let bytes = message.key_len()
            + message.payload_len()
            + headers
                .iter()
                .map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len) + 8)
                .sum::<usize>();
        let headers = headers.iter().map(|(name, value)| (&**name, *value));
        mailbox.push(&owned.at, session, bytes, record, headers);
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

    /// The client gave up on a partition and does not say which: all are looked at.
    fn ask_all(&self) {
        let assignment = lock(&self.membership.assignment);
        let asks: Vec<_> = assignment
            .iter()
            .filter(|o| o.is_reading())
            .map(Ask::from)
            .collect();
        drop(assignment);
        if !asks.is_empty() {
            self.inquire(Job::Survey {
                asks,
                purpose: Purpose::Check,
            });
        }
    }
}
