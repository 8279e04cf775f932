//! What the source must know, and what becomes of it in the client.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::error::Error;

/// Where a topic begins that was never read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the first record that the log still holds.
    Earliest,
    /// Behind the last record; under `read_committed` behind the last stable one.
    Latest,
    /// At the group's committed offsets; a partition without one is an error.
    Committed,
    /// At this offset in every partition; outside of the log it is an error.
    Offset(i64),
    /// At the first record that is not older, in milliseconds since the epoch; the end of the log
    /// where there is none.
    TimestampMs(i64),
}

/// Settings of the Kafka source.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// `host:port` of one or more brokers, separated by commas.
    pub brokers: String,
    /// The consumer group.
    pub group: String,
    /// Names, or patterns that begin with `^`.
    pub topics: Vec<String>,
    /// Where a topic begins that was never read before.
    pub start: Start,
    /// What the client calls itself; also written into the metadata of commits.
    pub client_id: String,
    /// Any further property of librdkafka.
    pub properties: BTreeMap<String, String>,
    /// A batch is full with this many records.
    pub max_events: usize,
    /// A batch is full with this many bytes; a larger record is a batch alone.
    pub max_bytes: usize,
    /// The longest that a record waits for others while its worker is idle.
    pub max_wait: Duration,
    /// Bytes of records read and not yet finished, over all workers.
    pub in_flight_bytes: usize,
    /// The longest that a revocation or the end waits for workers to let go.
    pub drain_timeout: Duration,
}

/// Properties that are ours, and what to use instead.
const OWNED: [(&str, &str); 8] = [
    ("group.id", "set kafka.group"),
    ("bootstrap.servers", "set kafka.brokers"),
    ("metadata.broker.list", "set kafka.brokers"),
    (
        "enable.auto.commit",
        "leave it out: offsets are committed behind their effects",
    ),
    (
        "auto.commit.enable",
        "leave it out: offsets are committed behind their effects",
    ),
    (
        "enable.auto.offset.store",
        "leave it out: offsets are committed behind their effects",
    ),
    ("auto.offset.reset", "set kafka.start"),
    (
        "enable.partition.eof",
        "leave it out: the end of a partition moves its position",
    ),
];

/// librdkafka's default for `session.timeout.ms`.
const SESSION_TIMEOUT_MS: u64 = 45_000;

/// The client's word on settings that it does not take. A property's value is left out: it may be
/// a password under a mistyped name.
pub(super) fn refused(error: &KafkaError) -> Error {
    let reason = match error {
        KafkaError::ClientConfig(_, reason, key, _) => {
            format!("{reason} (kafka.properties.{key})")
        }
        other => other.to_string(),
    };
    Error::fatal(format!(
        "the Kafka client refuses its settings: {reason}; see [kafka] and kafka.properties"
    ))
}

impl KafkaSettings {
    /// Settings with defaults for everything that has one.
    pub fn new(
        brokers: impl Into<String>,
        group: impl Into<String>,
        topics: Vec<String>,
        start: Start,
    ) -> Self {
        Self {
            brokers: brokers.into(),
            group: group.into(),
            topics,
            start,
            client_id: "onceonly".into(),
            properties: BTreeMap::new(),
            max_events: 5_000,
            max_bytes: 8 << 20,
            max_wait: Duration::from_millis(20),
            in_flight_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(5),
        }
    }

    /// The client's configuration. Fatal where a setting contradicts what the source promises.
    pub(super) fn client_config(&self) -> Result<ClientConfig, Error> {
        self.check()?;
        let mut config = ClientConfig::new();
        self.set_defaults(&mut config);
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        config
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // A position outside of the log is for a person to decide about.
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true");
        Ok(config)
    }

    fn set_defaults(&self, config: &mut ClientConfig) {
        // What the client has fetched lies beside what is in flight.
        let queued_kbytes = (self.in_flight_bytes / 2048).clamp(1024, 1 << 20);
        let fetch_bytes = (self.in_flight_bytes / 4).clamp(2 << 20, 50 << 20);
        config
            .set("client.id", &self.client_id)
            .set("isolation.level", "read_committed")
            .set("queued.max.messages.kbytes", queued_kbytes.to_string())
            .set("fetch.max.bytes", fetch_bytes.to_string())
            // The default of a second is how long a partition stands still once a queue was full.
            .set("fetch.queue.backoff.ms", "20")
            .set("fetch.wait.max.ms", "100")
            .set("statistics.interval.ms", "5000")
            // How soon a topic is found that was missing, or that a pattern meets.
            .set("topic.metadata.refresh.interval.ms", "30000");
        if self.property("group.protocol") != Some("consumer") {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
    }

    fn check(&self) -> Result<(), Error> {
        if self.topics.is_empty() {
            return Err(Error::fatal(
                "kafka.topics is empty: name a topic, or a pattern that begins with ^",
            ));
        }
        if let Some(topic) = self.topics.iter().find(|t| t.contains('\0')) {
            return Err(Error::fatal(format!(
                "kafka.topics: {topic:?} is no name of a topic"
            )));
        }
        for (key, instead) in OWNED {
            if self.properties.contains_key(key) {
                return Err(Error::fatal(format!(
                    "kafka.properties: {key} cannot be set there: {instead}"
                )));
            }
        }
        let session_ms = match self.property("session.timeout.ms") {
            None => SESSION_TIMEOUT_MS,
            Some(text) => text.parse().map_err(|_| {
                Error::fatal(format!(
                    "kafka.properties: session.timeout.ms is {text:?}, which is no number of milliseconds"
                ))
            })?,
        };
        let drain_ms = self.drain_timeout.as_millis();
        if drain_ms >= u128::from(session_ms) {
            return Err(Error::fatal(format!(
                "letting partitions go may take {drain_ms} ms, but the group forgets a member after \
                 {session_ms} ms: allow less for it, or raise session.timeout.ms in kafka.properties"
            )));
        }
        Ok(())
    }

    pub(super) fn property(&self, key: &str) -> Option<&str> {
        self.properties.get(key).map(String::as_str)
    }

    /// Whether records of open transactions are delivered.
    pub(super) fn reads_uncommitted(&self) -> bool {
        self.property("isolation.level") == Some("read_uncommitted")
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::consumer::BaseConsumer;

    use super::*;

    fn settings() -> KafkaSettings {
        KafkaSettings::new("localhost:1", "g", vec!["t".into()], Start::Earliest)
    }

    fn with(key: &str, value: &str) -> KafkaSettings {
        let mut settings = settings();
        settings.properties.insert(key.into(), value.into());
        settings
    }

    #[test]
    fn the_value_of_a_refused_property_is_not_told() {
        let config = with("sasl.pasword", "hunter2").client_config().unwrap();
        let refusal = config.create::<BaseConsumer>().map(drop).unwrap_err();
        let told = refused(&refusal).to_string();
        assert!(told.contains("kafka.properties.sasl.pasword"), "{told}");
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[test]
    fn tls_and_sasl_are_compiled_in() {
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] {
            let mut settings = with("security.protocol", "sasl_ssl");
            let properties = [
                ("sasl.mechanism", mechanism),
                ("sasl.username", "u"),
                ("sasl.password", "p"),
            ];
            for (key, value) in properties {
                settings.properties.insert(key.into(), value.into());
            }
            let client = settings.client_config().unwrap().create::<BaseConsumer>();
            assert!(client.is_ok(), "{mechanism}: {:?}", client.err());
        }
    }

    #[test]
    fn what_keeps_the_promises_is_set_and_the_rest_can_be_overridden() {
        let config = with("isolation.level", "read_uncommitted")
            .client_config()
            .unwrap();
        let pairs = [
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("enable.partition.eof", "true"),
            ("partition.assignment.strategy", "cooperative-sticky"),
            ("queued.max.messages.kbytes", "32768"),
            ("isolation.level", "read_uncommitted"),
        ];
        for (key, value) in pairs {
            assert_eq!(config.get(key), Some(value), "{key}");
        }
    }

    #[test]
    fn a_property_that_is_ours_is_refused_with_what_to_use_instead() {
        for (key, instead) in OWNED {
            let error = with(key, "x").client_config().unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(instead), "{error}");
        }
    }

    #[test]
    fn a_drain_as_long_as_the_session_is_refused() {
        let error = with("session.timeout.ms", "5000")
            .client_config()
            .unwrap_err();
        assert!(error.to_string().contains("5000 ms"), "{error}");
        assert!(with("session.timeout.ms", "5001").client_config().is_ok());
    }

    #[test]
    fn the_new_group_protocol_gets_no_assignor() {
        let config = with("group.protocol", "consumer").client_config().unwrap();
        assert_eq!(config.get("partition.assignment.strategy"), None);
    }
}
