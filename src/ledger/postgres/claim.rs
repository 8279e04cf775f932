//! Claiming ids, and learning what became of those that were known.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::position::{self, Sources};
use super::session::{Session, get};
use crate::error::Error;
use crate::event::TopicPartition;
use crate::ledger::{Claim, Entry, Fate};

const CLAIM: &str = include_str!("../../../sql/ledger/claim.sql");
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
    let claimed = insert(session, entries, sources).await?;
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

/// Returns the keys that were new.
async fn insert(
    session: &mut Session,
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
    let query = session.sql.query(CLAIM).bind(keys).bind(offsets);
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
