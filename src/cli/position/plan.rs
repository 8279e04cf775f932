//! What setting a position would do, before it is done.

use std::collections::HashMap;
use std::fmt;

use anyhow::{anyhow, bail};
use jiff::Timestamp;
use onceonly::event::TopicPartition;
use onceonly::ledger::postgres::Log;
use onceonly::ledger::postgres::report::PositionReport;
use onceonly::place::LogPlace;
use onceonly::source::kafka::{KafkaLog, LogView};

/// One partition's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) topic: String,
    pub(super) partition: i32,
    /// The next offset to process, as it was a moment ago.
    pub(super) from: i64,
    pub(super) to: i64,
    /// Ids of records before it may be forgotten.
    pub(super) horizon: i64,
    /// What the log holds.
    pub(super) low: i64,
    /// Whether the position belongs to another topic of the same name, or to another cluster, so
    /// that none of these records was read.
    pub(super) is_another_log: bool,
}

impl Change {
    pub(super) fn log(&self) -> Log {
        match self.is_another_log {
            true => Log::Another,
            false => Log::Same,
        }
    }

    /// Unread records of the log that would be passed over.
    pub(super) fn passed_over(&self) -> i64 {
        match self.is_another_log {
            true => self.to - self.low,
            false => (self.to - self.from.max(self.low)).max(0),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topic,
            partition,
            from,
            to,
            ..
        } = self;
        write!(f, "{topic}/{partition}: {from} -> {to}: ")?;
        match (self.passed_over(), self.is_another_log) {
            (1, _) => f.write_str("passes over 1 unread record."),
            (2.., _) => write!(f, "passes over {} unread records.", self.passed_over()),
            (_, true) => f.write_str("the log is another one than before; it is read from there."),
            _ if to < from => write!(
                f,
                "reads again what lies between; ids that are known stay duplicates."
            ),
            _ if to > from => f.write_str("the log does not hold the records between any more."),
            _ => f.write_str("it goes on where it stands."),
        }
    }
}

/// The rows of the partitions named, in the order of `places`.
pub(super) fn chosen(
    pipeline: &str,
    topic: &str,
    places: &[(i32, LogPlace)],
    rows: Vec<PositionReport>,
) -> anyhow::Result<Vec<PositionReport>> {
    let mut known: Vec<&str> = rows.iter().map(|row| &*row.topic).collect();
    known.dedup();
    if !known.contains(&topic) {
        let known = match known.is_empty() {
            true => "no topic yet".to_owned(),
            false => known.join(", "),
        };
        bail!(
            "pipeline {pipeline} has no position in topic {topic:?}: it knows {known}. A position \
             is stored when a member first claims the topic, at kafka.start"
        );
    }
    let rows: HashMap<i32, PositionReport> = rows
        .into_iter()
        .filter(|row| &*row.topic == topic)
        .map(|row| (row.partition, row))
        .collect();
    let one = |(partition, _): &(i32, LogPlace)| {
        rows.get(partition).cloned().ok_or_else(|| {
            anyhow!(
                "pipeline {pipeline} has no position for partition {topic}/{partition}: of this \
                 topic it knows {} partitions",
                rows.len()
            )
        })
    };
    places.iter().map(one).collect()
}

/// Resolves every place against the log, and refuses those outside of it.
pub(super) async fn plan(
    kafka: &KafkaLog,
    topic: &str,
    places: &[(i32, LogPlace)],
    rows: &[PositionReport],
) -> anyhow::Result<Vec<Change>> {
    let view = kafka.look(vec![topic.to_owned()]).await?;
    if !view.topics.contains_key(topic) {
        bail!("Kafka has no topic {topic:?}: nothing can be read of it");
    }
    let now = Timestamp::now();
    let at = |partition| TopicPartition::new(topic, partition);
    let asked = places.iter().filter_map(|(partition, place)| {
        let time = place.time(now)?;
        Some((at(*partition), time.as_millisecond()))
    });
    let times = kafka.offsets_at(asked.collect()).await?;
    let mut changes = Vec::with_capacity(rows.len());
    for ((partition, place), row) in places.iter().zip(rows) {
        let Some((low, high)) = view.bounds(topic, *partition) else {
            bail!("the bounds of {topic}/{partition} are not known: its leader did not answer");
        };
        let to = match place {
            LogPlace::Earliest => low,
            LogPlace::Latest => high,
            LogPlace::Offset(offset) => *offset,
            LogPlace::Time(_) | LogPlace::Ago(_) => times
                .get(&at(*partition))
                .copied()
                .flatten()
                .unwrap_or(high),
        };
        if !(low..=high).contains(&to) {
            bail!(
                "{topic}/{partition}: {to} lies outside of the log, which holds {low} to {high}: \
                 nothing was changed. Choose one of these, earliest or latest"
            );
        }
        let is_another_log = is_another(row, topic, &view);
        changes.push(Change {
            topic: topic.to_owned(),
            partition: *partition,
            from: row.next_offset,
            to,
            horizon: if is_another_log { 0 } else { row.horizon },
            low,
            is_another_log,
        });
    }
    Ok(changes)
}

/// Whether the row was claimed on another topic of the same name, or on another cluster.
fn is_another(row: &PositionReport, topic: &str, view: &LogView) -> bool {
    let topic_id = view.topics.get(topic).and_then(|log| log.topic_id);
    let differs = |known: bool, same: bool| known && !same;
    differs(
        row.topic_id.is_some() && topic_id.is_some(),
        row.topic_id == topic_id,
    ) || differs(
        row.cluster_id.is_some() && view.cluster_id.is_some(),
        row.cluster_id == view.cluster_id,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: i64, to: i64, low: i64, is_another_log: bool) -> Change {
        Change {
            topic: "orders".to_owned(),
            partition: 7,
            from,
            to,
            horizon: 0,
            low,
            is_another_log,
        }
    }

    #[test]
    fn only_unread_records_that_the_log_holds_are_passed_over() {
        for (from, to, low, is_another_log, passed_over) in [
            (100, 150, 0, false, 50),
            (100, 150, 120, false, 30),
            (100, 150, 150, false, 0),
            (100, 100, 0, false, 0),
            (100, 40, 0, false, 0),
            (100, 0, 0, true, 0),
            (100, 40, 0, true, 40),
            (0, 40, 10, true, 30),
        ] {
            let change = change(from, to, low, is_another_log);
            assert_eq!(change.passed_over(), passed_over, "{change:?}");
        }
    }

    #[test]
    fn a_change_says_what_happens() {
        let said = |from, to, low, another| change(from, to, low, another).to_string();
        assert_eq!(
            said(100, 150, 0, false),
            "orders/7: 100 -> 150: passes over 50 unread records."
        );
        assert_eq!(
            said(100, 150, 150, false),
            "orders/7: 100 -> 150: the log does not hold the records between any more."
        );
        assert_eq!(
            said(100, 40, 0, false),
            "orders/7: 100 -> 40: reads again what lies between; ids that are known stay duplicates."
        );
        assert_eq!(
            said(100, 0, 0, true),
            "orders/7: 100 -> 0: the log is another one than before; it is read from there."
        );
    }
}
