//! The claim that hopes every id of a batch to be new, which most are: a binary `COPY` costs about
//! half of an insert that is ready for conflicts.
//!
//! A known id fails the copy, a savepoint before it keeps the transaction, and the batch is claimed
//! by the statement that looks. As there, ids come sorted, and whoever meets an id of an open
//! transaction waits for its end: the unique index is the same.
//!
//! Where older generations are looked into, that is a statement before the copy, for the ids that
//! their filters do not exclude (see [`super::absence`]). An id that it does
//! not find there can be in the current one only: nobody who can be met here writes to an older one
//! without writing to the current one too (see [`super::rotation`]), and there the copy meets it.

use std::borrow::Cow;
use std::collections::HashSet;

use uuid::Uuid;

use super::absence::Births;
use super::binary_copy::{BinaryCopy, failed_row, push};
use super::position::Sources;
use super::session::{Session, answered, get};
use super::statement::Generations;
use crate::error::Error;
use crate::ledger::Entry;

const HOPE: &str = include_str!("../../../sql/ledger/hope.sql");
const COPY: &str = include_str!("../../../sql/ledger/copy.sql");
const FULFIL: &str = include_str!("../../../sql/ledger/fulfil.sql");
const GIVE_UP: &str = include_str!("../../../sql/ledger/give_up.sql");
const KNOWN_BEFORE: &str = include_str!("../../../sql/ledger/known_before.sql");

/// Fewer ids are claimed faster by one statement than by three.
const IDS_MIN: usize = 64;

/// Ids that must be new for each row that a copy in vain may leave behind: rows that failed stay in
/// the table, dead, until vacuum takes them.
const NEW_PER_DEAD: usize = 100;

/// The most dead rows that may be earned ahead.
const CREDIT_MAX: usize = 20_000;

/// What a new connection may leave: a batch or two, since most streams are worth a try.
const FIRST_CREDIT: usize = 10_000;

/// SQLSTATE: a key is in the index already.
const UNIQUE_VIOLATION: &str = "23505";

const COLUMNS: i16 = 5;

/// Keeps the rows that were copied in vain below one in [`NEW_PER_DEAD`].
#[derive(Debug)]
pub(super) struct Hope {
    /// New ids, less what was spent: [`NEW_PER_DEAD`] of them pay for a dead row.
    earned: usize,
}

impl Default for Hope {
    fn default() -> Self {
        Self {
            earned: FIRST_CREDIT * NEW_PER_DEAD,
        }
    }
}

impl Hope {
    /// Whether so many ids may be copied.
    fn affords(&self, ids: usize) -> bool {
        ids >= IDS_MIN && self.earned >= ids * NEW_PER_DEAD
    }

    /// So many ids were new.
    pub(super) fn earn(&mut self, ids: usize) {
        self.earned = (self.earned + ids).min(CREDIT_MAX * NEW_PER_DEAD);
    }

    /// So many rows were copied in vain.
    fn spend(&mut self, rows: usize) {
        self.earned = self.earned.saturating_sub(rows * NEW_PER_DEAD);
    }
}

/// Claims ids, sorted by key. Returns those that were new; `None`, with nothing changed, where a
/// copy is not worth trying or was in vain.
pub(super) async fn claim(
    session: &mut Session,
    generations: Generations,
    entries: &[Entry<'_>],
    sources: &Sources,
) -> Result<Option<Vec<Uuid>>, Error> {
    // In the midst of a rotation ids are written to two generations.
    if generations.next.is_some() || !session.hope.affords(entries.len()) {
        return Ok(None);
    }
    let known = match generations.oldest < generations.current {
        true => known_before(session, generations, entries).await?,
        false => HashSet::new(),
    };
    let unknown: Cow<'_, [Entry<'_>]> = match known.is_empty() {
        true => entries.into(),
        false => {
            let is_unknown = |entry: &&Entry<'_>| !known.contains(&entry.key.0);
            entries.iter().filter(is_unknown).copied().collect()
        }
    };
    session.raw("set a savepoint", HOPE).await?;
    if copy(session, &unknown, sources).await? {
        session.raw("release a savepoint", FULFIL).await?;
        session.hope.earn(unknown.len());
        return Ok(Some(unknown.iter().map(|entry| entry.key.0).collect()));
    }
    session.raw("go back to a savepoint", GIVE_UP).await?;
    Ok(None)
}

async fn known_before(
    session: &mut Session,
    generations: Generations,
    entries: &[Entry<'_>],
) -> Result<HashSet<Uuid>, Error> {
    Births::learn(session, generations).await?;
    let keys = entries.iter().map(|entry| entry.key.0);
    let keys = session
        .absences
        .suspects(generations, &session.births, keys);
    if keys.is_empty() {
        return Ok(HashSet::new());
    }
    let query = session.sql.query(KNOWN_BEFORE).bind(keys);
    let rows = session
        .fetch_all("look into older generations", query)
        .await?;
    rows.iter().map(|row| get(row, "event_key")).collect()
}

/// Returns whether every id was new.
async fn copy(
    session: &mut Session,
    entries: &[Entry<'_>],
    sources: &Sources,
) -> Result<bool, Error> {
    let statement = session.sql.render(COPY);
    let applied_at = session.began_at_us;
    let connection = &mut session.connection;
    let copied = async {
        let copied = async {
            let mut copy = BinaryCopy::begin(connection, &statement).await?;
            for entry in entries {
                copy.row(COLUMNS, |out| push_row(out, entry, applied_at, sources))
                    .await?;
            }
            copy.finish().await
        };
        Ok(copied.await)
    };
    let copied = answered(session.answer_timeout, "claim ids", copied).await?;
    let Err(error) = copied else {
        return Ok(true);
    };
    let row = failed_row(&error).unwrap_or(entries.len());
    let error = Error::postgres("claim ids", error);
    if error.code() != Some(UNIQUE_VIOLATION) {
        return Err(error);
    }
    session.hope.spend(row);
    Ok(false)
}

fn push_row(out: &mut Vec<u8>, entry: &Entry<'_>, applied_at: i64, sources: &Sources) {
    push(out, Some(entry.key.0.as_bytes()));
    push(out, Some(&entry.event.offset().to_be_bytes()));
    push(out, Some(&applied_at.to_be_bytes()));
    let source = sources.get(entry.event.at()).map(|id| id.to_be_bytes());
    push(out, source.as_ref().map(<[u8; 4]>::as_slice));
    let hash = entry.body_hash.map(i64::to_be_bytes);
    push(out, hash.as_ref().map(<[u8; 8]>::as_slice));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_batch_is_not_worth_a_copy() {
        let hope = Hope::default();
        assert!(!hope.affords(IDS_MIN - 1));
        assert!(hope.affords(IDS_MIN));
    }

    proptest! {
        #[test]
        fn dead_rows_stay_below_a_hundredth_of_the_new_ones(
            batches in prop::collection::vec((1_usize..6_000, 0_usize..6_000), 1..300),
        ) {
            let mut hope = Hope::default();
            let (mut dead, mut new) = (0, 0);
            for (ids, failed_row) in batches {
                if hope.affords(ids) && failed_row > 0 && failed_row <= ids {
                    hope.spend(failed_row);
                    dead += failed_row;
                }
                hope.earn(ids);
                new += ids;
            }
            prop_assert!(dead <= FIRST_CREDIT + new / NEW_PER_DEAD, "{dead} of {new}");
        }
    }
}
