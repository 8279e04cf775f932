//! Claiming ids, and learning what became of those that were known.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::hope;
use super::position::{self, Sources};
use super::session::{Session, get};
use super::statement::{Generations, Sql};
use crate::error::Error;
use crate::event::TopicPartition;
use crate::ledger::{Claim, Entry, Fate};

const CLAIM: &str = include_str!("../../../sql/ledger/claim.sql");
const CLAIM_BESIDE: &str = include_str!("../../../sql/ledger/claim_beside.sql");
const STEP: &str = include_str!("../../../sql/rotation/step.sql");
const FATES: &str = include_str!("../../../sql/ledger/fates.sql");
const CONFLICTS: &str = include_str!("../../../sql/ledger/conflicts.sql");

pub(super) async fn claim(
    session: &mut Session,
    entries: &[Entry<'_>],
    sources: &mut Sources,
) -> Result<Vec<Claim>, Error> {
    if !entries.is_sorted_by(|a, b| a.key < b.key) {
        return Err(Error::fatal("ids must be claimed in order, none twice"));
    }
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    learn_sources(session, entries, sources).await?;
    let claimed = insert_in_step(session, entries, sources).await?;
    if claimed.len() == entries.len() {
        let new = Claim {
            fate: Fate::New,
            conflict: false,
        };
        return Ok(vec![new; entries.len()]);
    }
    let claimed: HashSet<Uuid> = claimed.into_iter().collect();
    let known: Vec<Entry<'_>> = entries
        .iter()
        .filter(|entry| !claimed.contains(&entry.key.0))
        .copied()
        .collect();
    let fates = fates(session, &known).await?;
    let conflicts: HashSet<Uuid> = known
        .iter()
        .zip(conflicts(session, &known).await?)
        .filter_map(|(entry, conflict)| conflict.then_some(entry.key.0))
        .collect();
    let answer = |entry: &Entry<'_>| Claim {
        fate: match claimed.contains(&entry.key.0) {
            true => Fate::New,
            false => fates.get(&entry.key.0).copied().unwrap_or(Fate::Applied),
        },
        conflict: conflicts.contains(&entry.key.0),
    };
    Ok(entries.iter().map(answer).collect())
}

async fn learn_sources(
    session: &mut Session,
    entries: &[Entry<'_>],
    sources: &mut Sources,
) -> Result<(), Error> {
    let mut unknown: Vec<&TopicPartition> = entries
        .iter()
        .map(|entry| entry.event.at())
        .filter(|at| !sources.contains_key(*at))
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    unknown.sort_unstable();
    unknown.dedup();
    position::learn_sources(session, &unknown, sources).await
}

/// The generations in force for this transaction, read once in it.
pub(super) async fn generations(session: &mut Session) -> Result<Generations, Error> {
    if let Some(generations) = session.generations {
        return Ok(generations);
    }
    let query = session.query(STEP);
    let row = session.fetch_one("read the generations", query).await?;
    session.use_generations(&row)
}

/// Writes to the generations that the rotation's step asks for. Returns the keys that were new.
async fn insert_in_step(
    session: &mut Session,
    entries: &[Entry<'_>],
    sources: &Sources,
) -> Result<Vec<Uuid>, Error> {
    let generations = generations(session).await?;
    if let Some(claimed) = hope::claim(session, generations, entries, sources).await? {
        return Ok(claimed);
    }
    let statement = match generations.oldest < generations.current {
        true => CLAIM_BESIDE,
        false => CLAIM,
    };
    let sql = session.sql.clone();
    let claimed = insert(session, &sql, statement, entries, sources).await?;
    session.hope.earn(claimed.len());
    let Some(next) = generations.next.filter(|_| !claimed.is_empty()) else {
        return Ok(claimed);
    };
    // An id that is only in the next generation came with a transaction that no longer writes to
    // this one.
    let claimed: HashSet<Uuid> = claimed.into_iter().collect();
    let new = |entry: &&Entry<'_>| claimed.contains(&entry.key.0);
    let entries: Vec<Entry<'_>> = entries.iter().filter(new).copied().collect();
    let sql = sql.with_generation(session.pipeline_id, next);
    insert(session, &sql, CLAIM, &entries, sources).await
}

/// Returns the keys that were new.
async fn insert(
    session: &mut Session,
    sql: &Sql,
    statement: &str,
    entries: &[Entry<'_>],
    sources: &Sources,
) -> Result<Vec<Uuid>, Error> {
    let keys: Vec<Uuid> = entries.iter().map(|entry| entry.key.0).collect();
    let offsets: Vec<i64> = entries.iter().map(|entry| entry.event.offset()).collect();
    let origins: Vec<Option<i32>> = entries
        .iter()
        .map(|entry| sources.get(entry.event.at()).copied())
        .collect();
    let hashes: Vec<Option<i64>> = entries.iter().map(|entry| entry.body_hash).collect();
    let query = sql.query(statement).bind(keys).bind(offsets);
    let query = query.bind(origins).bind(hashes);
    let row = session.fetch_one("claim ids", query).await?;
    get(&row, "coalesce")
}

async fn fates(session: &mut Session, known: &[Entry<'_>]) -> Result<HashMap<Uuid, Fate>, Error> {
    let keys: Vec<Uuid> = known.iter().map(|entry| entry.key.0).collect();
    let query = session.query(FATES).bind(keys);
    let rows = session.fetch_all("look up known ids", query).await?;
    let mut fates = HashMap::with_capacity(rows.len());
    for row in &rows {
        let fate = match get::<&str>(row, "fate")? {
            "waiting" => Fate::Waiting,
            _ => Fate::Dead,
        };
        fates.insert(get(row, "event_key")?, fate);
    }
    Ok(fates)
}

pub(super) async fn conflicts(
    session: &mut Session,
    entries: &[Entry<'_>],
) -> Result<Vec<bool>, Error> {
    let mut conflicts = vec![false; entries.len()];
    if entries.iter().all(|entry| entry.body_hash.is_none()) {
        return Ok(conflicts);
    }
    generations(session).await?;
    let keys: Vec<Uuid> = entries.iter().map(|entry| entry.key.0).collect();
    let hashes: Vec<Option<i64>> = entries.iter().map(|entry| entry.body_hash).collect();
    let query = session.sql.query(CONFLICTS).bind(keys).bind(hashes);
    for row in &session.fetch_all("compare bodies", query).await? {
        let ordinal: i64 = get(row, "ordinal")?;
        let index = usize::try_from(ordinal - 1).ok();
        if let Some(conflict) = index.and_then(|index| conflicts.get_mut(index)) {
            *conflict = true;
        }
    }
    Ok(conflicts)
}
