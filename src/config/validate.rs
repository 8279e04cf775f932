//! What values can work: a sentence for each bound.

use std::time::Duration;

use super::kafka::owned;
use super::statement::first_word;
use super::{Config, ConfigError, Gateway};
use crate::span::text;

mod services;

use services::{check_postgres, check_redis, check_redis_url};

const DAY: Duration = Duration::from_hours(24);
const KIB: usize = 1024;
const GIB: usize = 1024 * 1024 * KIB;

type Problems = Vec<(&'static str, String)>;

impl Config {
    /// Whether the values can work together. What [`super::Layers`] returns has passed.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let problems = self.problems();
        if problems.is_empty() {
            return Ok(());
        }
        let sentences = problems.into_iter().map(|(_, sentence)| sentence);
        Err(ConfigError::Invalid(sentences.collect()))
    }

    /// Each key that cannot be what it is, and why.
    pub(super) fn problems(&self) -> Problems {
        let mut problems = Problems::new();
        check_pipeline(self, &mut problems);
        check_kafka(self, &mut problems);
        check_postgres(self, &mut problems);
        if let Some(redis) = &self.redis {
            check_redis(self, redis, &mut problems);
        }
        if let Some(url) = &self.coordination.redis_url {
            check_redis_url("coordination.redis_url", url, &mut problems);
        }
        check_dedup(self, &mut problems);
        check_handler(self, &mut problems);
        check_retry(self, &mut problems);
        check_batch(self, &mut problems);
        check_limits(self, &mut problems);
        if let Some(gateway) = &self.gateway {
            check_gateway(gateway, &mut problems);
        }
        within(
            "shutdown.timeout",
            self.shutdown.timeout,
            Duration::from_secs(1),
            DAY,
            &mut problems,
        );
        problems
    }
}

fn refuse(problems: &mut Problems, key: &'static str, why: impl std::fmt::Display) {
    problems.push((key, format!("`{key}` {why}")));
}

fn within(
    key: &'static str,
    value: Duration,
    low: Duration,
    high: Duration,
    problems: &mut Problems,
) {
    if !(low..=high).contains(&value) {
        let (value, low, high) = (text(value), text(low), text(high));
        refuse(
            problems,
            key,
            format!("is {value}, and must be from {low} to {high}"),
        );
    }
}

fn counted(key: &'static str, value: usize, low: usize, high: usize, problems: &mut Problems) {
    if !(low..=high).contains(&value) {
        refuse(
            problems,
            key,
            format!("is {value}, and must be from {low} to {high}"),
        );
    }
}

fn sized(key: &'static str, value: usize, low: usize, high: usize, problems: &mut Problems) {
    if !(low..=high).contains(&value) {
        let [value, low, high] = [value, low, high].map(|size| bytesize::ByteSize(size as u64));
        refuse(
            problems,
            key,
            format!("is {value}, and must be from {low} to {high}"),
        );
    }
}

fn check_pipeline(config: &Config, problems: &mut Problems) {
    let name = &config.pipeline;
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let consists = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if !begins || !name.chars().all(consists) || name.len() > 63 {
        refuse(
            problems,
            "pipeline",
            format!(
                "is `{name}`; a name has 1 to 63 small letters, digits, `_` and `-`, and begins with \
                 a letter or digit"
            ),
        );
    }
}

fn check_kafka(config: &Config, problems: &mut Problems) {
    let kafka = &config.kafka;
    if kafka
        .brokers
        .split(',')
        .any(|broker| broker.trim().is_empty())
    {
        refuse(
            problems,
            "kafka.brokers",
            "has no broker, or an empty one between commas",
        );
    }
    if kafka
        .group
        .as_ref()
        .is_some_and(|group| group.trim().is_empty())
    {
        refuse(
            problems,
            "kafka.group",
            "is empty; leave it out to use the pipeline's name",
        );
    }
    check_topics("kafka.topics", &kafka.topics, true, problems);
    if kafka.has_several_topics() && config.identity.scope.is_none() {
        refuse(
            problems,
            "identity.scope",
            "must be chosen where there is more than one topic or a pattern: `pipeline` if the same id \
             on two topics is one event, `topic` if it is two",
        );
    }
    for (name, _) in kafka.properties.iter() {
        if let Some(instead) = owned(name) {
            let sentence =
                format!("`{name}` in `kafka.properties` is the pipeline's own: {instead}");
            problems.push(("kafka.properties", sentence));
        }
    }
}

fn check_topics(key: &'static str, topics: &[String], patterns: bool, problems: &mut Problems) {
    if topics.is_empty() {
        refuse(problems, key, "names no topic");
    }
    for (i, topic) in topics.iter().enumerate() {
        let consists = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name = (1..=249).contains(&topic.len())
            && topic.chars().all(consists)
            && topic != "."
            && topic != "..";
        let is_pattern = patterns && topic.starts_with('^') && topic.len() > 1;
        if !is_name && !is_pattern {
            let hint = if patterns {
                "; a pattern begins with `^`"
            } else {
                ""
            };
            refuse(
                problems,
                key,
                format!("has `{topic}`, which is no topic's name{hint}"),
            );
        }
        if topics.iter().take(i).any(|earlier| earlier == topic) {
            refuse(problems, key, format!("names `{topic}` twice"));
        }
    }
}

fn check_dedup(config: &Config, problems: &mut Problems) {
    let retention = config.dedup.retention;
    within(
        "dedup.retention",
        retention,
        Duration::from_secs(1),
        3_650 * DAY,
        problems,
    );
    counted(
        "dedup.generations",
        config.dedup.generations as usize,
        1,
        64,
        problems,
    );
    let max_bytes = config.dedup.max_bytes;
    if max_bytes != 0 {
        sized(
            "dedup.max_bytes",
            max_bytes,
            16 * 1024 * KIB,
            1024 * GIB,
            problems,
        );
    }
}

fn check_handler(config: &Config, problems: &mut Problems) {
    for (i, statement) in config.handler.statements.iter().enumerate() {
        let keyword = first_word(statement).to_ascii_lowercase();
        let known = ["with", "insert", "update", "delete", "merge", "select"];
        if keyword.is_empty() {
            refuse(
                problems,
                "handler.statements",
                format!("has nothing in statement {}", i + 1),
            );
        } else if !known.contains(&keyword.as_str()) {
            refuse(
                problems,
                "handler.statements",
                format!(
                    "has a statement {} that begins with `{keyword}`; it must begin with one of: {}",
                    i + 1,
                    known.join(", ")
                ),
            );
        }
    }
}

fn check_retry(config: &Config, problems: &mut Problems) {
    let retry = &config.retry;
    counted(
        "retry.max_attempts",
        retry.max_attempts as usize,
        1,
        1_000,
        problems,
    );
    counted(
        "retry.max_dead_in_a_row",
        retry.max_dead_in_a_row as usize,
        1,
        1_000_000,
        problems,
    );
    within(
        "retry.base",
        retry.base,
        Duration::from_millis(1),
        30 * DAY,
        problems,
    );
    within(
        "retry.cap",
        retry.cap,
        Duration::from_millis(1),
        30 * DAY,
        problems,
    );
    if retry.cap < retry.base {
        let (cap, base) = (text(retry.cap), text(retry.base));
        refuse(
            problems,
            "retry.cap",
            format!("is {cap}, shorter than `retry.base`, which is {base}"),
        );
    }
}

fn check_batch(config: &Config, problems: &mut Problems) {
    let batch = &config.batch;
    counted("batch.max_events", batch.max_events, 1, 100_000, problems);
    sized("batch.max_bytes", batch.max_bytes, KIB, GIB, problems);
    within(
        "batch.max_wait",
        batch.max_wait,
        Duration::ZERO,
        Duration::from_mins(1),
        problems,
    );
    let most = config.limits.in_flight_bytes;
    if batch.max_bytes > most {
        let [bytes, most] = [batch.max_bytes, most].map(|size| bytesize::ByteSize(size as u64));
        refuse(
            problems,
            "batch.max_bytes",
            format!("is {bytes}, more than `limits.in_flight_bytes`, which is {most}"),
        );
    }
}

fn check_limits(config: &Config, problems: &mut Problems) {
    let limits = &config.limits;
    counted("limits.workers", limits.workers, 1, 64, problems);
    sized(
        "limits.in_flight_bytes",
        limits.in_flight_bytes,
        KIB,
        64 * GIB,
        problems,
    );
    sized(
        "limits.max_event_bytes",
        limits.max_event_bytes,
        1,
        GIB,
        problems,
    );
    if limits.max_event_bytes > limits.in_flight_bytes {
        let sizes = [limits.max_event_bytes, limits.in_flight_bytes];
        let [bytes, most] = sizes.map(|size| bytesize::ByteSize(size as u64));
        refuse(
            problems,
            "limits.max_event_bytes",
            format!("is {bytes}, more than `limits.in_flight_bytes`, which is {most}"),
        );
    }
}

fn check_gateway(gateway: &Gateway, problems: &mut Problems) {
    check_topics("gateway.topics", &gateway.topics, false, problems);
}
