//! Sends what was planned, and waits until the log has it.

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

use super::plan::{Plan, Planned, event_id};

/// The header that holds an event's id.
const ID_HEADER: &str = "event-id";

/// The longest that one record may take into the log.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// A producer at work on a thread of its own.
pub(super) struct Producing {
    delivered: Arc<AtomicU64>,
    given_up: Arc<AtomicBool>,
    done: oneshot::Receiver<anyhow::Result<()>>,
}

impl Producing {
    /// Starts to send.
    pub(super) fn start(brokers: &str, topic: &str, plan: Arc<Plan>) -> anyhow::Result<Self> {
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
            .name("demo-producer".into())
            .spawn(move || {
                let produced = produce(&producer, &topic, &plan, &stop);
                // Nobody asks any more: the demo is over.
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
    plan: &Plan,
    given_up: &AtomicBool,
) -> anyhow::Result<()> {
    for record in &plan.records {
        ensure!(!given_up.load(Ordering::Relaxed), "given up");
        send(producer, topic, plan, *record)?;
    }
    let deadline = Instant::now() + DELIVERY_TIMEOUT + Duration::from_secs(5);
    while producer.in_flight_count() > 0 && Instant::now() < deadline {
        ensure!(!given_up.load(Ordering::Relaxed), "given up");
        // A flush at its time limit is asked again until the deadline.
        let _ = producer.flush(Duration::from_millis(200));
    }
    let (delivered, planned) = (
        producer.context().delivered.load(Ordering::Relaxed),
        plan.produced(),
    );
    ensure!(
        delivered == planned,
        "Kafka took {delivered} of {planned} records within {} s",
        DELIVERY_TIMEOUT.as_secs()
    );
    Ok(())
}

fn send(
    producer: &BaseProducer<Deliveries>,
    topic: &str,
    plan: &Plan,
    record: Planned,
) -> anyhow::Result<()> {
    let (key, value) = plan.body(record.event);
    let id = event_id(record.event);
    let header = Header {
        key: ID_HEADER,
        value: Some(&id),
    };
    let mut message = BaseRecord::to(topic)
        .partition(i32::from(record.partition))
        .key(&key)
        .payload(&value)
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
    use std::collections::HashMap;

    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::{Headers as _, Message as _};
    use rdkafka::mocking::MockCluster;
    use rdkafka::{Offset, TopicPartitionList};

    use super::super::partitions;
    use super::*;

    /// Reads a topic to its end: how many records each partition has, and how often each id is there.
    fn read(brokers: &str, topic: &str, plan: &Plan) -> (Vec<i64>, HashMap<String, u32>) {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "demo-test")
            .set("fetch.wait.max.ms", "10")
            .create()
            .unwrap();
        let mut assignment = TopicPartitionList::new();
        for partition in 0..plan.partitions {
            assignment
                .add_partition_offset(topic, partition.into(), Offset::Beginning)
                .unwrap();
        }
        consumer.assign(&assignment).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let (mut counts, mut times) = (vec![0; plan.partitions.into()], HashMap::new());
        let mut rest = plan.records.len();
        while rest > 0 {
            assert!(Instant::now() < deadline, "nothing more after {counts:?}");
            let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                continue;
            };
            let message = message.unwrap();
            rest -= 1;
            let partition = message.partition() as usize;
            assert_eq!(message.offset(), counts[partition], "a record was dropped");
            counts[partition] += 1;
            let header = message.headers().unwrap().get(0);
            assert_eq!(header.key, ID_HEADER);
            let id = String::from_utf8(header.value.unwrap().to_vec()).unwrap();
            *times.entry(id).or_default() += 1;
        }
        (counts, times)
    }

    async fn everything_produced_can_be_consumed(records: u32) {
        let plan = Arc::new(Plan::new(records, partitions(records, true), 1));
        let cluster = MockCluster::new(1).unwrap();
        cluster
            .create_topic("demo", plan.partitions.into(), 1)
            .unwrap();
        let brokers = cluster.bootstrap_servers();
        let mut producing = Producing::start(&brokers, "demo", Arc::clone(&plan)).unwrap();
        producing.finish().await.unwrap();
        assert_eq!(producing.delivered(), u64::from(records));

        let (counts, times) = read(&brokers, "demo", &plan);
        assert_eq!(counts, plan.ends());
        let mut planned = HashMap::new();
        for record in &plan.records {
            *planned.entry(event_id(record.event)).or_default() += 1;
        }
        assert!(times == planned, "an id was not there as often as planned");
    }

    #[tokio::test]
    async fn the_embedded_kafka_keeps_everything_that_the_demo_produces() {
        everything_produced_can_be_consumed(100_000).await;
    }

    #[tokio::test]
    async fn a_kafka_that_is_not_there_ends_the_producing_with_a_sentence() {
        let plan = Arc::new(Plan::new(2_000, 8, 1));
        let mut producing = Producing::start("127.0.0.1:1", "demo", plan).unwrap();
        producing.given_up.store(true, Ordering::Relaxed);
        assert_eq!(
            producing.finish().await.unwrap_err().to_string(),
            "given up"
        );
    }
}
