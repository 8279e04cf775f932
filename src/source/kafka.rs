//! Kafka as a source: one thread polls one client of a consumer group and spreads its partitions
//! over workers.
//!
//! Kafka never decides where reading starts. A partition is assigned paused; its worker claims it
//! and says where. Offsets are committed behind their effects, as a hint for people and their
//! tools.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::event::TopicPartition;

mod assignment;
mod desk;
mod health;
mod inquiry;
mod log;
mod mailbox;
mod membership;
mod native;
mod reader;
mod scan;
mod settings;
mod starts;
mod steering;
mod worker;

use desk::{Desk, lock};
use health::Health;
use inquiry::{Inquirer, Inquiries, Job};
use mailbox::{Limits, Mailbox};
use membership::Membership;
use reader::Reader;
use settings::refused;
use starts::Starts;

pub use log::{KafkaLog, LogView, TopicLog};
pub use scan::{KafkaScan, ScanRange};
pub use settings::{KafkaSettings, Start};
pub use worker::KafkaWorkerSource;

/// The longest that leaving the group may take; the client's own end can hang.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads topics of Kafka as a member of a consumer group.
pub struct KafkaSource;

impl KafkaSource {
    /// Joins the group and gives each of `workers` workers its end, at least one. The group is
    /// left by [`KafkaHandle::close`], or when every end was dropped.
    ///
    /// Brokers that cannot be reached are no error: the client goes on trying, and
    /// [`KafkaHandle::state`] shows it. Fatal where the settings cannot be used.
    pub fn open(
        settings: KafkaSettings,
        workers: usize,
    ) -> Result<(Vec<KafkaWorkerSource>, KafkaHandle), Error> {
        let config = settings.client_config()?;
        let limits = Limits {
            max_events: settings.max_events.max(1),
            max_bytes: settings.max_bytes,
            max_wait: settings.max_wait,
        };
        let workers = workers.max(1);
        let desk = Arc::new(Desk::new(workers));
        let mailbox = || Arc::new(Mailbox::new(limits, Arc::clone(&desk)));
        let mailboxes: Vec<_> = (0..workers).map(|_| mailbox()).collect();
        let health = Arc::new(Health::new(mailboxes.clone(), settings.reads_uncommitted()));
        let membership = Membership::new(
            mailboxes.clone(),
            Arc::clone(&desk),
            Arc::clone(&health),
            settings.drain_timeout,
            &settings.client_id,
        );
        let consumer = BaseConsumer::from_config_and_context(&config, membership)
            .map_err(|error| refused(&error))?;
        let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|error| refused(&error))?;

        let membership = Arc::clone(consumer.context());
        let (jobs, asked) = mpsc::channel();
        let inquiries = Inquiries(jobs);
        let ends = mailboxes
            .iter()
            .map(|mailbox| {
                KafkaWorkerSource::new(Arc::clone(mailbox), Arc::clone(&desk), inquiries.clone())
            })
            .collect();
        let (over, closed) = watch::channel(false);
        let handle = KafkaHandle {
            membership,
            inquiries: inquiries.clone(),
            closed,
        };
        spawn(Arc::new(consumer), inquiries, asked, &settings, over)?;
        Ok((ends, handle))
    }
}

fn spawn(
    consumer: Arc<BaseConsumer<Membership>>,
    inquiries: Inquiries,
    jobs: mpsc::Receiver<Job>,
    settings: &KafkaSettings,
    over: watch::Sender<bool>,
) -> Result<(), Error> {
    let failed = |error| Error::fatal(format!("no thread for the Kafka client: {error}"));
    let (found, findings) = mpsc::channel();
    let inquirer = Inquirer {
        consumer: Arc::clone(&consumer),
        jobs,
        findings: found,
        starts: Starts::new(settings)?,
    };
    let in_flight_bytes = settings.in_flight_bytes;
    let reader = Reader::new(consumer, inquiries, findings, in_flight_bytes)
        .map_err(|error| Error::fatal(format!("the Kafka client has no memory: {error}")))?;
    let asking = thread::Builder::new()
        .name("kafka-inquiry".into())
        .spawn(move || inquirer.run())
        .map_err(failed)?;
    let reading = thread::Builder::new()
        .name("kafka-reader".into())
        .spawn(move || read(reader, asking, &over));
    reading.map(drop).map_err(failed)
}

/// The thread that reads, to its end.
fn read(mut reader: Reader, asking: thread::JoinHandle<()>, over: &watch::Sender<bool>) {
    let membership = Arc::clone(&reader.membership);
    if catch_unwind(AssertUnwindSafe(|| reader.run())).is_err() {
        membership.health.fail(
            "the thread that reads Kafka ended by a defect in this program, the log shows it: \
             restart this process",
        );
    }
    // A worker may hold a sender still: the thread is told to stop.
    let _ = reader.inquiries.ask(Job::Stop);
    leave(reader, asking);
    membership.health.close();
    for mailbox in &membership.mailboxes {
        mailbox.close();
    }
    over.send_replace(true);
}

/// Leaves the group by dropping the client, on a thread of its own that may hang.
fn leave(reader: Reader, asking: thread::JoinHandle<()>) {
    let (done, left) = mpsc::channel();
    let leaving = thread::Builder::new()
        .name("kafka-leave".into())
        .spawn(move || {
            // The last one to hold the client drops it: that shall be this thread.
            let _ = asking.join();
            drop(reader);
            let _ = done.send(());
        });
    if leaving.is_err() || left.recv_timeout(LEAVE_TIMEOUT).is_err() {
        tracing::warn!("leaving the Kafka group takes too long; the group will notice by itself");
    }
}

/// Watches over the source, and ends it.
#[derive(Clone)]
pub struct KafkaHandle {
    membership: Arc<Membership>,
    inquiries: Inquiries,
    closed: watch::Receiver<bool>,
}

impl KafkaHandle {
    /// Takes all partitions from the workers, waits a while until they let go, commits, leaves the
    /// group, and lets every worker meet the end. Returns when that is done.
    ///
    /// Workers must be driven meanwhile. Bounded by the drain timeout and a few seconds.
    pub async fn close(&self) {
        self.membership.desk.close();
        let mut closed = self.closed.clone();
        // The sender goes away only when the thread is over.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// The cluster's id, where a broker tells it within a few seconds.
    pub async fn cluster_id(&self) -> Option<String> {
        let (reply, answer) = oneshot::channel();
        self.inquiries.ask(Job::Cluster { reply }).ok()?;
        answer.await.ok().flatten()
    }

    /// How the source fares at this moment.
    pub fn state(&self) -> KafkaState {
        let health = &self.membership.health;
        let acknowledged = self.membership.desk.acknowledged();
        let assignment = lock(&self.membership.assignment);
        let mut partitions: Vec<_> = assignment
            .iter()
            .map(|owned| {
                let end = health.end(&owned.at);
                let position = acknowledged.get(&owned.at).copied().or(owned.begun);
                PartitionState {
                    at: owned.at.clone(),
                    worker: owned.worker,
                    reading: owned.is_reading(),
                    position,
                    lag: end
                        .zip(position)
                        .map(|(end, position)| (end - position).max(0)),
                }
            })
            .collect();
        drop(assignment);
        partitions.sort_by(|a, b| a.at.cmp(&b.at));
        let known = health.snapshot();
        KafkaState {
            connected: known.connected,
            closed: known.closed,
            partitions,
            waiting: known.waiting,
            last_error: known.last_error,
            rebalances: known.rebalances,
            failed_commits: known.failed_commits,
            in_flight_bytes: self.membership.desk.held(),
        }
    }
}

/// How the source fares.
#[derive(Clone, Debug)]
pub struct KafkaState {
    /// Whether any broker can be reached, as of the last few seconds.
    pub connected: bool,
    /// Whether the source is over.
    pub closed: bool,
    /// What this member has, in order.
    pub partitions: Vec<PartitionState>,
    /// What the source waits for: a topic that does not exist.
    pub waiting: Option<String>,
    /// The last thing that went wrong; it may be over.
    pub last_error: Option<String>,
    /// How often partitions came or went.
    pub rebalances: u64,
    /// Commits that the group did not take; Postgres knows the positions anyway.
    pub failed_commits: u64,
    /// Bytes of records read and not yet finished.
    pub in_flight_bytes: usize,
}

/// How a partition of this member fares.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// The partition.
    pub at: TopicPartition,
    /// The index of the worker that has it.
    pub worker: usize,
    /// Whether it was started and not halted.
    pub reading: bool,
    /// The offset after what was acknowledged, or where reading began.
    pub position: Option<i64>,
    /// Records between what was acknowledged, or where reading began, and the end of the log as of
    /// the last few seconds; `None` while either is unknown.
    pub lag: Option<i64>,
}
