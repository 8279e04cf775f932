//! An operator's way past a position that was refused.

use serde::Serialize;
use sqlx::Connection;

use super::session::{Session, get};
use super::settings::PostgresSettings;
use crate::error::Error;
use crate::event::TopicPartition;

const SET: &str = include_str!("../../../sql/position/set.sql");
const BUMP_MARK_NAMESPACE: &str = include_str!("../../../sql/pipeline/bump_mark_namespace.sql");
const AUDIT: &str = include_str!("../../../sql/pipeline/audit.sql");

/// What became of a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PositionSet {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next offset to process, as it was.
    pub before: i64,
    /// The next offset to process, as it is.
    pub after: i64,
    /// Why the partition stood still.
    pub stopped_before: Option<String>,
    /// The epoch in force; whoever owned the partition is fenced.
    pub epoch: i64,
}

/// The log that an offset is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// The one that the position was committed for.
    Same,
    /// Another topic of the same name, or another cluster: how far the old one was read says
    /// nothing of it.
    Another,
}

/// Sets where a partition goes on. Its owner is fenced and claims it anew, with the topic and the
/// cluster as they are then; the partition is no longer stopped. Recorded in `onceonly.audit`.
///
/// Forward, records are passed over, and marks that cite a place among them would seem proven: the
/// namespace of marks changes, as it does for another log. Backward, ids that are known stay
/// duplicates.
pub async fn position_set(
    settings: &PostgresSettings,
    pipeline: &str,
    at: &TopicPartition,
    offset: i64,
    log: Log,
) -> Result<PositionSet, Error> {
    if offset < 0 {
        return Err(Error::fatal(format!(
            "{offset} is no offset: the first one is 0"
        )));
    }
    let doing = "set the position";
    let postgres = |error| Error::postgres(doing, error);
    let mut session = Session::open(settings, pipeline, false).await?;
    let set = session
        .query(SET)
        .bind(&*at.topic)
        .bind(at.partition)
        .bind(offset)
        .bind(log == Log::Another);
    let bump = session.query(BUMP_MARK_NAMESPACE);
    let audit = session
        .query(AUDIT)
        .bind("position set")
        .bind(&settings.member);
    // Dropped without a commit, the connection takes the transaction with it.
    let mut transaction = session.connection.begin().await.map_err(postgres)?;
    let row = set
        .fetch_optional(&mut *transaction)
        .await
        .map_err(postgres)?;
    let Some(row) = row else {
        return Err(Error::fatal(format!(
            "pipeline {pipeline:?} has no position for partition {at}: it is stored when a member \
             first claims the partition, at kafka.start; is the topic's name right?"
        )));
    };
    let set = PositionSet {
        topic: at.topic.to_string(),
        partition: at.partition,
        before: get(&row, "before")?,
        after: offset,
        stopped_before: get(&row, "stopped_before")?,
        epoch: get(&row, "epoch")?,
    };
    if set.after > set.before || log == Log::Another {
        bump.fetch_one(&mut *transaction).await.map_err(postgres)?;
    }
    let detail = serde_json::to_string(&set)
        .map_err(|error| Error::fatal(format!("{doing}: write the record: {error}")))?;
    audit
        .bind(detail)
        .execute(&mut *transaction)
        .await
        .map_err(postgres)?;
    transaction.commit().await.map_err(postgres)?;
    Ok(set)
}
