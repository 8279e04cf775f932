//! Questions to the brokers, on a thread of their own: a slow answer never keeps the client from
//! being polled.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::assignment::{Owned, list};
use super::membership::Membership;
use super::native;
use super::starts::Starts;
use crate::error::Error;
use crate::event::TopicPartition;
use crate::source::{Assigned, Committed, TopicStart};

/// The longest that one question waits for its answer.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a topic's id is asked for before the broker counts as one that does not tell.
const TOPIC_ID_TRIES: u32 = 3;

/// How often the start of a topic is tried before the worker hears of it.
const STARTS_TRIES: u32 = 4;

/// A partition that is asked about, in one assignment of it.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    at: TopicPartition,
    generation: u64,
    alive: Arc<AtomicBool>,
}

impl From<&Owned> for Ask {
    fn from(owned: &Owned) -> Self {
        Self {
            at: owned.at.clone(),
            generation: owned.generation,
            alive: Arc::clone(&owned.alive),
        }
    }
}

/// Why partitions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To offer them to their workers.
    Offer,
    /// To see whether they are still read within the log.
    Check,
}

/// A question.
pub(super) enum Job {
    Survey {
        asks: Vec<Ask>,
        purpose: Purpose,
    },
    /// Commits an offset, and offers the partition again once that succeeded.
    Commit {
        ask: Ask,
        offset: i64,
    },
    Starts {
        topic: Arc<str>,
        /// Whether nothing was ever claimed.
        first: bool,
        reply: oneshot::Sender<Result<Vec<TopicStart>, Error>>,
    },
    Cluster {
        reply: oneshot::Sender<Option<String>>,
    },
    Stop,
}

/// An answer, void unless the partition is still in the same assignment.
pub(super) enum Finding {
    Surveyed {
        purpose: Purpose,
        partitions: Vec<(u64, Assigned)>,
    },
    Committed {
        at: TopicPartition,
        generation: u64,
        offset: i64,
    },
}

/// Where questions are asked.
#[derive(Clone)]
pub(super) struct Inquiries(pub(super) Sender<Job>);

impl Inquiries {
    pub(super) fn ask(&self, job: Job) -> Result<(), SendError<Job>> {
        self.0.send(job)
    }
}

struct Waiting {
    job: Job,
    tries: u32,
    due: Instant,
}

/// Asks, and asks again where there was no answer.
pub(super) struct Inquirer {
    pub(super) consumer: Arc<BaseConsumer<Membership>>,
    pub(super) jobs: Receiver<Job>,
    pub(super) findings: Sender<Finding>,
    pub(super) starts: Starts,
}

impl Inquirer {
    /// Runs until [`Job::Stop`].
    pub(super) fn run(self) {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            let due = waiting.iter().map(|w| w.due).min();
            let timeout = due.map_or(Duration::from_secs(3600), |due| {
                due.saturating_duration_since(Instant::now())
            });
            match self.jobs.recv_timeout(timeout) {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(job) => waiting.push(Waiting {
                    job,
                    tries: 0,
                    due: Instant::now(),
                }),
            }
            if self.consumer.context().desk.closing() {
                return;
            }
            let now = Instant::now();
            let (due, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.due <= now);
            waiting = later;
            for Waiting { job, tries, .. } in due {
                if let Some(job) = self.attempt(job, tries) {
                    waiting.push(Waiting {
                        job,
                        tries: tries + 1,
                        due: Instant::now() + backoff(tries),
                    });
                }
            }
        }
    }

    /// Tries a question; what is left of it is asked again.
    fn attempt(&self, job: Job, tries: u32) -> Option<Job> {
        match job {
            Job::Survey { asks, purpose } => {
                let asks = self.survey(asks, purpose, tries);
                (!asks.is_empty()).then_some(Job::Survey { asks, purpose })
            }
            Job::Commit { ask, offset } => self.commit(ask, offset),
            Job::Starts {
                topic,
                first,
                reply,
            } => {
                match self.starts.resolve(&self.consumer, &topic, first) {
                    Err(error)
                        if error.class() == crate::error::Class::Transient
                            && tries + 1 < STARTS_TRIES =>
                    {
                        tracing::debug!("{error}");
                        Some(Job::Starts {
                            topic,
                            first,
                            reply,
                        })
                    }
                    answer => {
                        // A worker that gave up has dropped its end.
                        let _ = reply.send(answer);
                        None
                    }
                }
            }
            Job::Cluster { reply } => {
                // Whoever asked may have gone.
                let _ = reply.send(self.consumer.client().fetch_cluster_id(CALL_TIMEOUT));
                None
            }
            Job::Stop => None,
        }
    }

    fn commit(&self, ask: Ask, offset: i64) -> Option<Job> {
        if !ask.alive.load(Ordering::Acquire) {
            return None;
        }
        let context = self.consumer.context();
        let offsets = [(ask.at.clone(), offset)];
        match context.commit(&self.consumer, &offsets) {
            Err(error) => {
                tracing::debug!(partition = %ask.at, offset, "not committed: {error}");
                Some(Job::Commit { ask, offset })
            }
            Ok(()) => {
                self.tell(Finding::Committed {
                    at: ask.at.clone(),
                    generation: ask.generation,
                    offset,
                });
                Some(Job::Survey {
                    asks: vec![ask],
                    purpose: Purpose::Offer,
                })
            }
        }
    }

    /// Looks at partitions and tells what was found; returns those without an answer.
    fn survey(&self, mut asks: Vec<Ask>, purpose: Purpose, tries: u32) -> Vec<Ask> {
        asks.retain(|ask| ask.alive.load(Ordering::Acquire));
        if asks.is_empty() {
            return asks;
        }
        let committed = match self.committed(&asks) {
            Ok(committed) => committed,
            Err(error) => {
                let sentence = format!("the group's committed offsets cannot be read: {error}");
                self.consumer.context().health.warn("committed", &sentence);
                return asks;
            }
        };
        let mut topics: Vec<&str> = asks.iter().map(|ask| &*ask.at.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        let ids = match self.topic_ids(&topics) {
            None if tries + 1 < TOPIC_ID_TRIES => return asks,
            ids => ids.unwrap_or_default(),
        };
        let cluster_id = self.consumer.client().fetch_cluster_id(CALL_TIMEOUT);
        let cluster_id: Option<Arc<str>> = cluster_id.map(Into::into);
        let (mut found, mut open) = (Vec::new(), Vec::new());
        for ask in asks {
            match self.watermarks(&ask.at) {
                Some((low, high)) => found.push((
                    ask.generation,
                    Assigned {
                        topic_id: ids.get(&*ask.at.topic).copied(),
                        cluster_id: cluster_id.clone(),
                        committed: committed.get(&ask.at).copied(),
                        low,
                        high,
                        at: ask.at,
                    },
                )),
                None => open.push(ask),
            }
        }
        found.sort_by(|(_, a), (_, b)| a.at.cmp(&b.at));
        if !found.is_empty() {
            self.tell(Finding::Surveyed {
                purpose,
                partitions: found,
            });
        }
        open
    }

    /// The ids of topics, told by a broker that leads one of them. `None`: no answer in time.
    fn topic_ids(&self, topics: &[&str]) -> Option<HashMap<String, Uuid>> {
        let client = self.consumer.client();
        let metadata = client
            .fetch_metadata(topics.first().copied(), CALL_TIMEOUT)
            .ok()?;
        let partitions = metadata.topics().iter().flat_map(|t| t.partitions());
        let leader = partitions.map(|p| p.leader()).find(|leader| *leader >= 0);
        let broker = leader.or_else(|| Some(metadata.brokers().first()?.id()))?;
        native::topic_ids(client, broker, topics, CALL_TIMEOUT)
    }

    fn committed(&self, asks: &[Ask]) -> Result<HashMap<TopicPartition, Committed>, KafkaError> {
        let partitions: TopicPartitionList = list(asks.iter().map(|ask| (&ask.at, None)));
        let answer = self.consumer.committed_offsets(partitions, CALL_TIMEOUT)?;
        let entries = native::entries(&answer).into_iter();
        let known = entries.filter(|entry| entry.valid && entry.offset >= 0);
        Ok(known
            .map(|entry| {
                let committed = Committed {
                    offset: entry.offset,
                    ours: Membership::is_ours(&entry.metadata),
                };
                (TopicPartition::new(entry.topic, entry.partition), committed)
            })
            .collect())
    }

    fn watermarks(&self, at: &TopicPartition) -> Option<(i64, i64)> {
        match self
            .consumer
            .fetch_watermarks(&at.topic, at.partition, CALL_TIMEOUT)
        {
            Ok(watermarks) => Some(watermarks),
            Err(error) => {
                let sentence = format!("the bounds of {at} cannot be read: {error}");
                self.consumer.context().health.warn("watermarks", &sentence);
                None
            }
        }
    }

    fn tell(&self, finding: Finding) {
        // The reader is gone only when everything is.
        let _ = self.findings.send(finding);
    }
}

/// 100 ms, doubled with each try, up to 5 s.
pub(super) fn backoff(tries: u32) -> Duration {
    Duration::from_millis(100 << tries.min(6)).min(Duration::from_secs(5))
}
