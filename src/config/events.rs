//! `[identity]`, `[dedup]`, `[handler]` and `[retry]`: what happens to an event.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{duration, size, text, texts};
use crate::backoff::{Backoff, Jitter};
use crate::identity::{IdSource, OnMissing, Scope};

/// What makes two records the same event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityConfig {
    /// Where the id stands.
    #[serde(with = "text")]
    pub from: IdSource,
    /// What becomes of a record without an id.
    pub on_missing: OnMissing,
    /// Within what an id is one event. Must be chosen where there is more than one topic; with one
    /// it is the pipeline. [`super::Config::identity`] knows.
    pub scope: Option<Scope>,
}

impl Default for IdentityConfig {
    fn default() -> Self {
        Self {
            from: IdSource::Header("event-id".into()),
            on_missing: OnMissing::default(),
            scope: None,
        }
    }
}

/// How duplicates are recognised, and for how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dedup {
    /// Whether duplicates are dropped, or only counted.
    pub mode: DedupMode,
    /// When Redis learns of an event.
    pub mark: Mark,
    /// How long an id is remembered, in the pipeline's own time.
    #[serde(with = "duration")]
    pub retention: Duration,
    /// Into how many tables the retention is divided: forgetting is dropping one.
    pub generations: u32,
    /// The ledger's bytes on disk beyond which ids are forgotten before their time, loudly; 0: never.
    #[serde(with = "size")]
    pub max_bytes: usize,
    /// Whether a hash of key and value is kept with each id, so that the same id with another body
    /// is counted as a conflict.
    pub detect_conflicts: bool,
}

impl Default for Dedup {
    fn default() -> Self {
        Self {
            mode: DedupMode::default(),
            mark: Mark::default(),
            retention: Duration::from_hours(7 * 24),
            generations: 4,
            max_bytes: 0,
            detect_conflicts: false,
        }
    }
}

/// Whether duplicates are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupMode {
    /// They are dropped.
    #[default]
    Enforce,
    /// They are counted, and applied all the same.
    Observe,
}

/// When Redis learns of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// After its effect is committed.
    #[default]
    After,
    /// It is claimed before the work, and marked after the commit.
    Before,
}

/// What an event does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Handler {
    /// Statements in Postgres, or a call elsewhere.
    pub kind: HandlerKind,
    /// SQL that runs once for each batch, over the relation `batch`; none: events land in a table.
    #[serde(deserialize_with = "texts")]
    pub statements: Vec<String>,
    /// What the payload is to the statements.
    pub payload: PayloadKind,
    /// What becomes of a record whose value is null or empty.
    pub on_tombstone: OnTombstone,
}

/// Statements in Postgres, or a call elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandlerKind {
    /// Statements that run in the transaction.
    #[default]
    Sql,
    /// One HTTP request for each event, outside the transaction.
    Webhook,
}

/// What the payload is to the statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PayloadKind {
    /// `jsonb`; one that is not JSON is a dead letter.
    #[default]
    Json,
    /// `text`; one that is not UTF-8 is a dead letter.
    Text,
    /// `bytea`.
    Bytes,
}

/// What becomes of a record whose value is null or empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTombstone {
    /// It is passed over, and counted.
    #[default]
    Skip,
    /// The handler gets it.
    Pass,
    /// It is a dead letter.
    DeadLetter,
}

/// What becomes of an event that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// After so many attempts it is a dead letter.
    pub max_attempts: u32,
    /// The wait after the first attempt.
    #[serde(with = "duration")]
    pub base: Duration,
    /// No wait is longer.
    #[serde(with = "duration")]
    pub cap: Duration,
    /// How waits are spread.
    pub jitter: Jitter,
    /// What waits behind a failed event.
    pub order: Order,
    /// Whether a dead event lets go of those behind it.
    pub order_on_dead: OnDead,
    /// So many dead letters of one partition with nothing applied between stop the partition.
    pub max_dead_in_a_row: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 8,
            base: Duration::from_secs(1),
            cap: Duration::from_mins(10),
            jitter: Jitter::default(),
            order: Order::default(),
            order_on_dead: OnDead::default(),
            max_dead_in_a_row: 100,
        }
    }
}

impl Retry {
    /// How long to wait between attempts.
    pub fn backoff(&self) -> Backoff {
        Backoff {
            base: self.base,
            cap: self.cap,
            jitter: self.jitter,
        }
    }
}

/// What waits behind a failed event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Nothing.
    #[default]
    None,
    /// Later events of the same Kafka key.
    Key,
    /// The partition.
    Partition,
}

/// Whether a dead event lets go of those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDead {
    /// They go on without it.
    #[default]
    Release,
    /// They wait until somebody decides.
    Hold,
}
