//! A member of its own group over a topic and a database of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use onceonly::config::{Config, PayloadKind};
use onceonly::handler::sql::{PayloadKind as SqlPayload, SqlHandler, SqlSettings};
use onceonly::member::Member;
use onceonly::outcome::Outcome;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use sqlx::Row;
use tokio_util::sync::CancellationToken;

use super::database::Database;
use super::{PATIENCE, TestProducer, brokers, create_topic, producer, service, unique};

/// The largest record that a topic of [`Line`] takes.
const RECORD_BYTES_MAX: &str = "20000000";

/// What a member reads and writes.
pub struct Line {
    /// Where effects land.
    pub database: Database,
    /// What is read.
    pub topics: Vec<String>,
    producer: TestProducer,
}

impl Line {
    /// Topics of so many partitions, and an empty database.
    pub async fn new(topics: usize, partitions: i32) -> Self {
        Self::configured(topics, partitions, &[]).await
    }

    /// The same with further properties of the topics.
    pub async fn configured(topics: usize, partitions: i32, more: &[(&str, &str)]) -> Self {
        let topics: Vec<String> = (0..topics).map(|_| unique("line")).collect();
        let configs = [&[("max.message.bytes", RECORD_BYTES_MAX)], more].concat();
        for topic in &topics {
            create_topic(topic, partitions, &configs).await;
        }
        let limit = [("message.max.bytes", RECORD_BYTES_MAX), ("linger.ms", "5")];
        Self {
            database: Database::migrated().await,
            topics,
            producer: producer(&brokers(), &limit),
        }
    }

    /// Sends records to a partition of the first topic, and waits until they are in the log.
    pub fn send(&self, partition: i32, records: &[Record]) {
        self.send_to(0, partition, records);
    }

    /// Sends records to a partition, and waits until they are in the log.
    pub fn send_to(&self, topic: usize, partition: i32, records: &[Record]) {
        for record in records {
            self.producer
                .send_record(&self.topics[topic], partition, record);
        }
        tokio::task::block_in_place(|| self.producer.flush());
    }

    /// The configuration, with further sections and with Redis if asked for.
    pub fn config(&self, redis: bool, more: &str) -> Config {
        let text = self.config_text(redis, more);
        Config::from_toml(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same as text.
    pub fn config_text(&self, redis: bool, more: &str) -> String {
        let redis = match redis {
            true => format!("[redis]\nurl = \"{}\"\n", service("REDIS_URL")),
            false => String::new(),
        };
        format!(
            "pipeline = \"{group}\"\n[kafka]\nbrokers = \"{brokers}\"\ntopics = {topics:?}\n\
             start = \"earliest\"\n[postgres]\nurl = \"{url}\"\n[batch]\nmax_wait = \"300ms\"\n\
             {redis}{more}",
            group = self.topics[0],
            brokers = brokers(),
            topics = self.topics,
            url = self.database.url(),
        )
    }

    /// Runs a member until so many records have an outcome.
    pub async fn consume(&self, config: &Config, records: i64) {
        let query = format!(
            "select coalesce(sum({}), 0) = {records} from onceonly.position",
            Outcome::ALL.map(Outcome::name).join(" + ")
        );
        self.run_until(config, "every record has an outcome", &query)
            .await;
        assert_eq!(
            self.consumed().await,
            records,
            "{:?}",
            self.outcomes().await
        );
    }

    /// Runs a member until a query says true.
    pub async fn run_until(&self, config: &Config, what: &str, query: &str) {
        let member = Member::join(config, handler(config)).expect("a member");
        let end = CancellationToken::new();
        let running = tokio::spawn(member.run(end.clone()));
        self.until(what, query).await;
        end.cancel();
        running.await.expect("no panic").expect("a clean end");
    }

    /// Records that have an outcome.
    pub async fn consumed(&self) -> i64 {
        let outcomes = self.outcomes().await;
        let counts = outcomes.iter().filter(|(name, _)| **name != "conflicts");
        counts.map(|(_, count)| count).sum()
    }

    /// Waits until a query says true.
    pub async fn until(&self, what: &str, query: &str) {
        let begun = Instant::now();
        while !self.database.value::<bool>(query).await {
            assert!(
                begun.elapsed() < PATIENCE,
                "never came true: {what}; outcomes: {:?}",
                self.outcomes().await
            );
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// The outcomes that any record had, with `conflicts` beside them.
    pub async fn outcomes(&self) -> BTreeMap<&'static str, i64> {
        let rows = self.database.rows("select * from onceonly.position").await;
        let names = Outcome::ALL
            .map(Outcome::name)
            .into_iter()
            .chain(["conflicts"]);
        names
            .map(|name| (name, rows.iter().map(|row| row.get::<i64, _>(name)).sum()))
            .filter(|(_, count)| *count != 0)
            .collect()
    }

    /// The ids with an effect in the default sink, in order, as often as they have one.
    pub async fn effects(&self) -> Vec<String> {
        self.texts("select event_id from onceonly.event order by event_id collate \"C\"")
            .await
    }

    /// Id and code of each dead letter, in the order read.
    pub async fn dead(&self) -> Vec<(String, String)> {
        let query = "select event_id, errors->-1->>'code' as code from onceonly.dead_letter \
                     order by kafka_topic, kafka_partition, kafka_offset";
        let rows = self.database.rows(query).await;
        rows.iter()
            .map(|row| (row.get("event_id"), row.get("code")))
            .collect()
    }

    /// The texts of a query's only column.
    pub async fn texts(&self, query: &str) -> Vec<String> {
        let rows = self.database.rows(query).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// In how many transactions ids were claimed.
    pub async fn transactions(&self) -> i64 {
        self.database
            .value("select count(distinct applied_at) from onceonly.ledger")
            .await
    }
}

/// The handler that the configuration names.
pub fn handler(config: &Config) -> SqlHandler {
    SqlHandler::new(SqlSettings {
        statements: config.handler.statements.clone(),
        payload: match config.handler.payload {
            PayloadKind::Json => SqlPayload::Json,
            PayloadKind::Text => SqlPayload::Text,
            PayloadKind::Bytes => SqlPayload::Bytes,
        },
        max_event_bytes: config.limits.max_event_bytes,
        schema: config.postgres.schema.clone(),
    })
    .expect("a handler")
}

/// A record to send: any bytes, or none.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The Kafka key.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub payload: Option<Vec<u8>>,
    /// Headers in order.
    pub headers: Vec<(&'static str, Option<Vec<u8>>)>,
}

impl Record {
    /// A record with its id in the header `event-id`, a key, and a value.
    pub fn new(id: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            key: Some(b"k".to_vec()),
            payload: Some(payload.as_ref().to_vec()),
            headers: vec![("event-id", Some(id.as_ref().to_vec()))],
        }
    }

    /// An event that nothing is wrong with.
    pub fn good(id: &str) -> Self {
        Self::new(id, br#"{"amount": "1.50"}"#)
    }

    /// A record with a value alone.
    pub fn bare(payload: impl AsRef<[u8]>) -> Self {
        Self {
            payload: Some(payload.as_ref().to_vec()),
            ..Self::default()
        }
    }

    /// The same with another value.
    pub fn with_payload(self, payload: Option<&[u8]>) -> Self {
        Self {
            payload: payload.map(<[u8]>::to_vec),
            ..self
        }
    }

    /// The same with other headers.
    pub fn with_headers(self, headers: &[(&'static str, Option<&[u8]>)]) -> Self {
        let owned = |&(name, value): &(_, Option<&[u8]>)| (name, value.map(<[u8]>::to_vec));
        Self {
            headers: headers.iter().map(owned).collect(),
            ..self
        }
    }

    /// The same with another key.
    pub fn with_key(self, key: Option<&[u8]>) -> Self {
        Self {
            key: key.map(<[u8]>::to_vec),
            ..self
        }
    }
}

impl TestProducer {
    /// Sends a record as it is.
    pub fn send_record(&self, topic: &str, partition: i32, record: &Record) {
        let mut headers = OwnedHeaders::new();
        for (key, value) in &record.headers {
            let value = value.as_deref();
            headers = headers.insert(Header { key, value });
        }
        let mut sent = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(partition)
            .headers(headers);
        sent.key = record.key.as_deref();
        sent.payload = record.payload.as_deref();
        self.0
            .send(sent)
            .map_err(|(error, _)| error)
            .expect("room in the producer's queue");
    }
}
