//! What closed generations surely do not hold: a Bloom filter of each, so that an id that is new,
//! as most are, needs no look into them.
//!
//! A generation is closed once claims write to a later one alone. Transactions that write to both
//! may still add ids to it; those are in the later one too, where a claim meets them. Filters are
//! of one process, built in the background. Until there is one for every closed generation, claims
//! look into all of them.
//!
//! A filter holds for the history of the database in which it was built: one that went back, by a
//! failover or a restore, may write more to a generation that was closed. So each connection asks
//! when generations were made, and believes a filter only where its generation's successor is the
//! one that the filter knew.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fastbloom::BloomFilter;
use hashbrown::DefaultHashBuilder;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use super::session::{Session, get};
use super::settings::PostgresSettings;
use super::statement::Generations;
use crate::error::Error;

const BIRTHS: &str = include_str!("../../../sql/ledger/births.sql");
const BLOCKS: &str = include_str!("../../../sql/ledger/blocks.sql");
const KEYS: &str = include_str!("../../../sql/ledger/keys.sql");
const STEP: &str = include_str!("../../../sql/rotation/step.sql");

/// Of ids that are absent, how many a filter does not tell as such: each costs a look.
const FALSE_POSITIVES: f64 = 0.005;

/// What all filters of a process may take. At about 11 bits an id that is 95 million ids; beyond
/// that claims look into the generations.
const BYTES_MAX: usize = 128 * 1024 * 1024;

/// Blocks of a table whose ids are read at a time: about 100,000.
const BLOCKS_AT_ONCE: i64 = 1024;

/// Rows that a block of a ledger holds at most.
const ROWS_PER_BLOCK: i64 = 113;

/// How often to look for generations without a filter.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Filter {
    ids: BloomFilter<DefaultHashBuilder>,
    successor_born_at_us: i64,
}

/// The filters of a process.
#[derive(Clone, Debug, Default)]
pub struct Absences {
    filters: Arc<RwLock<BTreeMap<i32, Arc<Filter>>>>,
}

/// When the generations of one connection's history were made.
#[derive(Debug, Default)]
pub(super) struct Births {
    known_for: Option<Generations>,
    born_at_us: HashMap<i32, i64>,
}

impl Births {
    /// Learns them, once for each change of generations.
    pub(super) async fn learn(
        session: &mut Session,
        generations: Generations,
    ) -> Result<(), Error> {
        if session.births.known_for == Some(generations) {
            return Ok(());
        }
        session.births = Self {
            known_for: Some(generations),
            born_at_us: read(session).await?,
        };
        Ok(())
    }
}

async fn read(session: &mut Session) -> Result<HashMap<i32, i64>, Error> {
    let query = session.query(BIRTHS);
    let rows = session.fetch_all("look at the generations", query).await?;
    let birth = |row| Ok((get(row, "generation")?, get(row, "born_at_us")?));
    rows.iter().map(birth).collect()
}

impl Absences {
    /// The ids that an older generation may hold. All of them, where a filter is missing.
    pub(super) fn suspects(
        &self,
        generations: Generations,
        births: &Births,
        ids: impl Iterator<Item = Uuid>,
    ) -> Vec<Uuid> {
        match self.believed(generations, births) {
            Some(filters) => ids
                .filter(|id| filters.iter().any(|filter| filter.ids.contains(id)))
                .collect(),
            None => ids.collect(),
        }
    }

    fn believed(&self, generations: Generations, births: &Births) -> Option<Vec<Arc<Filter>>> {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        let believed = |number: i32| {
            let filter = filters.get(&number)?;
            let born_at_us = births.born_at_us.get(&(number + 1))?;
            (filter.successor_born_at_us == *born_at_us).then(|| Arc::clone(filter))
        };
        (generations.oldest..generations.current)
            .map(believed)
            .collect()
    }

    /// The generations that there is a filter of.
    pub fn generations(&self) -> Vec<i32> {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        filters.keys().copied().collect()
    }

    /// Builds filters of closed generations until `end`, and drops those of forgotten ones. What
    /// fails is tried again: claims do without.
    pub async fn keep(self, settings: PostgresSettings, pipeline: String, end: CancellationToken) {
        let building = async {
            let mut session = None;
            loop {
                if let Err(error) = self.build_missing(&settings, &pipeline, &mut session).await {
                    debug!("filters of closed generations have to wait: {error}");
                    session = None;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = building => {}
        }
    }

    async fn build_missing(
        &self,
        settings: &PostgresSettings,
        pipeline: &str,
        kept: &mut Option<Session>,
    ) -> Result<(), Error> {
        if kept.is_none() {
            *kept = Some(Session::open(settings, pipeline, false).await?);
        }
        let Some(session) = kept.as_mut() else {
            return Ok(());
        };
        let query = session.query(STEP);
        let row = session.fetch_one("read the generations", query).await?;
        let generations = session.use_generations(&row)?;
        let born_at_us = read(session).await?;
        let closed = generations.oldest..generations.current;
        self.change(|filters| filters.retain(|number, _| closed.contains(number)));
        for number in closed {
            let Some(&successor_born_at_us) = born_at_us.get(&(number + 1)) else {
                continue;
            };
            let known = self.filter(number);
            if known.is_some_and(|known| known.successor_born_at_us == successor_born_at_us) {
                continue;
            }
            self.change(|filters| filters.remove(&number));
            if let Some(ids) = build(session, number, self.bytes()).await? {
                let filter = Arc::new(Filter {
                    ids,
                    successor_born_at_us,
                });
                self.change(|filters| filters.insert(number, filter));
            }
        }
        Ok(())
    }

    fn filter(&self, number: i32) -> Option<Arc<Filter>> {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        filters.get(&number).cloned()
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<i32, Arc<Filter>>) -> T) -> T {
        change(&mut self.filters.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn bytes(&self) -> usize {
        let filters = self.filters.read().unwrap_or_else(PoisonError::into_inner);
        filters
            .values()
            .map(|filter| filter.ids.num_bits() / 8)
            .sum()
    }
}

/// A generation's filter; `None` where it would take too much beside the `bytes` that others take.
async fn build(
    session: &mut Session,
    generation: i32,
    bytes: usize,
) -> Result<Option<BloomFilter<DefaultHashBuilder>>, Error> {
    let doing = "read a closed generation";
    let sql = (session.sql.clone()).with_generation(session.pipeline_id, generation);
    let row = session.fetch_one(doing, sql.query(BLOCKS)).await?;
    let blocks: i64 = get(&row, "blocks")?;
    let rows = usize::try_from(blocks * ROWS_PER_BLOCK).unwrap_or(usize::MAX);
    // 1.44 bits for each halving of the false positives (Bloom, 1970).
    let bits_per_id = 1.44 * -FALSE_POSITIVES.log2();
    if bytes + (rows as f64 * bits_per_id / 8.0) as usize > BYTES_MAX {
        return Ok(None);
    }
    let mut ids = BloomFilter::with_false_pos(FALSE_POSITIVES)
        .hasher(DefaultHashBuilder::default())
        .expected_items(rows.max(1));
    for from in (0..blocks).step_by(BLOCKS_AT_ONCE as usize) {
        let query = sql.query(KEYS).bind(from).bind(from + BLOCKS_AT_ONCE);
        let row = session.fetch_one(doing, query).await?;
        for id in get::<Vec<Uuid>>(&row, "keys")? {
            ids.insert(&id);
        }
    }
    Ok(Some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERATIONS: Generations = Generations {
        oldest: 1,
        current: 3,
        next: None,
    };

    fn absences(filters: &[(i32, &[u128], i64)]) -> Absences {
        let absences = Absences::default();
        for &(number, held, successor_born_at_us) in filters {
            let mut ids = BloomFilter::with_false_pos(FALSE_POSITIVES)
                .hasher(DefaultHashBuilder::default())
                .expected_items(100);
            held.iter().for_each(|&id| {
                ids.insert(&Uuid::from_u128(id));
            });
            let filter = Filter {
                ids,
                successor_born_at_us,
            };
            absences.change(|filters| filters.insert(number, Arc::new(filter)));
        }
        absences
    }

    fn births(born: &[(i32, i64)]) -> Births {
        Births {
            known_for: None,
            born_at_us: born.iter().copied().collect(),
        }
    }

    fn suspects(absences: &Absences, births: &Births) -> usize {
        let ids = (0..1_000).map(Uuid::from_u128);
        absences.suspects(GENERATIONS, births, ids).len()
    }

    #[test]
    fn ids_that_no_closed_generation_holds_are_no_suspects_and_held_ones_are() {
        let absences = absences(&[(1, &[1, 2], 20), (2, &[3], 30)]);
        let born = births(&[(1, 10), (2, 20), (3, 30)]);
        let ids = [1, 2, 3].map(Uuid::from_u128);
        let found = absences.suspects(GENERATIONS, &born, ids.into_iter());
        assert_eq!(found, ids);
        assert!(suspects(&absences, &born) < 50);
    }

    #[test]
    fn every_id_is_suspect_where_a_filter_is_missing_or_of_another_history() {
        let born = births(&[(1, 10), (2, 20), (3, 30)]);
        assert_eq!(suspects(&absences(&[(1, &[], 20)]), &born), 1_000);
        let of_another = absences(&[(1, &[], 20), (2, &[], 31)]);
        assert_eq!(suspects(&of_another, &born), 1_000);
        let unborn = births(&[(1, 10), (2, 20)]);
        let complete = absences(&[(1, &[], 20), (2, &[], 30)]);
        assert_eq!(suspects(&complete, &unborn), 1_000);
        assert_eq!(suspects(&complete, &born), 0);
    }
}
