//! How the client fares: connected or not, the ends of partitions, errors, each logged once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode;
use serde::Deserialize;

use super::desk::lock;
use super::mailbox::Mailbox;
use crate::event::TopicPartition;

/// How long the same kind of error is not logged again.
const QUIET: Duration = Duration::from_secs(60);

/// How long a broker may leave requests unanswered. One that is read from answers several times a
/// second.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Of the client's statistics only what is used.
#[derive(Deserialize)]
struct Statistics {
    #[serde(default)]
    brokers: HashMap<String, Broker>,
    #[serde(default)]
    topics: HashMap<String, Topic>,
}

#[derive(Deserialize)]
struct Broker {
    state: String,
    /// Requests without an answer.
    #[serde(default)]
    waitresp_cnt: i64,
    /// Microseconds since anything came; -1 if nothing ever did.
    #[serde(default)]
    rxidle: i64,
}

impl Broker {
    /// A connection that stands proves little: one that a network swallowed stands for minutes.
    fn answers(&self) -> bool {
        let is_silent = self.waitresp_cnt > 0 && self.rxidle > SILENCE_MAX.as_micros() as i64;
        self.state == "UP" && !is_silent
    }
}

#[derive(Deserialize)]
struct Topic {
    #[serde(default)]
    partitions: HashMap<String, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    partition: i32,
    hi_offset: i64,
    ls_offset: i64,
}

#[derive(Default)]
struct Observed {
    connected: bool,
    last_error: Option<String>,
    /// A topic that does not exist.
    waiting: Option<String>,
    ends: HashMap<TopicPartition, i64>,
    logged: HashMap<String, Instant>,
    failed_commits: u64,
    rebalances: u64,
    closed: bool,
}

/// A copy of what is known, for [`super::KafkaState`].
pub(super) struct Snapshot {
    pub(super) connected: bool,
    pub(super) last_error: Option<String>,
    pub(super) waiting: Option<String>,
    pub(super) failed_commits: u64,
    pub(super) rebalances: u64,
    pub(super) closed: bool,
}

/// How the client fares.
pub(super) struct Health {
    observed: Mutex<Observed>,
    mailboxes: Vec<Arc<Mailbox>>,
    reads_uncommitted: bool,
}

impl Health {
    pub(super) fn new(mailboxes: Vec<Arc<Mailbox>>, reads_uncommitted: bool) -> Self {
        Self {
            observed: Mutex::default(),
            mailboxes,
            reads_uncommitted,
        }
    }

    /// Takes in an error that the client reports by itself.
    pub(super) fn error(&self, code: RDKafkaErrorCode, reason: &str) {
        use RDKafkaErrorCode as Code;
        match code {
            // The first is no error, the second has its own way, see the reader.
            Code::PartitionEOF | Code::AutoOffsetReset => {}
            Code::AllBrokersDown => self.connected(false),
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                self.waiting(reason);
            }
            Code::PollExceeded => self.warn(
                "poll",
                &format!(
                    "the group took this member's partitions, it was not heard of in time: {reason}"
                ),
            ),
            _ => match advice(code) {
                Some(advice) => self.fail(&format!("Kafka: {reason}: {advice}")),
                None => self.warn(&format!("{code:?}"), &format!("Kafka: {reason}")),
            },
        }
    }

    /// Notes whether a broker can be reached; logs the change.
    pub(super) fn connected(&self, connected: bool) {
        let mut observed = lock(&self.observed);
        if std::mem::replace(&mut observed.connected, connected) == connected {
            return;
        }
        if connected {
            tracing::info!("connected to Kafka");
        } else {
            let cause = observed.last_error.clone().unwrap_or_default();
            tracing::warn!(cause, "no Kafka broker can be reached; trying on");
        }
    }

    fn waiting(&self, reason: &str) {
        let sentence = format!("{reason}: waiting for the topic");
        let known = lock(&self.observed).waiting.replace(sentence.clone());
        if known.as_ref() != Some(&sentence) {
            tracing::warn!("{sentence}");
        }
    }

    /// Logs once in a while and remembers.
    pub(super) fn warn(&self, kind: &str, sentence: &str) {
        let mut observed = lock(&self.observed);
        observed.last_error = Some(sentence.to_owned());
        let now = Instant::now();
        let last = observed.logged.get(kind).copied();
        if last.is_none_or(|last| now.duration_since(last) >= QUIET) {
            observed.logged.insert(kind.to_owned(), now);
            tracing::warn!("{sentence}");
        } else {
            tracing::debug!("{sentence}");
        }
    }

    /// Nothing but a person will mend it: every worker meets it.
    pub(super) fn fail(&self, sentence: &str) {
        lock(&self.observed).last_error = Some(sentence.to_owned());
        for mailbox in &self.mailboxes {
            mailbox.fail(sentence);
        }
    }

    /// A commit to the log that was not taken: a hint lost, nothing more.
    pub(super) fn commit_failed(&self, error: &rdkafka::error::KafkaError) {
        lock(&self.observed).failed_commits += 1;
        self.warn(
            "commit",
            &format!("offsets were not committed to Kafka, Postgres has them: {error}"),
        );
    }

    /// Notes that partitions came or went, by the word of a broker or for want of it.
    pub(super) fn rebalanced(&self, told_by_broker: bool) {
        let mut observed = lock(&self.observed);
        observed.rebalances += 1;
        observed.waiting = None;
        drop(observed);
        if told_by_broker {
            self.connected(true);
        }
    }

    pub(super) fn saw_end(&self, at: &TopicPartition, end: i64) {
        lock(&self.observed).ends.insert(at.clone(), end);
    }

    pub(super) fn close(&self) {
        let mut observed = lock(&self.observed);
        (observed.closed, observed.connected) = (true, false);
    }

    /// Takes in the client's statistics. What cannot be read is left as it was.
    pub(super) fn statistics(&self, json: &[u8]) {
        let statistics: Statistics = match serde_json::from_slice(json) {
            Ok(statistics) => statistics,
            Err(error) => {
                return self.warn("statistics", &format!("librdkafka's statistics: {error}"));
            }
        };
        self.connected(statistics.brokers.values().any(Broker::answers));
        let mut observed = lock(&self.observed);
        for (topic, of) in &statistics.topics {
            let topic: Arc<str> = topic.as_str().into();
            for partition in of.partitions.values() {
                let end = if self.reads_uncommitted {
                    partition.hi_offset
                } else {
                    partition.ls_offset
                };
                if partition.partition >= 0 && end >= 0 {
                    let at = TopicPartition::new(Arc::clone(&topic), partition.partition);
                    observed.ends.insert(at, end);
                }
            }
        }
    }

    pub(super) fn end(&self, at: &TopicPartition) -> Option<i64> {
        lock(&self.observed).ends.get(at).copied()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let observed = lock(&self.observed);
        Snapshot {
            connected: observed.connected,
            last_error: observed.last_error.clone(),
            waiting: observed.waiting.clone(),
            failed_commits: observed.failed_commits,
            rebalances: observed.rebalances,
            closed: observed.closed,
        }
    }
}

/// What a person has to do about an error that time does not mend.
fn advice(code: RDKafkaErrorCode) -> Option<&'static str> {
    use RDKafkaErrorCode as Code;
    Some(match code {
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState => "check the credentials and mechanism in kafka.properties",
        Code::TopicAuthorizationFailed => "this user may not read the topic: grant READ on it",
        Code::GroupAuthorizationFailed => "this user may not use the group: grant READ on it",
        Code::ClusterAuthorizationFailed => "this user may not do that on the cluster",
        Code::InvalidGroupId => "the broker refuses the group's name: change kafka.group",
        Code::InconsistentGroupProtocol => {
            "other members of the group use another partition.assignment.strategy: use the same in kafka.properties"
        }
        Code::UnsupportedAssignor => "the broker does not know the assignor in kafka.properties",
        Code::Fatal | Code::Fenced | Code::FencedInstanceId => {
            "the client cannot go on; does another process use the same group.instance.id?"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_tell_ends_and_whether_a_broker_is_up() {
        let json = br#"{"type":"consumer","brokers":{"a":{"state":"DOWN"},"b":{"state":"UP"}},
            "topics":{"t":{"partitions":{
                "0":{"partition":0,"hi_offset":9,"ls_offset":7},
                "1":{"partition":1,"hi_offset":-1001,"ls_offset":-1001},
                "-1":{"partition":-1,"hi_offset":3,"ls_offset":3}}}}}"#;
        for (reads_uncommitted, end) in [(false, 7), (true, 9)] {
            let health = Health::new(Vec::new(), reads_uncommitted);
            health.statistics(json);
            let ends = [0, 1, -1].map(|p| health.end(&TopicPartition::new("t", p)));
            assert_eq!(ends, [Some(end), None, None]);
            assert!(health.snapshot().connected);
        }
    }

    #[test]
    fn a_broker_that_leaves_requests_unanswered_is_not_connected() {
        let broker = |waiting: i64, idle_us: i64| {
            format!(
                r#"{{"brokers":{{"a":{{"state":"UP","waitresp_cnt":{waiting},"rxidle":{idle_us}}}}}}}"#
            )
        };
        let health = Health::new(Vec::new(), false);
        for (json, connected) in [
            (broker(1, 5_000_001), false),
            (broker(1, 4_999_999), true),
            (broker(0, 60_000_000), true),
            (broker(1, -1), true),
        ] {
            health.statistics(json.as_bytes());
            assert_eq!(health.snapshot().connected, connected, "{json}");
        }
    }

    #[test]
    fn statistics_that_cannot_be_read_change_nothing() {
        let health = Health::new(Vec::new(), false);
        health.connected(true);
        health.statistics(b"{");
        let snapshot = health.snapshot();
        assert!(snapshot.connected);
        assert!(
            snapshot
                .last_error
                .is_some_and(|e| e.contains("statistics"))
        );
    }
}
