//! Events that failed: stored as they came, tried again when due.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use uuid::Uuid;

use super::session::{Session, get};
use super::timestamp;
use crate::error::Error;
use crate::event::{Incoming, TopicPartition};
use crate::identity::{EventKey, Found};
use crate::ledger::{Due, Failure, Parked, Settled, Verdict};

const PARK_WAITING: &str = include_str!("../../../sql/waiting/park_waiting.sql");
const PARK_DEAD: &str = include_str!("../../../sql/waiting/park_dead.sql");
const DUE: &str = include_str!("../../../sql/waiting/due.sql");
const SETTLE_APPLIED: &str = include_str!("../../../sql/waiting/settle_applied.sql");
const SETTLE_RETRYING: &str = include_str!("../../../sql/waiting/settle_retrying.sql");
const SETTLE_DEAD: &str = include_str!("../../../sql/waiting/settle_dead.sql");

/// A message is for a person; what does not fit a screen is cut.
const MESSAGE_MAX_CHARS: usize = 2_000;

/// Text that Postgres takes: a message may quote an event's NUL.
fn clean(text: &str) -> String {
    let shown = |c: char| if c == '\0' { '\u{fffd}' } else { c };
    text.chars().take(MESSAGE_MAX_CHARS).map(shown).collect()
}

fn microseconds(delay: Duration) -> i64 {
    /// A thousand years, which no timestamp overflows by.
    const MAX: i64 = 31_557_600_000_000_000;
    i64::try_from(delay.as_micros()).unwrap_or(MAX).min(MAX)
}

pub(super) async fn park(session: &mut Session, parked: &[Parked<'_>]) -> Result<(), Error> {
    let (mut waiting, mut delays, mut dead) = (Vec::new(), Vec::new(), Vec::new());
    for event in parked {
        match event.verdict {
            Verdict::RetryAfter(delay) => {
                waiting.push(event);
                delays.push(microseconds(delay));
            }
            Verdict::Dead => dead.push(event),
        }
    }
    if !waiting.is_empty() {
        let query = bind_events(session.query(PARK_WAITING), &waiting).bind(delays);
        session.execute("store waiting events", query).await?;
    }
    if !dead.is_empty() {
        let query = bind_events(session.query(PARK_DEAD), &dead);
        session.execute("store dead letters", query).await?;
    }
    Ok(())
}

/// Binds one array a column, then the headers of all as one flat list.
fn bind_events<'q>(
    query: Query<'q, sqlx::Postgres, PgArguments>,
    parked: &[&Parked<'_>],
) -> Query<'q, sqlx::Postgres, PgArguments> {
    let events = || parked.iter().map(|p| p.event);
    let mut header_events: Vec<i64> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut values: Vec<Option<&[u8]>> = Vec::new();
    for (ordinal, event) in (1..).zip(events()) {
        for (name, value) in event.headers() {
            header_events.push(ordinal);
            names.push(name.replace('\0', "\u{fffd}"));
            values.push(value);
        }
    }
    let timestamps = events().map(|e| e.timestamp_ms().and_then(timestamp::within_range));
    query
        .bind(parked.iter().map(|p| p.key.0).collect::<Vec<Uuid>>())
        .bind(parked.iter().map(|p| p.id).collect::<Vec<&str>>())
        .bind(events().map(|e| e.topic()).collect::<Vec<&str>>())
        .bind(events().map(|e| e.partition()).collect::<Vec<i32>>())
        .bind(events().map(|e| e.offset()).collect::<Vec<i64>>())
        .bind(timestamps.collect::<Vec<Option<i64>>>())
        .bind(events().map(|e| e.key()).collect::<Vec<Option<&[u8]>>>())
        .bind(
            events()
                .map(|e| e.payload())
                .collect::<Vec<Option<&[u8]>>>(),
        )
        .bind(
            parked
                .iter()
                .map(|p| p.failure.code.as_str())
                .collect::<Vec<&str>>(),
        )
        .bind(
            parked
                .iter()
                .map(|p| clean(&p.failure.message))
                .collect::<Vec<String>>(),
        )
        .bind(header_events)
        .bind(names)
        .bind(values)
}

pub(super) async fn due(session: &mut Session, limit: usize) -> Result<Due, Error> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = session.query(DUE).bind(limit);
    let rows = session.fetch_all("read waiting events", query).await?;
    let mut due = Due::default();
    for row in &rows {
        push_due(&mut due, row)?;
    }
    Ok(due)
}

fn push_due(due: &mut Due, row: &PgRow) -> Result<(), Error> {
    let topic: &str = get(row, "kafka_topic")?;
    let at = TopicPartition::new(topic, get(row, "kafka_partition")?);
    let slot = due.batch.slice(&at, 0);
    let record = Incoming {
        offset: get(row, "kafka_offset")?,
        timestamp_ms: get(row, "timestamp_ms")?,
        key: get(row, "kafka_key")?,
        payload: get(row, "payload")?,
    };
    let names: Vec<String> = get(row, "names")?;
    let values: Vec<Option<Vec<u8>>> = get(row, "values")?;
    let headers = names.iter().map(String::as_str);
    let headers = headers.zip(values.iter().map(Option::as_deref));
    due.batch.push(slot, record, headers);
    let key = EventKey(get(row, "event_key")?);
    due.ids.push(get(row, "event_id")?, key, Found::Id);
    let attempts: i32 = get(row, "attempts")?;
    due.attempts.push(attempts.unsigned_abs());
    Ok(())
}

/// Results of one kind, one array a column.
#[derive(Default)]
struct Results<'a> {
    keys: Vec<Uuid>,
    attempts: Vec<i32>,
    codes: Vec<&'a str>,
    messages: Vec<String>,
    delays: Vec<i64>,
}

impl<'a> Results<'a> {
    fn push(&mut self, settled: &Settled<'_>) {
        self.keys.push(settled.key.0);
        self.attempts
            .push(i32::try_from(settled.attempt).unwrap_or(i32::MAX));
    }

    fn push_failed(&mut self, settled: &Settled<'_>, failure: &'a Failure) {
        self.push(settled);
        self.codes.push(&failure.code);
        self.messages.push(clean(&failure.message));
    }
}

pub(super) async fn settle(session: &mut Session, settled: &[Settled<'_>]) -> Result<usize, Error> {
    let [mut applied, mut retrying, mut dead] = [const { None::<Results<'_>> }; 3];
    for result in settled {
        match result.failed {
            None => applied.get_or_insert_default().push(result),
            Some((failure, Verdict::Dead)) => {
                dead.get_or_insert_default().push_failed(result, failure);
            }
            Some((failure, Verdict::RetryAfter(delay))) => {
                let retrying = retrying.get_or_insert_default();
                retrying.push_failed(result, failure);
                retrying.delays.push(microseconds(delay));
            }
        }
    }
    let mut changed = 0;
    if let Some(results) = applied {
        let query = session.query(SETTLE_APPLIED);
        let query = query.bind(results.keys).bind(results.attempts);
        changed += session.execute("settle applied events", query).await?;
    }
    if let Some(results) = retrying {
        let query = session.query(SETTLE_RETRYING).bind(results.keys);
        let query = query.bind(results.attempts).bind(results.codes);
        let query = query.bind(results.messages).bind(results.delays);
        changed += session.execute("settle failed events", query).await?;
    }
    if let Some(results) = dead {
        let query = session.query(SETTLE_DEAD).bind(results.keys);
        let query = query.bind(results.attempts).bind(results.codes);
        let query = query.bind(results.messages);
        changed += session.execute("settle dead letters", query).await?;
    }
    Ok(usize::try_from(changed).unwrap_or(usize::MAX))
}
