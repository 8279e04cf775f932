//! The rotation of a ledger's generations, which makes forgetting the dropping of a table.
//!
//! No lock keeps writers out. A rotation from generation `g` to `g + 1` is two committed steps, and
//! each transaction keeps to the step that it reads, in a statement after the one that assigned its
//! number:
//!
//! ```text
//! step       claims write to    claims look into    of two that overlap
//! current    g                  older than g
//! both       g and g + 1        older than g        current and both meet in g
//! next       g + 1              g and older         both and next meet in g + 1
//! ```
//!
//! `current` and `next` meet nowhere, so they must never overlap. After `both` is committed, a new
//! transaction has itself numbered: whoever gets a higher number gets it after the commit, so it
//! reads `both`. (`pg_snapshot_xmax` would not do: it is the number after the last transaction that
//! ended, and writers that run already may have that one or a higher.) Once `pg_snapshot_xmin` has
//! reached the number, every transaction that may have read `current` has ended, and its ids are in
//! every later snapshot. Only then is `next` committed. `next` is the following rotation's `current`; that rotation waits in
//! the same way for whoever still writes to both.
//!
//! Where the partitions stand when `next` is committed is the birth of `g + 1`: whoever claimed the
//! records from there on wrote to `g + 1`. Before the oldest generation is passed over, each
//! partition's horizon moves to the birth of the generation after it; the ids of waiting and dead
//! events are carried forward in the transaction that passes it over. The table is dropped once everyone who may look into it has
//! ended, by the same wait.
//!
//! Every step is a compare-and-set, and each is found in the tables: whoever comes after a rotator
//! that died goes on where it stopped.
//!
//! An id is remembered from its first application: a duplicate does not renew it. A rewind within
//! the horizon that meets a duplicate of a forgotten id applies it.

use std::time::{Duration, Instant};

use super::claim::generations;
use super::session::{Session, get};
use super::settings::PostgresSettings;
use super::statement::Generations;
use crate::error::Error;
use crate::event::TopicPartition;
use crate::retention::Generation;

const TRY_LOCK: &str = include_str!("../../../sql/rotation/try_lock.sql");
const WRITE_BOTH: &str = include_str!("../../../sql/rotation/write_both.sql");
const WRITE_NEXT: &str = include_str!("../../../sql/rotation/write_next.sql");
const NUMBER_TRANSACTION: &str = include_str!("../../../sql/rotation/number_transaction.sql");
const OLDEST_TRANSACTION: &str = include_str!("../../../sql/rotation/oldest_transaction.sql");
const CARRY: &str = include_str!("../../../sql/rotation/carry.sql");
const PASS_OVER_OLDEST: &str = include_str!("../../../sql/rotation/pass_over_oldest.sql");
const BIRTHS: &str = include_str!("../../../sql/rotation/births.sql");
const RAISE_HORIZON: &str = include_str!("../../../sql/rotation/raise_horizon.sql");
const PASSED_OVER: &str = include_str!("../../../sql/rotation/passed_over.sql");
const AGES: &str = include_str!("../../../sql/rotation/ages.sql");
const DATE: &str = include_str!("../../../sql/rotation/date.sql");
const NOW: &str = include_str!("../../../sql/rotation/now.sql");
const PLACES: &str = include_str!("../../../sql/rotation/places.sql");
const DROP: &str = include_str!("../../../sql/rotation/drop.sql");
const BEGIN: &str = include_str!("../../../sql/session/begin.sql");
const COMMIT: &str = include_str!("../../../sql/session/commit.sql");

/// How often to look whether older transactions have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The one member that rotates a pipeline's ledger, for as long as its connection lives.
///
/// After an error it is dropped, which rolls back what it had open; another one goes on.
pub struct Rotator {
    session: Session,
    patience: Duration,
}

impl Rotator {
    /// Connects; `None` where another member rotates. `patience` bounds each wait for transactions
    /// that began before a step.
    pub async fn open(
        settings: &PostgresSettings,
        pipeline: &str,
        patience: Duration,
    ) -> Result<Option<Self>, Error> {
        let mut session = Session::open(settings, pipeline, false).await?;
        let query = session.query(TRY_LOCK);
        let row = session.fetch_one("lock the rotation", query).await?;
        let locked: bool = get(&row, "locked")?;
        Ok(locked.then_some(Self { session, patience }))
    }

    /// The generations in force.
    pub async fn generations(&mut self) -> Result<Generations, Error> {
        self.session.generations = None;
        generations(&mut self.session).await
    }

    /// The generations that claims look into, from the oldest to the current one.
    pub async fn ages(&mut self) -> Result<Vec<Generation>, Error> {
        ages(&mut self.session).await
    }

    /// The database's clock, in milliseconds since the epoch.
    pub async fn now_ms(&mut self) -> Result<i64, Error> {
        let query = self.session.sql.query(NOW);
        let row = self.session.fetch_one("read the clock", query).await?;
        get(&row, "now_ms")
    }

    /// Where each partition stands: its next offset, and the time of its last record where it has
    /// one.
    pub async fn places(&mut self) -> Result<Vec<(TopicPartition, i64, Option<i64>)>, Error> {
        let query = self.session.query(PLACES);
        let rows = self.session.fetch_all("read positions", query).await?;
        let place = |row| {
            let (topic, partition) = (get::<&str>(row, "topic")?, get(row, "partition")?);
            let at = TopicPartition::new(topic, partition);
            Ok((at, get(row, "next_offset")?, get(row, "event_time_ms")?))
        };
        rows.iter().map(place).collect()
    }

    /// Notes where in the pipeline's own time a generation was complete, unless that is noted.
    pub async fn date(&mut self, generation: i32, time_ms: i64) -> Result<(), Error> {
        let query = self.session.query(DATE).bind(generation).bind(time_ms);
        self.session.execute("date a generation", query).await?;
        Ok(())
    }

    /// Begins the next generation, or ends a rotation that was interrupted.
    ///
    /// A transient error where a transaction from before does not end in time.
    pub async fn rotate(&mut self) -> Result<(), Error> {
        let query = self.session.query(WRITE_BOTH);
        self.session.execute("add a generation", query).await?;
        self.outlive_older_transactions().await?;
        let query = self.session.query(WRITE_NEXT);
        self.session.execute("end a rotation", query).await?;
        Ok(())
    }

    /// Forgets the oldest generation. Returns whether there was one before the current.
    pub async fn forget_oldest(&mut self) -> Result<bool, Error> {
        let generations = self.generations().await?;
        if generations.next.is_some() {
            return Err(Error::fatal(
                "a rotation was interrupted: it must end before ids are forgotten",
            ));
        }
        if generations.oldest == generations.current {
            return Ok(false);
        }
        self.raise_horizons(generations.oldest + 1).await?;
        self.session.raw("begin", BEGIN).await?;
        let query = self.session.query(CARRY);
        self.session
            .execute("carry waiting and dead ids forward", query)
            .await?;
        let query = (self.session.query(PASS_OVER_OLDEST)).bind(generations.oldest);
        self.session
            .execute("pass over a generation", query)
            .await?;
        self.session.raw("commit", COMMIT).await?;
        self.drop_passed_over().await?;
        Ok(true)
    }

    /// Where memory begins once `generation` is the oldest; before it is, this is merely careful.
    async fn raise_horizons(&mut self, generation: i32) -> Result<(), Error> {
        let query = self.session.query(BIRTHS).bind(generation);
        let rows = self.session.fetch_all("look for births", query).await?;
        for row in &rows {
            let query = self.session.query(RAISE_HORIZON).bind(generation);
            let query = query.bind(get::<i32>(row, "source")?);
            let raised = self.session.fetch_all("raise a horizon", query).await?;
            if raised.is_empty() {
                let (topic, partition) = (get::<&str>(row, "topic")?, get(row, "partition")?);
                return Err(taken_back(&TopicPartition::new(topic, partition)));
            }
        }
        Ok(())
    }

    /// Drops the tables of generations that were passed over; also those of a rotator that died.
    pub async fn drop_passed_over(&mut self) -> Result<(), Error> {
        let query = self.session.query(PASSED_OVER);
        let rows = (self.session)
            .fetch_all("look for old generations", query)
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        self.outlive_older_transactions().await?;
        for row in &rows {
            let query = self.session.query(DROP);
            let query = query.bind(get::<i32>(row, "generation")?);
            self.session.execute("drop a generation", query).await?;
        }
        Ok(())
    }

    /// Waits until every transaction has ended that may have read what was in force before the last
    /// commit.
    async fn outlive_older_transactions(&mut self) -> Result<(), Error> {
        let doing = "wait for older transactions";
        let query = self.session.sql.query(NUMBER_TRANSACTION);
        let row = self.session.fetch_one(doing, query).await?;
        let number: i64 = get(&row, "number")?;
        let began = Instant::now();
        loop {
            let query = self.session.sql.query(OLDEST_TRANSACTION);
            let row = self.session.fetch_one(doing, query).await?;
            let oldest: i64 = get(&row, "xmin")?;
            if oldest >= number {
                return Ok(());
            }
            if began.elapsed() >= self.patience {
                return Err(held_back(oldest, self.patience));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

pub(super) async fn ages(session: &mut Session) -> Result<Vec<Generation>, Error> {
    let query = session.query(AGES);
    let rows = session.fetch_all("look at the generations", query).await?;
    let generation = |row| {
        Ok(Generation {
            number: get(row, "generation")?,
            event_time_ms: get(row, "event_time_ms")?,
            bytes: get::<i64>(row, "bytes")?.unsigned_abs(),
            ids: get::<i64>(row, "ids")?.unsigned_abs(),
        })
    };
    rows.iter().map(generation).collect()
}

fn taken_back(at: &TopicPartition) -> Error {
    Error::transient(format!(
        "nothing is forgotten before {at} has read again what it was taken back over: its records \
         there need the ids that are due to be forgotten"
    ))
}

fn held_back(xid: i64, patience: Duration) -> Error {
    let message = format!(
        "the ledger's rotation is held back: transaction {xid} has been open for more than {} s; \
         writers go on, but nothing is forgotten; look for it in pg_stat_activity (backend_xid) and \
         pg_prepared_xacts, and end it",
        patience.as_secs()
    );
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, message);
    Error::postgres("rotate the ledger", sqlx::Error::Io(error))
}
