//! What was compared, and what was found.

use serde::Serialize;

use super::plan::Plan;
use super::range::Range;
use crate::config::Config;
use crate::event::TopicPartition;
use crate::identity::EventKey;
use crate::ledger::id_state::{Kind, State};
use crate::ledger::postgres::comparison::Noted;

/// What was compared, and what was found. Records are counted by what became of their id, findings
/// by id.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The pipeline.
    pub pipeline: String,
    /// The topic; `None` where there are several.
    pub topic: Option<String>,
    /// Records that were read.
    pub read: u64,
    /// Ids among them; known only where effects were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
    /// Records whose id is applied.
    pub applied: u64,
    /// Records whose id waits for another attempt.
    pub waiting: u64,
    /// Records whose id is a dead letter, discarded or not.
    pub dead: u64,
    /// Records that the configuration passes over.
    pub skipped: u64,
    /// Ids that look missing, and are duplicates of events whose ids are forgotten.
    pub forgotten: u64,
    /// Ids that were consumed and are known nowhere.
    pub missing: u64,
    /// Ids of which what is known excludes itself.
    pub contradictory: u64,
    /// Ids with an effect too many.
    pub extra: u64,
    /// Offsets of the range before the horizon: not compared.
    pub before_horizon: u64,
    /// Offsets of the range that the log does not hold any more: not compared.
    pub before_log_start: u64,
    /// Offsets of the range before the place where the pipeline began: not compared.
    pub before_start: u64,
    /// Offsets of the range that the pipeline has not processed yet: not compared.
    pub not_consumed: u64,
    /// What was compared of each partition.
    pub partitions: Vec<Range>,
    /// What else there is to know, a sentence each.
    pub notes: Vec<String>,
    /// The first findings, by kind.
    pub findings: Vec<Finding>,
}

/// One id that something is wrong with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind of wrong.
    pub kind: Kind,
    /// What was found.
    pub state: State,
    /// The event's id.
    pub event_id: String,
    /// The ledger's key for it.
    pub event_key: String,
    /// The topic of its first record in the range; `None` for an effect without a record.
    pub topic: Option<String>,
    /// The record's partition.
    pub partition: Option<i32>,
    /// The record's offset.
    pub offset: Option<i64>,
    /// What is wrong, for a person.
    pub detail: &'static str,
}

impl Finding {
    pub(super) fn new(noted: Noted) -> Option<Self> {
        let Noted {
            key: EventKey(key),
            id,
            record,
            state,
        } = noted;
        let (topic, partition, offset) = match record {
            Some((topic, partition, offset)) => (Some(topic), Some(partition), Some(offset)),
            None => (None, None, None),
        };
        Some(Self {
            kind: state.kind()?,
            state,
            event_id: id,
            event_key: key.to_string(),
            topic,
            partition,
            offset,
            detail: state.sentence(),
        })
    }
}

impl Report {
    pub(super) fn new(config: &Config, plan: &Plan) -> Self {
        Self {
            pipeline: config.pipeline.clone(),
            topic: match &plan.topics[..] {
                [topic] => Some(topic.clone()),
                _ => None,
            },
            read: 0,
            distinct: None,
            applied: 0,
            waiting: 0,
            dead: 0,
            skipped: 0,
            forgotten: 0,
            missing: 0,
            contradictory: 0,
            extra: 0,
            before_horizon: 0,
            before_log_start: 0,
            before_start: 0,
            not_consumed: 0,
            partitions: plan.ranges.clone(),
            notes: plan.notes.clone(),
            findings: Vec::new(),
        }
    }

    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.missing + self.contradictory + self.extra == 0
    }

    /// Counts a record of a partition.
    pub(super) fn count_read(&mut self, at: &TopicPartition) {
        self.read += 1;
        if let Some(range) = self.range(&at.topic, at.partition) {
            range.read += 1;
        }
    }

    /// Counts records whose id is in a state.
    pub(super) fn count(&mut self, state: State, records: u64) {
        match state {
            State::Applied => self.applied += records,
            State::Waiting => self.waiting += records,
            State::Dead => self.dead += records,
            _ => {}
        }
    }

    /// The range of a partition.
    pub(super) fn range(&mut self, topic: &str, partition: i32) -> Option<&mut Range> {
        self.partitions
            .iter_mut()
            .find(|range| range.partition == partition && range.topic == topic)
    }

    /// Sums up what was not compared.
    pub(super) fn sum_up(&mut self) {
        for range in &self.partitions {
            self.before_horizon += range.before_horizon;
            self.before_log_start += range.before_log_start;
            self.before_start += range.before_start;
            self.not_consumed += range.not_consumed;
        }
    }
}
