//! Where each partition of a topic begins that was never read before.

use std::collections::HashMap;
use std::sync::Arc;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataTopic;
use regex::Regex;

use super::assignment::list;
use super::inquiry::CALL_TIMEOUT;
use super::membership::Membership;
use super::native;
use super::settings::{KafkaSettings, Start};
use crate::error::Error;
use crate::event::TopicPartition;
use crate::source::TopicStart;

/// Where topics begin, by the configuration.
pub(super) struct Starts {
    start: Start,
    named: Vec<String>,
    patterns: Vec<Regex>,
}

impl Starts {
    /// Fatal where a pattern cannot be read.
    pub(super) fn new(settings: &KafkaSettings) -> Result<Self, Error> {
        let (patterns, named): (Vec<_>, Vec<_>) = settings
            .topics
            .iter()
            .cloned()
            .partition(|topic| topic.starts_with('^'));
        let patterns = patterns.iter().map(|pattern| {
            Regex::new(pattern).map_err(|error| {
                Error::fatal(format!("kafka.topics: {pattern} is no pattern: {error}"))
            })
        });
        Ok(Self {
            start: settings.start,
            patterns: patterns.collect::<Result<_, _>>()?,
            named,
        })
    }

    /// Whether the configuration names the topic, or a pattern finds it.
    pub(super) fn reads(&self, topic: &str) -> bool {
        let found = |pattern: &Regex| pattern.is_match(topic);
        self.named.iter().any(|named| named == topic) || self.patterns.iter().any(found)
    }

    /// As [`crate::source::Source::starts`] promises.
    ///
    /// Transient where the brokers did not answer, fatal where the start does not exist.
    pub(super) fn resolve(
        &self,
        consumer: &BaseConsumer<Membership>,
        topic: &str,
        first: bool,
    ) -> Result<Vec<TopicStart>, Error> {
        let is_named = self.named.iter().any(|named| named == topic);
        let start = if first || is_named {
            self.start
        } else {
            Start::Earliest
        };
        let topics = match first {
            true => self.matching(consumer, topic)?,
            false => vec![topic.into()],
        };
        let begin = |topic: Arc<str>| {
            let offsets = resolve(consumer, &topic, start)?;
            Ok(TopicStart { topic, offsets })
        };
        topics.into_iter().map(begin).collect()
    }

    /// Every topic that is read now: the one asked about, and the others that exist.
    fn matching(
        &self,
        consumer: &BaseConsumer<Membership>,
        topic: &str,
    ) -> Result<Vec<Arc<str>>, Error> {
        let metadata = consumer
            .fetch_metadata(None, CALL_TIMEOUT)
            .map_err(|error| unanswered(topic, &error))?;
        let exists = |t: &&MetadataTopic| t.error().is_none() && !t.partitions().is_empty();
        let existing = metadata
            .topics()
            .iter()
            .filter(exists)
            .map(MetadataTopic::name);
        let mut matching: Vec<Arc<str>> = existing
            .filter(|name| self.reads(name))
            .map(Arc::from)
            .collect();
        if !matching.iter().any(|name| **name == *topic) {
            matching.push(topic.into());
        }
        Ok(matching)
    }
}

fn resolve(
    consumer: &BaseConsumer<Membership>,
    topic: &str,
    start: Start,
) -> Result<Vec<(i32, i64)>, Error> {
    let partitions = partitions(consumer, topic)?;
    let given = match start {
        Start::TimestampMs(time) => by_time(consumer, &partitions, time)?,
        Start::Committed => committed(consumer, &partitions)?,
        _ => HashMap::new(),
    };
    let mut starts = Vec::with_capacity(partitions.len());
    for at in &partitions {
        let bounds = consumer
            .fetch_watermarks(&at.topic, at.partition, CALL_TIMEOUT)
            .map_err(|error| unanswered(topic, &error))?;
        let offset = one(at, start, given.get(&at.partition).copied(), bounds)?;
        starts.push((at.partition, offset));
    }
    Ok(starts)
}

/// The start of one partition, between its first offset and the one behind its last.
fn one(
    at: &TopicPartition,
    start: Start,
    given: Option<i64>,
    (low, high): (i64, i64),
) -> Result<i64, Error> {
    match start {
        Start::Earliest => Ok(low),
        Start::Latest => Ok(high),
        Start::TimestampMs(_) => Ok(given.unwrap_or(high)),
        Start::Offset(offset) if (low..=high).contains(&offset) => Ok(offset),
        Start::Offset(offset) => Err(Error::fatal(format!(
            "kafka.start is offset {offset}, but {at} holds offsets {low} to {high}: choose one of \
             these, or earliest"
        ))),
        Start::Committed => given.ok_or_else(|| {
            Error::fatal(format!(
                "kafka.start is committed, but the group has no committed offset for {at}: commit \
                 one with Kafka's own tools, or choose earliest or latest"
            ))
        }),
    }
}

fn unanswered(topic: &str, error: &KafkaError) -> Error {
    Error::transient(format!("where {topic} begins cannot be told: {error}"))
}

fn partitions(
    consumer: &BaseConsumer<Membership>,
    topic: &str,
) -> Result<Vec<TopicPartition>, Error> {
    let metadata = consumer
        .fetch_metadata(Some(topic), CALL_TIMEOUT)
        .map_err(|error| unanswered(topic, &error))?;
    let known = metadata.topics().iter().find(|t| t.name() == topic);
    let mut partitions: Vec<_> = known
        .filter(|t| t.error().is_none())
        .into_iter()
        .flat_map(|t| t.partitions())
        .map(|p| TopicPartition::new(topic, p.id()))
        .collect();
    partitions.sort();
    if partitions.is_empty() {
        return Err(Error::transient(format!(
            "where {topic} begins cannot be told: there is no such topic"
        )));
    }
    Ok(partitions)
}

/// The first offset that is not older than a time; nothing where all records are older.
fn by_time(
    consumer: &BaseConsumer<Membership>,
    partitions: &[TopicPartition],
    time_ms: i64,
) -> Result<HashMap<i32, i64>, Error> {
    let times = list(partitions.iter().map(|at| (at, Some(time_ms.max(0)))));
    let answer = consumer.offsets_for_times(times, CALL_TIMEOUT);
    offsets(partitions, answer)
}

fn committed(
    consumer: &BaseConsumer<Membership>,
    partitions: &[TopicPartition],
) -> Result<HashMap<i32, i64>, Error> {
    let asked = list(partitions.iter().map(|at| (at, None)));
    let answer = consumer.committed_offsets(asked, CALL_TIMEOUT);
    offsets(partitions, answer)
}

fn offsets(
    partitions: &[TopicPartition],
    answer: Result<rdkafka::TopicPartitionList, KafkaError>,
) -> Result<HashMap<i32, i64>, Error> {
    let topic = partitions.first().map_or("", |at| &*at.topic);
    let answer = answer.map_err(|error| unanswered(topic, &error))?;
    let entries = native::entries(&answer);
    if let Some(entry) = entries.iter().find(|entry| !entry.valid) {
        return Err(Error::transient(format!(
            "where {topic} begins cannot be told: no answer for partition {}",
            entry.partition
        )));
    }
    let known = entries.iter().filter(|entry| entry.offset >= 0);
    Ok(known.map(|entry| (entry.partition, entry.offset)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    fn start(start: Start, given: Option<i64>) -> Result<i64, Error> {
        one(&TopicPartition::new("t", 3), start, given, (5, 9))
    }

    #[test]
    fn a_start_lies_within_the_log() {
        assert_eq!(start(Start::Earliest, None).unwrap(), 5);
        assert_eq!(start(Start::Latest, None).unwrap(), 9);
        assert_eq!(start(Start::TimestampMs(1), Some(7)).unwrap(), 7);
        assert_eq!(start(Start::TimestampMs(1), None).unwrap(), 9);
        assert_eq!(start(Start::Committed, Some(6)).unwrap(), 6);
        for (offset, fits) in [(4, false), (5, true), (9, true), (10, false)] {
            assert_eq!(start(Start::Offset(offset), None).is_ok(), fits, "{offset}");
        }
    }

    #[test]
    fn a_start_that_does_not_exist_is_for_a_person() {
        for (from, word) in [
            (Start::Offset(12), "t/3 holds offsets 5 to 9"),
            (Start::Committed, "no committed offset for t/3"),
        ] {
            let error = start(from, None).unwrap_err();
            assert_eq!(error.class(), Class::Fatal);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
