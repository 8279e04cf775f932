//! Positions: the rows by which a partition has one owner and each record one turn.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::session::{Session, get};
use super::timestamp;
use crate::error::Error;
use crate::event::TopicPartition;
use crate::ledger::{Move, Position, Standing, Take};
use crate::outcome::{Outcome, Tally};

const LOCK: &str = include_str!("../../../sql/position/lock.sql");
const KNOWS_TOPIC: &str = include_str!("../../../sql/position/knows_topic.sql");
const INSERT: &str = include_str!("../../../sql/position/insert.sql");
const TAKE: &str = include_str!("../../../sql/position/take.sql");
const ADVANCE: &str = include_str!("../../../sql/position/advance.sql");
const COUNT: &str = include_str!("../../../sql/position/count.sql");
const STANDINGS: &str = include_str!("../../../sql/position/standings.sql");
const SOURCES: &str = include_str!("../../../sql/position/sources.sql");
const STOP: &str = include_str!("../../../sql/position/stop.sql");

/// Short names of partitions in the ledger.
pub(super) type Sources = hashbrown::HashMap<TopicPartition, i32>;

/// Topics and partitions as two arrays.
fn columns<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> (Vec<&'a str>, Vec<i32>) {
    partitions.map(|at| (&*at.topic, at.partition)).unzip()
}

fn partition(row: &PgRow) -> Result<TopicPartition, Error> {
    let topic: &str = get(row, "topic")?;
    Ok(TopicPartition::new(topic, get(row, "partition")?))
}

pub(super) async fn lock(
    session: &mut Session,
    partitions: &[TopicPartition],
) -> Result<Vec<Position>, Error> {
    let (topics, numbers) = columns(partitions.iter());
    let query = session.query(LOCK).bind(topics).bind(numbers);
    let rows = session.fetch_all("lock positions", query).await?;
    rows.iter().map(position).collect()
}

fn position(row: &PgRow) -> Result<Position, Error> {
    Ok(Position {
        at: partition(row)?,
        epoch: get(row, "epoch")?,
        next_offset: get(row, "next_offset")?,
        high_water: get(row, "high_water")?,
        horizon: get(row, "horizon")?,
        topic_id: get(row, "topic_id")?,
        cluster_id: get::<Option<&str>>(row, "cluster_id")?.map(Into::into),
        stopped: get(row, "stopped")?,
    })
}

pub(super) async fn knows_topic(session: &mut Session, topic: &str) -> Result<bool, Error> {
    let query = session.query(KNOWS_TOPIC).bind(topic);
    let row = session.fetch_one("look for the topic", query).await?;
    get(&row, "exists")
}

pub(super) async fn insert(
    session: &mut Session,
    topic: &str,
    starts: &[(i32, i64)],
) -> Result<(), Error> {
    let (partitions, offsets): (Vec<i32>, Vec<i64>) = starts.iter().copied().unzip();
    let query = session.query(INSERT).bind(topic);
    let query = query.bind(partitions).bind(offsets);
    session
        .execute("store where partitions start", query)
        .await?;
    Ok(())
}

pub(super) async fn take(
    session: &mut Session,
    owner: Uuid,
    member: &str,
    takes: &[Take],
) -> Result<Vec<i64>, Error> {
    let (topics, partitions) = columns(takes.iter().map(|take| &take.at));
    let offsets: Vec<i64> = takes.iter().map(|take| take.next_offset).collect();
    let topic_ids: Vec<Option<Uuid>> = takes.iter().map(|take| take.topic_id).collect();
    let clusters: Vec<Option<&str>> = takes.iter().map(|t| t.cluster_id.as_deref()).collect();
    let stopped: Vec<Option<&str>> = takes.iter().map(|t| t.stopped.as_deref()).collect();
    let query = session.query(TAKE).bind(owner).bind(member);
    let query = query.bind(topics).bind(partitions).bind(offsets);
    let query = query.bind(topic_ids).bind(clusters).bind(stopped);
    let rows = session.fetch_all("claim partitions", query).await?;
    let mut epochs = HashMap::with_capacity(rows.len());
    for row in &rows {
        epochs.insert(partition(row)?, get::<i64>(row, "epoch")?);
    }
    takes
        .iter()
        .map(|take| {
            epochs
                .get(&take.at)
                .copied()
                .ok_or_else(|| missing(&take.at))
        })
        .collect()
}

fn missing(at: &TopicPartition) -> Error {
    Error::fatal(format!(
        "partition {at} has no row in onceonly.position: was it deleted?"
    ))
}

/// Returns the indexes of moves that did not happen.
pub(super) async fn advance(
    session: &mut Session,
    moves: &[Move<'_>],
    sources: &mut Sources,
) -> Result<Vec<usize>, Error> {
    let (topics, partitions) = columns(moves.iter().map(|m| m.at));
    let epochs: Vec<i64> = moves.iter().map(|m| m.epoch).collect();
    let from: Vec<i64> = moves.iter().map(|m| m.from).collect();
    let to: Vec<i64> = moves.iter().map(|m| m.to).collect();
    let times: Vec<Option<i64>> = moves
        .iter()
        .map(|m| m.event_time_ms.and_then(timestamp::within_range))
        .collect();
    let query = session.query(ADVANCE).bind(topics).bind(partitions);
    let query = query.bind(epochs).bind(from).bind(to).bind(times);
    let rows = session.fetch_all("advance positions", query).await?;
    if let Some(row) = rows.first() {
        session.use_generations(row)?;
    }
    let mut moved = HashMap::with_capacity(rows.len());
    for row in &rows {
        moved.insert(partition(row)?, get::<i32>(row, "id")?);
    }
    let fenced = (0..moves.len()).filter(|&index| !moved.contains_key(moves[index].at));
    let fenced = fenced.collect();
    sources.extend(moved);
    Ok(fenced)
}

/// The transaction's number as it is now, and how many rows were counted.
pub(super) struct Counted {
    pub(super) xid: String,
    pub(super) rows: i64,
}

pub(super) async fn count(
    session: &mut Session,
    xid: &str,
    tallies: &[(&TopicPartition, Tally, u64)],
) -> Result<Counted, Error> {
    let (topics, partitions) = columns(tallies.iter().map(|(at, ..)| *at));
    let mut query = session.query(COUNT).bind(xid);
    query = query.bind(topics).bind(partitions);
    for outcome in Outcome::ALL {
        let counts = tallies
            .iter()
            .map(|(_, tally, _)| tally.get(outcome) as i64);
        query = query.bind(counts.collect::<Vec<i64>>());
    }
    let conflicts = tallies.iter().map(|(.., conflicts)| *conflicts as i64);
    query = query.bind(conflicts.collect::<Vec<i64>>());
    let row = session.fetch_one("count outcomes", query).await?;
    Ok(Counted {
        xid: get(&row, "xid")?,
        rows: get(&row, "counted")?,
    })
}

pub(super) async fn standings(session: &mut Session) -> Result<Vec<Standing>, Error> {
    let query = session.query(STANDINGS);
    let rows = session.fetch_all("read positions", query).await?;
    rows.iter().map(standing).collect()
}

fn standing(row: &PgRow) -> Result<Standing, Error> {
    Ok(Standing {
        at: partition(row)?,
        epoch: get(row, "epoch")?,
        next_offset: get(row, "next_offset")?,
        high_water: get(row, "high_water")?,
        topic_id: get(row, "topic_id")?,
    })
}

pub(super) async fn stop(
    session: &mut Session,
    at: &TopicPartition,
    epoch: i64,
    reason: &str,
) -> Result<(), Error> {
    let query = session.query(STOP).bind(&*at.topic).bind(at.partition);
    let query = query.bind(epoch).bind(reason);
    session.execute("stop the partition", query).await?;
    Ok(())
}

/// Learns the short names that no position has told yet.
pub(super) async fn learn_sources(
    session: &mut Session,
    wanted: &[&TopicPartition],
    sources: &mut Sources,
) -> Result<(), Error> {
    let (topics, partitions) = columns(wanted.iter().copied());
    let query = session.query(SOURCES).bind(topics).bind(partitions);
    for row in &session.fetch_all("find partitions", query).await? {
        sources.insert(partition(row)?, get(row, "id")?);
    }
    match wanted.iter().find(|at| !sources.contains_key(**at)) {
        Some(at) => Err(missing(at)),
        None => Ok(()),
    }
}
