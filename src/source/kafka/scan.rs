//! Reading ranges of a topic from outside the group, for commands.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::mpsc;

use super::log::Listener;
use super::native;
use super::reader::incoming;
use super::settings::{KafkaSettings, refused};
use crate::error::Error;
use crate::event::{Batch, TopicPartition};

/// A batch is full with this many records or bytes.
const BATCH_EVENTS: usize = 5_000;
const BATCH_BYTES: usize = 8 << 20;

/// Batches that wait for whoever looks at them.
const BATCHES_WAITING: usize = 2;

/// How long a poll waits, and the longest that a batch waits for more.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// How long the brokers may be silent in the midst of a range.
const PATIENCE: Duration = Duration::from_secs(30);

/// A range of a partition's offsets, the end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanRange {
    /// The partition's number.
    pub partition: i32,
    /// The first offset.
    pub from: i64,
    /// The offset behind the last one; at most the end of the log.
    pub to: i64,
}

/// Reads ranges of one topic, once. It joins no group and commits nothing.
///
/// It reads ahead by a few batches, however long the ranges are. Dropping it ends the reading.
pub struct KafkaScan {
    batches: mpsc::Receiver<Result<Batch, Error>>,
}

impl KafkaScan {
    /// Begins to read, with the isolation level of the settings. Fatal where they cannot be used.
    pub fn open(
        settings: &KafkaSettings,
        topic: &str,
        ranges: &[ScanRange],
    ) -> Result<Self, Error> {
        let (send, batches) = mpsc::channel(BATCHES_WAITING);
        let ranges: Vec<ScanRange> = ranges.iter().filter(|r| r.from < r.to).copied().collect();
        if ranges.is_empty() {
            return Ok(Self { batches });
        }
        let mut config = settings.client_config()?;
        config.set("statistics.interval.ms", "0");
        let consumer = BaseConsumer::from_config_and_context(&config, Listener::default());
        let consumer = consumer.map_err(|error| refused(&error))?;
        let mut list = TopicPartitionList::new();
        for range in &ranges {
            let from = Offset::Offset(range.from);
            let added = list.add_partition_offset(topic, range.partition, from);
            added.map_err(|error| refused(&error))?;
        }
        consumer.assign(&list).map_err(|error| refused(&error))?;
        let reading = Reading {
            consumer,
            topic: topic.to_owned(),
            open: ranges
                .iter()
                .map(|range| (range.partition, *range))
                .collect(),
            batch: Batch::new(),
            batches: send,
        };
        let thread = thread::Builder::new().name("kafka-scan".into());
        let started = thread.spawn(move || reading.run());
        started
            .map_err(|error| Error::fatal(format!("no thread for the Kafka client: {error}")))?;
        Ok(Self { batches })
    }

    /// The next records; `None` when the ranges are read. Batches of the same partition come in
    /// the order of the log.
    ///
    /// Transient where the brokers fall silent, fatal where the log begins behind what was to be
    /// read of it. Nothing follows an error.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        self.batches.recv().await
    }
}

/// The thread that reads.
struct Reading {
    consumer: BaseConsumer<Listener>,
    topic: String,
    /// Partitions that are not read to the end of their range.
    open: HashMap<i32, ScanRange>,
    batch: Batch,
    batches: mpsc::Sender<Result<Batch, Error>>,
}

/// Whether anybody still waits for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

impl Reading {
    fn run(mut self) {
        if let Err(error) = self.read() {
            // Whoever does not listen any more has no use for it.
            let _ = self.batches.blocking_send(Err(error));
        }
    }

    fn read(&mut self) -> Result<(), Error> {
        let mut heard = Instant::now();
        let mut filled = Instant::now();
        while !self.open.is_empty() {
            match self.poll()? {
                true => heard = Instant::now(),
                false if heard.elapsed() >= PATIENCE => return Err(self.silent()),
                false => {}
            }
            if self.batch.is_empty() {
                filled = Instant::now();
            } else if self.is_full() || filled.elapsed() >= POLL_WAIT {
                if self.hand_over() == Wanted::No {
                    return Ok(());
                }
                // The brokers are not to blame for a reader that takes its time.
                heard = Instant::now();
            }
        }
        self.hand_over();
        Ok(())
    }

    /// One record or event. Returns whether there was any.
    fn poll(&mut self) -> Result<bool, Error> {
        // The message borrows the client, and what takes it changes the rest.
        let (open, batch) = (&mut self.open, &mut self.batch);
        let ended = match self.consumer.poll(POLL_WAIT) {
            None => return Ok(false),
            Some(Ok(message)) => take(&message, open, batch),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                open.remove(&partition).map(|range| range.partition)
            }
            Some(Err(error)) => {
                self.judge(&error)?;
                return Ok(false);
            }
        };
        if let Some(partition) = ended {
            self.leave(partition);
        }
        Ok(true)
    }

    /// Fetches nothing more of a partition.
    fn leave(&self, partition: i32) {
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.topic, partition);
        if let Err(error) = self.consumer.pause(&list) {
            tracing::debug!("reading on behind the end of a range: {error}");
        }
    }

    /// Errors that pass are waited out.
    fn judge(&self, error: &KafkaError) -> Result<(), Error> {
        let topic = &self.topic;
        match error {
            KafkaError::MessageConsumptionFatal(_) => Err(Error::fatal(format!(
                "the Kafka client cannot go on with {topic}: {error}"
            ))),
            _ if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AutoOffsetReset) => {
                Err(Error::fatal(format!(
                    "the start of the log of {topic} moved past records that were about to be \
                     read: {error}"
                )))
            }
            _ => {
                tracing::debug!("reading {topic}: {error}");
                Ok(())
            }
        }
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_EVENTS || self.batch.bytes() >= BATCH_BYTES
    }

    fn hand_over(&mut self) -> Wanted {
        if self.batch.is_empty() {
            return Wanted::Yes;
        }
        let next = Batch::as_large_as(&self.batch);
        let full = std::mem::replace(&mut self.batch, next);
        match self.batches.blocking_send(Ok(full)) {
            Ok(()) => Wanted::Yes,
            Err(_) => Wanted::No,
        }
    }

    fn silent(&self) -> Error {
        let said = self.consumer.context().last_word();
        let said = said.map_or_else(String::new, |said| format!(": {said}"));
        Error::transient(format!(
            "no record of {} within {} s, though there are more to read{said}",
            self.topic,
            PATIENCE.as_secs()
        ))
    }
}

/// Copies a record that lies in its partition's range. Returns the partition if the range is read
/// to its end.
fn take(
    message: &BorrowedMessage<'_>,
    open: &mut HashMap<i32, ScanRange>,
    batch: &mut Batch,
) -> Option<i32> {
    let (partition, offset) = (message.partition(), message.offset());
    let range = open.get(&partition)?;
    if (range.from..range.to).contains(&offset) {
        let slot = match batch
            .slices()
            .iter()
            .position(|s| s.at.partition == partition)
        {
            Some(slot) => slot as u32,
            None => batch.slice(&TopicPartition::new(message.topic(), partition), 0),
        };
        let headers = native::headers(message);
        let headers = headers.iter().map(|(name, value)| (&**name, *value));
        batch.push(slot, incoming(message), headers);
    }
    (offset + 1 >= range.to).then(|| {
        open.remove(&partition);
        partition
    })
}
