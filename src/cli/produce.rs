//! Sends records, and waits until the log has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use tokio::sync::oneshot;

/// The header that holds an event's id.
pub(super) const ID_HEADER: &str = "event-id";

/// The longest that one record may take into the log.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A record to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Where it goes.
    pub(super) partition: i32,
    /// The event's id, for the header.
    pub(super) id: String,
    /// Its key.
    pub(super) key: String,
    /// Its value.
    pub(super) value: String,
}

/// A producer at work on a thread of its own.
pub(super) struct Producing {
    delivered: Arc<AtomicU64>,
    given_up: Arc<AtomicBool>,
    done: oneshot::Receiver<anyhow::Result<()>>,
}

impl Producing {
    /// Starts to send so many records.
    pub(super) fn start(
        brokers: &str,
        topic: &str,
        count: u64,
        records: impl Iterator<Item = Record> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let deliveries = Deliveries::default();
        let (delivered, given_up) = (
            Arc::clone(&deliveries.delivered),
            Arc::new(AtomicBool::new(false)),
        );
        let producer: BaseProducer<Deliveries> = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            // Without it a retry inside the client would add a record that was not planned.
            .set("enable.idempotence", "true")
            .set("compression.type", "lz4")
            .set("linger.ms", "50")
            .set("message.timeout.ms", DELIVERY_TIMEOUT.as_millis().to_string())
            .create_with_context(deliveries)
            .context("cannot create a Kafka producer")?;
        let (report, done) = oneshot::channel();
        let (topic, stop) = (topic.to_owned(), Arc::clone(&given_up));
        thread::Builder::new()
            .name("producer".into())
            .spawn(move || {
                let produced = produce(&producer, &topic, count, records, &stop);
                // Nobody asks any more: the command is over.
                let _ = report.send(produced);
            })
            .context("cannot start a thread for the producer")?;
        Ok(Self {
            delivered,
            given_up,
            done,
        })
    }

    /// Records that are in the log.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Waits until every record is in the log.
    pub(super) async fn finish(&mut self) -> anyhow::Result<()> {
        match (&mut self.done).await {
            Ok(produced) => produced,
            Err(_) => bail!("the producer ended by a defect in this program"),
        }
    }
}

impl Drop for Producing {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
    }
}

/// Counts what the brokers took, and keeps the first error.
#[derive(Default)]
struct Deliveries {
    delivered: Arc<AtomicU64>,
    failed: AtomicU64,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => self.delivered.fetch_add(1, Ordering::Relaxed),
            Err((error, _)) => {
                if self.failed.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::error!(%error, "Kafka did not take a record");
                }
                0
            }
        };
    }
}

fn produce(
    producer: &BaseProducer<Deliveries>,
    topic: &str,
    count: u64,
    records: impl Iterator<Item = Record>,
    given_up: &AtomicBool,
) -> anyhow::Result<()> {
    for record in records {
        ensure!(!given_up.load(Ordering::Relaxed), "given up");
        send(producer, topic, &record)?;
    }
    let deadline = Instant::now() + DELIVERY_TIMEOUT + Duration::from_secs(5);
    while producer.in_flight_count() > 0 && Instant::now() < deadline {
        ensure!(!given_up.load(Ordering::Relaxed), "given up");
        // A flush at its time limit is asked again until the deadline.
        let _ = producer.flush(Duration::from_millis(200));
    }
    let delivered = producer.context().delivered.load(Ordering::Relaxed);
    ensure!(
        delivered == count,
        "Kafka took {delivered} of {count} records within {} s",
        DELIVERY_TIMEOUT.as_secs()
    );
    Ok(())
}

/// Hands a record to the client, and waits where its queue is full.
pub(super) fn send<C: ProducerContext<DeliveryOpaque = ()>>(
    producer: &BaseProducer<C>,
    topic: &str,
    record: &Record,
) -> anyhow::Result<()> {
    let header = Header {
        key: ID_HEADER,
        value: Some(&record.id),
    };
    let mut message = BaseRecord::to(topic)
        .partition(record.partition)
        .key(&record.key)
        .payload(&record.value)
        .headers(OwnedHeaders::new().insert(header));
    let deadline = Instant::now() + DELIVERY_TIMEOUT;
    loop {
        match producer.send(message) {
            Ok(()) => break,
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                if Instant::now() < deadline =>
            {
                message = back;
                producer.poll(Duration::from_millis(20));
            }
            Err((error, _)) => return Err(anyhow!(error).context("Kafka takes no more records")),
        }
    }
    producer.poll(Duration::ZERO);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kafka_that_is_not_there_ends_the_producing_with_a_sentence() {
        let record = Record {
            partition: 0,
            id: "1".into(),
            key: "a".into(),
            value: "{}".into(),
        };
        let records = std::iter::repeat_n(record, 2_000);
        let mut producing = Producing::start("127.0.0.1:1", "demo", 2_000, records).unwrap();
        producing.given_up.store(true, Ordering::Relaxed);
        assert_eq!(
            producing.finish().await.unwrap_err().to_string(),
            "given up"
        );
    }
}
