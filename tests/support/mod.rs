//! What tests against real services share: where they are, names of their own, topics and records.

#![allow(dead_code)] // each test binary uses a part

#[cfg(feature = "cli")]
pub mod command;
pub mod database;
pub mod filter_suite;
pub mod ledger_suite;
pub mod line;
pub mod logs;
pub mod pooler;
pub mod postgres_server;
pub mod proxy;
pub mod redis_server;
pub mod rotation;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use uuid::Uuid;

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// An address that the environment has to give.
///
/// A test without its service fails: one that skipped would look like one that passed.
pub fn service(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!(
            "{variable} is not set, so there is no such service to test with; run \
             `make stack-up`, then `eval \"$(compose/stack env)\"`, or `make test` for both"
        )
    })
}

/// Kafka's addresses.
pub fn brokers() -> String {
    service("KAFKA_BROKERS")
}

/// A name that no other test has.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", Uuid::new_v4().simple())
}

/// A port below those that the system gives to anyone: a server keeps it while it is down.
pub fn free_port() -> u16 {
    let mut candidates = (0..1000).map(|_| rand::random_range(10_000..32_000));
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    candidates.find(is_free).expect("a free port")
}

/// A client's configuration that names only the brokers.
pub fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

/// An admin client of the shared broker.
pub fn admin() -> AdminClient<DefaultClientContext> {
    client(&brokers()).create().expect("an admin client")
}

/// Creates a topic with a name of its own.
pub async fn topic(prefix: &str, partitions: i32) -> String {
    let name = unique(prefix);
    create_topic(&name, partitions, &[]).await;
    name
}

/// Creates a topic.
pub async fn create_topic(name: &str, partitions: i32, configs: &[(&str, &str)]) {
    let topic = configs.iter().fold(
        NewTopic::new(name, partitions, TopicReplication::Fixed(1)),
        |topic, (key, value)| topic.set(key, value),
    );
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let results = admin()
        .create_topics([&topic], &options)
        .await
        .expect("an answer to create_topics");
    for result in results {
        result.expect("a topic created");
    }
}

/// Deletes a topic.
pub async fn delete_topic(name: &str) {
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let results = admin()
        .delete_topics(&[name], &options)
        .await
        .expect("an answer to delete_topics");
    for result in results {
        result.expect("a topic deleted");
    }
}

/// A producer whose records wait for nothing, with further properties.
pub fn producer(brokers: &str, properties: &[(&str, &str)]) -> TestProducer {
    let mut config = client(brokers);
    config.set("linger.ms", "0");
    for (key, value) in properties {
        config.set(*key, *value);
    }
    TestProducer(config.create().expect("a producer"))
}

/// Sends records and waits until they are in the log.
pub struct TestProducer(pub ThreadedProducer<DefaultProducerContext>);

impl TestProducer {
    /// Sends one record with a header `event-id` that repeats its payload.
    pub fn send(&self, topic: &str, partition: i32, payload: &str) {
        let header = Header {
            key: "event-id",
            value: Some(payload),
        };
        let record = BaseRecord::to(topic)
            .partition(partition)
            .key(payload)
            .payload(payload)
            .headers(OwnedHeaders::new().insert(header));
        self.0
            .send(record)
            .map_err(|(error, _)| error)
            .expect("room in the producer's queue");
    }

    /// Sends an event with a small JSON body; its id stands in the header `event-id`.
    pub fn send_json(&self, topic: &str, partition: i32, id: &str) {
        let body = format!(
            r#"{{"id": "{id}", "customer": "c-{}", "amount": "12.50"}}"#,
            id.len()
        );
        self.send_body(topic, partition, id, &body);
    }

    /// Sends an event with a body; its id stands in the header `event-id`.
    pub fn send_body(&self, topic: &str, partition: i32, id: &str, body: &str) {
        let header = Header {
            key: "event-id",
            value: Some(id),
        };
        let record = BaseRecord::<str, str>::to(topic)
            .partition(partition)
            .payload(body)
            .headers(OwnedHeaders::new().insert(header));
        self.0
            .send(record)
            .map_err(|(error, _)| error)
            .expect("room in the producer's queue");
    }

    /// Sends records, each to the partition given, and waits until all are in the log.
    pub fn send_all<'a>(
        &self,
        topic: &str,
        partition: i32,
        payloads: impl IntoIterator<Item = &'a str>,
    ) {
        for payload in payloads {
            self.send(topic, partition, payload);
        }
        self.flush();
    }

    /// Waits until everything sent is in the log.
    pub fn flush(&self) {
        self.0.flush(PATIENCE).expect("records in the log");
    }
}

/// Creates a topic whose name a topic had that is being deleted.
pub async fn create_topic_when_free(name: &str, partitions: i32) {
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let begun = Instant::now();
    loop {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let results = admin()
            .create_topics([&topic], &options)
            .await
            .expect("an answer to create_topics");
        if results.iter().all(Result::is_ok) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{name}: {results:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Deletes a partition's records before an offset.
pub async fn delete_records(topic: &str, partition: i32, before: i64) {
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(topic, partition, Offset::Offset(before))
        .expect("an offset");
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let answer = admin().delete_records(&offsets, &options).await;
    let answer = answer.expect("an answer to delete_records");
    for element in answer.elements() {
        element.error().expect("records deleted");
    }
}

/// What a group has committed for each partition of a topic; negative where it has nothing.
pub fn committed(group: &str, topic: &str, partitions: i32) -> Vec<i64> {
    let consumer: BaseConsumer = client(&brokers())
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition(topic, partition);
    }
    let list = consumer
        .committed_offsets(list, PATIENCE)
        .expect("an answer");
    let offset = |offset: Offset| offset.to_raw().unwrap_or(-1);
    list.elements().iter().map(|e| offset(e.offset())).collect()
}

/// Commits an offset with metadata of any bytes, which no client library writes: one request of
/// Kafka's protocol (OffsetCommit, version 2), to a cluster of one broker.
pub fn commit_bytes(
    brokers: &str,
    group: &str,
    topic: &str,
    partition: i32,
    offset: i64,
    metadata: &[u8],
) {
    fn string(into: &mut Vec<u8>, bytes: &[u8]) {
        into.extend_from_slice(&(bytes.len() as i16).to_be_bytes());
        into.extend_from_slice(bytes);
    }
    let mut request = Vec::new();
    // The API's key and version, the request's number, the client's name.
    request.extend_from_slice(&[0, 8, 0, 2, 0, 0, 0, 1]);
    string(&mut request, b"test");
    string(&mut request, group.as_bytes());
    request.extend_from_slice(&(-1_i32).to_be_bytes()); // no generation
    string(&mut request, b""); // no member
    request.extend_from_slice(&(-1_i64).to_be_bytes()); // kept as long as others
    request.extend_from_slice(&1_i32.to_be_bytes());
    string(&mut request, topic.as_bytes());
    request.extend_from_slice(&1_i32.to_be_bytes());
    request.extend_from_slice(&partition.to_be_bytes());
    request.extend_from_slice(&offset.to_be_bytes());
    string(&mut request, metadata);

    let mut connection = TcpStream::connect(brokers).expect("a connection");
    let size = (request.len() as i32).to_be_bytes();
    connection
        .write_all(&[&size[..], &request].concat())
        .expect("a request sent");
    let mut size = [0; 4];
    connection.read_exact(&mut size).expect("an answer");
    let mut answer = vec![0; i32::from_be_bytes(size) as usize];
    connection
        .read_exact(&mut answer)
        .expect("the whole answer");
    let code = answer
        .last_chunk::<2>()
        .map(|code| i16::from_be_bytes(*code));
    assert_eq!(code, Some(0), "the commit was taken");
}
