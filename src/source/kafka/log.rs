//! A look at topics from outside the group, for commands.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use uuid::Uuid;

use super::desk::lock;
use super::native;
use super::settings::{KafkaSettings, refused};
use super::starts::Starts;
use crate::error::Error;
use crate::event::TopicPartition;

/// The longest that the end of the client is waited for; it can hang.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// How long one turn of the client's events takes at most.
const POLL_TIMEOUT: Duration = Duration::from_millis(20);

/// A client that only looks: it joins no group, reads no record and commits nothing.
pub struct KafkaLog {
    asker: Option<Asker>,
    starts: Starts,
}

/// What a topic's log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicLog {
    /// The topic's id, where a broker tells.
    pub topic_id: Option<Uuid>,
    /// For each partition the first offset that it holds and the one behind its last record (under
    /// `read_committed` the last stable one); `None` where its leader did not answer.
    pub bounds: BTreeMap<i32, Option<(i64, i64)>>,
}

/// What the brokers told of topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogView {
    /// The cluster's id, where a broker tells.
    pub cluster_id: Option<String>,
    /// The topics that exist, of those asked for.
    pub topics: BTreeMap<String, TopicLog>,
}

impl LogView {
    /// The bounds of a partition, where they are known.
    pub fn bounds(&self, topic: &str, partition: i32) -> Option<(i64, i64)> {
        *self.topics.get(topic)?.bounds.get(&partition)?
    }
}

impl KafkaLog {
    /// Makes a client; connects to nothing yet. `timeout` bounds each question to the brokers.
    ///
    /// Fatal where the settings cannot be used.
    pub fn open(settings: &KafkaSettings, timeout: Duration) -> Result<Self, Error> {
        let mut config = settings.client_config()?;
        config.set("statistics.interval.ms", "0");
        let client = BaseConsumer::from_config_and_context(&config, Listener::default());
        let client = client.map_err(|error| refused(&error))?;
        let asker = Asker {
            client: Arc::new(client),
            brokers: settings.brokers.clone(),
            timeout,
        };
        Ok(Self {
            asker: Some(asker),
            starts: Starts::new(settings)?,
        })
    }

    /// Whether the settings name the topic, or a pattern of theirs finds it.
    pub fn reads(&self, topic: &str) -> bool {
        self.starts.reads(topic)
    }

    /// Asks for topics; with none it asks only whether a broker answers.
    ///
    /// Transient where no broker answers.
    pub async fn look(&self, topics: Vec<String>) -> Result<LogView, Error> {
        self.ask(move |asker| asker.look(&topics)).await
    }

    /// The first offset whose record is not older than a time in milliseconds since the epoch, of
    /// each partition; `None` where all records are older.
    ///
    /// Transient where a partition's leader does not answer.
    pub async fn offsets_at(
        &self,
        times: Vec<(TopicPartition, i64)>,
    ) -> Result<HashMap<TopicPartition, Option<i64>>, Error> {
        self.ask(move |asker| asker.offsets_at(&times)).await
    }

    /// The client's calls block: they get a thread of their own.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Asker) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Some(asker) = self.asker.clone() else {
            return Err(Error::fatal("a question to Kafka after its client's end"));
        };
        let answer = tokio::task::spawn_blocking(move || asker.polled(question)).await;
        answer.map_err(|error| Error::fatal(format!("a question to Kafka ended early: {error}")))?
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        let (done, ended) = mpsc::channel();
        let asker = self.asker.take();
        let ending = thread::Builder::new().spawn(move || {
            drop(asker);
            let _ = done.send(());
        });
        if ending.is_ok() {
            let _ = ended.recv_timeout(END_TIMEOUT);
        }
    }
}

/// The partitions of a topic, and a broker that leads one of them.
struct Partitions {
    numbers: Vec<i32>,
    leader: Option<i32>,
}

#[derive(Clone)]
struct Asker {
    client: Arc<BaseConsumer<Listener>>,
    brokers: String,
    timeout: Duration,
}

impl Asker {
    /// Lets the client handle its events meanwhile: errors, and the renewal of tokens.
    fn polled<T>(&self, question: impl FnOnce(&Self) -> T) -> T {
        thread::scope(|scope| {
            let (asked, over) = mpsc::channel::<()>();
            scope.spawn(move || {
                while over.try_recv() == Err(TryRecvError::Empty) {
                    // Errors go to the context; there are no records.
                    let _ = self.client.poll(POLL_TIMEOUT);
                }
            });
            let answer = question(self);
            drop(asked);
            answer
        })
    }

    fn look(&self, topics: &[String]) -> Result<LogView, Error> {
        let mut view = LogView::default();
        let mut leader = None;
        if topics.is_empty() {
            self.partitions(None)?;
        }
        for topic in topics {
            if let Some(partitions) = self.partitions(Some(topic))? {
                leader = leader.or(partitions.leader);
                let bounds = partitions.numbers.into_iter().map(|number| (number, None));
                let log = TopicLog {
                    topic_id: None,
                    bounds: bounds.collect(),
                };
                view.topics.insert(topic.clone(), log);
            }
        }
        view.cluster_id = self.client.client().fetch_cluster_id(self.timeout);
        if let Some(leader) = leader {
            self.name(leader, &mut view);
        }
        self.measure(&mut view)?;
        Ok(view)
    }

    /// The partitions of a topic; nothing where there is no such topic.
    fn partitions(&self, topic: Option<&str>) -> Result<Option<Partitions>, Error> {
        let metadata = self.client.fetch_metadata(topic, self.timeout);
        let metadata = metadata.map_err(|error| self.unanswered(&error))?;
        let known = metadata.topics().iter().find(|t| Some(t.name()) == topic);
        let Some(known) = known else {
            return Ok(None);
        };
        match known.error() {
            None => {
                let leaders = known.partitions().iter().map(|p| p.leader());
                Ok(Some(Partitions {
                    numbers: known.partitions().iter().map(|p| p.id()).collect(),
                    leader: leaders.into_iter().find(|leader| *leader >= 0),
                }))
            }
            Some(
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART
                | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC
                | RDKafkaRespErr::RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION,
            ) => Ok(None),
            Some(error) => {
                let code = RDKafkaErrorCode::from(error);
                Err(Error::transient(format!(
                    "Kafka says of topic {}: {code}",
                    known.name()
                )))
            }
        }
    }

    fn name(&self, broker: i32, view: &mut LogView) {
        let names: Vec<&str> = view.topics.keys().map(String::as_str).collect();
        let ids = native::topic_ids(self.client.client(), broker, &names, self.timeout);
        for (topic, id) in ids.unwrap_or_default() {
            if let Some(log) = view.topics.get_mut(&topic) {
                log.topic_id = Some(id);
            }
        }
    }

    /// Two questions for all partitions, however many there are.
    fn measure(&self, view: &mut LogView) -> Result<(), Error> {
        let [low, high] = [Offset::Beginning, Offset::End].map(|place| {
            let mut list = TopicPartitionList::new();
            for (topic, log) in &view.topics {
                for partition in log.bounds.keys() {
                    let added = list.add_partition_offset(topic, *partition, place);
                    added.map_err(|error| self.unanswered(&error))?;
                }
            }
            self.listed(list)
        });
        let (low, high) = (low?, high?);
        for (topic, log) in &mut view.topics {
            for (partition, bounds) in &mut log.bounds {
                let at = TopicPartition::new(topic.as_str(), *partition);
                *bounds = low.get(&at).copied().zip(high.get(&at).copied());
            }
        }
        Ok(())
    }

    fn offsets_at(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<HashMap<TopicPartition, Option<i64>>, Error> {
        let mut list = TopicPartitionList::new();
        for (at, time_ms) in times {
            // A negative one would have a meaning of its own.
            let time = Offset::Offset((*time_ms).max(0));
            let added = list.add_partition_offset(&at.topic, at.partition, time);
            added.map_err(|error| self.unanswered(&error))?;
        }
        let found = self.listed(list)?;
        let one = |(at, _): &(TopicPartition, i64)| match found.get(at) {
            Some(offset) => Ok((at.clone(), (*offset >= 0).then_some(*offset))),
            None => Err(Error::transient(format!(
                "the leader of {at} does not answer: which record was the first at that time is \
                 not known"
            ))),
        };
        times.iter().map(one).collect()
    }

    fn listed(&self, list: TopicPartitionList) -> Result<HashMap<TopicPartition, i64>, Error> {
        if list.count() == 0 {
            return Ok(HashMap::new());
        }
        let answer = self.client.offsets_for_times(list, self.timeout);
        let answer = answer.map_err(|error| self.unanswered(&error))?;
        let entries = native::entries(&answer).into_iter();
        let offset = |entry: native::Entry| {
            let at = TopicPartition::new(entry.topic, entry.partition);
            (at, entry.offset)
        };
        Ok(entries.filter(|entry| entry.valid).map(offset).collect())
    }

    fn unanswered(&self, error: &KafkaError) -> Error {
        let said = self.client.context().last_word();
        let said = said.unwrap_or_else(|| error.to_string());
        Error::transient(format!(
            "no answer from Kafka at {} within {} s: {said}",
            self.brokers,
            self.timeout.as_secs()
        ))
    }
}

/// Hears why no broker can be reached.
#[derive(Default)]
pub(super) struct Listener {
    said: Mutex<Option<String>>,
}

impl Listener {
    /// The last reason that was heard.
    pub(super) fn last_word(&self) -> Option<String> {
        lock(&self.said).clone()
    }
}

impl ClientContext for Listener {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", "{facility}: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // That all are down says less than what was said of one.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *lock(&self.said) = Some(reason.to_owned());
        }
    }
}

impl ConsumerContext for Listener {}
