//! What commands show of a pipeline.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::pipeline::{Fingerprint, recorded};
use super::rotation::ages;
use super::session::{Session, get};
use super::settings::PostgresSettings;
use crate::error::Error;
use crate::outcome::{Outcome, Tally};
use crate::retention::Generation;

const POSITIONS: &str = include_str!("../../../sql/report/positions.sql");
const FINGERPRINT: &str = include_str!("../../../sql/report/fingerprint.sql");
const SIZES: &str = include_str!("../../../sql/report/sizes.sql");
const DEAD_LETTERS: &str = include_str!("../../../sql/report/dead_letters.sql");
const DEAD_LETTER: &str = include_str!("../../../sql/report/dead_letter.sql");

/// A connection that looks at a pipeline and changes nothing.
pub struct Observer {
    session: Session,
}

/// A partition's row.
#[derive(Clone, Debug)]
pub struct PositionReport {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
    /// Counts the claims.
    pub epoch: i64,
    /// The worker that claimed it last.
    pub owner: Option<Uuid>,
    /// The process of that worker.
    pub owner_name: Option<String>,
    /// The next offset to process.
    pub next_offset: i64,
    /// The furthest position ever committed.
    pub high_water: i64,
    /// Ids of records before this offset may be forgotten.
    pub horizon: i64,
    /// Where the pipeline began to read it; `None` where that was not recorded.
    pub start_offset: Option<i64>,
    /// Why it stands still, if a person has to decide.
    pub stopped: Option<String>,
    /// The timestamp of the last record.
    pub event_time: Option<Timestamp>,
    /// When the row last changed, on the database's clock.
    pub updated_at: Timestamp,
    /// How long ago that was, on the same clock.
    pub age: Duration,
    /// Whether the owner's process has a connection to this database.
    pub owner_connected: bool,
    /// The topic's id when it was claimed.
    pub topic_id: Option<Uuid>,
    /// The cluster's id when it was claimed.
    pub cluster_id: Option<String>,
    /// Outcomes of every record consumed.
    pub tally: Tally,
    /// Ids that came again with another body.
    pub conflicts: u64,
}

/// How much a pipeline keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Ids in the ledger, as the database estimates; negative where it has no estimate yet.
    pub ledger_rows: i64,
    /// Bytes of the ledger on disk, with its index.
    pub ledger_bytes: i64,
    /// Generations of the ledger.
    pub generations: i64,
    /// Events that wait for another attempt.
    pub waiting: i64,
    /// When the first of them is due.
    pub next_due: Option<Timestamp>,
    /// Dead letters that nobody has decided on.
    pub dead: i64,
    /// Dead letters that were discarded.
    pub discarded: i64,
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from one.
    pub attempt: u32,
    /// A SQLSTATE, or a short word.
    pub code: String,
    /// The sentence for a person.
    pub message: String,
    /// When it failed.
    pub at: Timestamp,
}

/// A dead letter without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// The event's id.
    pub event_id: String,
    /// The ledger's key for it.
    pub event_key: Uuid,
    /// `dead` or `discarded`.
    pub state: String,
    /// Attempts made.
    pub attempts: i32,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The record's timestamp, in milliseconds since the epoch.
    pub timestamp_ms: Option<i64>,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// The failed attempts, the first and the latest at least.
    pub errors: Vec<Attempt>,
    /// Bytes of the value; `None` is a tombstone.
    pub payload_bytes: Option<i32>,
}

/// A dead letter as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterContent {
    /// What the list shows of it.
    pub letter: DeadLetter,
    /// The Kafka key.
    pub key: Option<Vec<u8>>,
    /// The headers in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// The value.
    pub payload: Option<Vec<u8>>,
}

/// Which dead letters to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Exactly this id.
    pub id: Option<String>,
    /// The last error's code, or part of its message, in any case.
    pub error: Option<String>,
    /// Given up at this time or later.
    pub since: Option<Timestamp>,
    /// Of this topic.
    pub topic: Option<String>,
    /// At most so many, the latest first.
    pub limit: usize,
}

impl Observer {
    /// The ledger's generations that are looked into, from the oldest to the current one.
    pub async fn generations(&mut self) -> Result<Vec<Generation>, Error> {
        ages(&mut self.session).await
    }

    /// Connects. A standby is as good as the primary to look at, but a command may be about to
    /// change something: only the primary is taken.
    pub async fn connect(settings: &PostgresSettings, pipeline: &str) -> Result<Self, Error> {
        let session = Session::open(settings, pipeline, false).await?;
        Ok(Self { session })
    }

    /// Every partition's row, by topic and partition.
    pub async fn positions(&mut self) -> Result<Vec<PositionReport>, Error> {
        let query = self.session.query(POSITIONS);
        let rows = self.session.fetch_all("read positions", query).await?;
        rows.iter().map(position).collect()
    }

    /// The fingerprint that is recorded.
    pub async fn fingerprint(&mut self) -> Result<Fingerprint, Error> {
        let query = self.session.query(FINGERPRINT);
        let row = self
            .session
            .fetch_one("read the fingerprint", query)
            .await?;
        recorded(&row)
    }

    /// How much the pipeline keeps.
    pub async fn sizes(&mut self) -> Result<Sizes, Error> {
        let query = self.session.query(SIZES);
        let row = self.session.fetch_one("read sizes", query).await?;
        Ok(Sizes {
            ledger_rows: get(&row, "ledger_rows")?,
            ledger_bytes: get(&row, "ledger_bytes")?,
            generations: get(&row, "generations")?,
            waiting: get(&row, "waiting")?,
            next_due: optional_time(&row, "next_due_us")?,
            dead: get(&row, "dead")?,
            discarded: get(&row, "discarded")?,
        })
    }

    /// Dead letters, the latest first.
    pub async fn dead_letters(
        &mut self,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetter>, Error> {
        let query = self.session.query(DEAD_LETTERS);
        let query = query
            .bind(filter.id.as_deref())
            .bind(filter.error.as_deref());
        let query = query.bind(filter.since.map(|since| since.as_microsecond()));
        let query = query.bind(filter.topic.as_deref());
        let query = query.bind(i64::try_from(filter.limit).unwrap_or(i64::MAX));
        let rows = self.session.fetch_all("read dead letters", query).await?;
        rows.iter().map(dead_letter).collect()
    }

    /// Everything kept of an id's dead letters, discarded ones too.
    pub async fn dead_letter(&mut self, id: &str) -> Result<Vec<DeadLetterContent>, Error> {
        let query = self.session.query(DEAD_LETTER).bind(id);
        let rows = self.session.fetch_all("read dead letters", query).await?;
        rows.iter().map(dead_letter_content).collect()
    }
}

fn optional_time(row: &PgRow, column: &str) -> Result<Option<Timestamp>, Error> {
    let Some(microseconds) = get::<Option<i64>>(row, column)? else {
        return Ok(None);
    };
    // A timestamptz reaches further than a Timestamp: what lies beyond is its end.
    Ok(Some(Timestamp::from_microsecond(microseconds).unwrap_or(
        match microseconds {
            0.. => Timestamp::MAX,
            _ => Timestamp::MIN,
        },
    )))
}

fn time(row: &PgRow, column: &str) -> Result<Timestamp, Error> {
    optional_time(row, column)?.ok_or_else(|| Error::fatal(format!("column {column} is null")))
}

fn position(row: &PgRow) -> Result<PositionReport, Error> {
    let mut counts = [0; Outcome::ALL.len()];
    for (count, outcome) in counts.iter_mut().zip(Outcome::ALL) {
        *count = get::<i64>(row, outcome.name())?.unsigned_abs();
    }
    Ok(PositionReport {
        topic: get::<&str>(row, "topic")?.into(),
        partition: get(row, "partition")?,
        epoch: get(row, "epoch")?,
        owner: get(row, "owner")?,
        owner_name: get(row, "owner_name")?,
        next_offset: get(row, "next_offset")?,
        high_water: get(row, "high_water")?,
        horizon: get(row, "horizon")?,
        start_offset: get(row, "start_offset")?,
        stopped: get(row, "stopped")?,
        event_time: optional_time(row, "event_time_us")?,
        updated_at: time(row, "updated_at_us")?,
        age: Duration::from_micros(get::<i64>(row, "age_us")?.max(0).unsigned_abs()),
        owner_connected: get(row, "owner_connected")?,
        topic_id: get(row, "topic_id")?,
        cluster_id: get(row, "cluster_id")?,
        tally: Tally::from_counts(counts),
        conflicts: get::<i64>(row, "conflicts")?.unsigned_abs(),
    })
}

fn dead_letter(row: &PgRow) -> Result<DeadLetter, Error> {
    let errors: &str = get(row, "errors")?;
    let errors = serde_json::from_str(errors)
        .map_err(|error| Error::fatal(format!("the errors of a dead letter: {error}")))?;
    Ok(DeadLetter {
        event_id: get(row, "event_id")?,
        event_key: get(row, "event_key")?,
        state: get(row, "state")?,
        attempts: get(row, "attempts")?,
        topic: get(row, "kafka_topic")?,
        partition: get(row, "kafka_partition")?,
        offset: get(row, "kafka_offset")?,
        timestamp_ms: get(row, "timestamp_ms")?,
        dead_at: time(row, "dead_at_us")?,
        errors,
        payload_bytes: get(row, "payload_bytes")?,
    })
}

fn dead_letter_content(row: &PgRow) -> Result<DeadLetterContent, Error> {
    let names: Vec<String> = get(row, "names")?;
    let values: Vec<Option<Vec<u8>>> = get(row, "values")?;
    Ok(DeadLetterContent {
        letter: dead_letter(row)?,
        key: get(row, "kafka_key")?,
        headers: names.into_iter().zip(values).collect(),
        payload: get(row, "payload")?,
    })
}
