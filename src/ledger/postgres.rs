//! The ledger in Postgres.
//!
//! One raw connection, no pool: a transaction is begun and ended by plain statements, and a
//! connection with any doubt on it is dropped with whatever it had open.

use sqlx::PgConnection;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use tracing::warn;
use uuid::Uuid;

use super::{
    Claim, CommitError, Due, Entry, Ledger, Move, Parked, Position, Settled, Standing, Take,
};
use crate::error::Error;
use crate::event::TopicPartition;
use crate::filter::Receipt;
use crate::outcome::Tally;

mod absence;
pub(crate) mod binary_copy;
mod claim;
#[cfg(feature = "kafka")]
pub(crate) mod comparison;
mod hope;
mod migrate;
mod nodelay;
mod pipeline;
mod position;
mod position_set;
pub mod report;
pub mod rotation;
mod session;
mod settings;
mod statement;
pub(crate) mod timestamp;
mod waiting;

pub use absence::Absences;
pub use migrate::{SCHEMA_VERSION_KNOWN, migrate};
pub use pipeline::{Difference, Fingerprint, Registered, adopt, register};
pub use position_set::{Log, PositionSet, position_set};
pub(crate) use session::answered;
pub(crate) use settings::ANSWER_TIMEOUT;
pub use settings::PostgresSettings;
pub use statement::{Generations, Sql};

use position::Sources;
use session::{Session, get};

const BEGIN: &str = include_str!("../../sql/session/begin.sql");
const COMMIT: &str = include_str!("../../sql/session/commit.sql");
const END_OVERDUE: &str = include_str!("../../sql/session/end_overdue.sql");
const ROLLBACK: &str = include_str!("../../sql/session/rollback.sql");
const MARK_NAMESPACE: &str = include_str!("../../sql/pipeline/mark_namespace.sql");
const BUMP_MARK_NAMESPACE: &str = include_str!("../../sql/pipeline/bump_mark_namespace.sql");

/// SQLSTATE: a lock was not granted within lock_timeout.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// One worker's connection to Postgres.
pub struct PostgresLedger {
    settings: PostgresSettings,
    pipeline: String,
    session: Option<Session>,
    /// The number of the open transaction.
    xid: Option<String>,
    /// What this connection has learned; nothing of it outlives the connection.
    sources: Sources,
    /// Whether this server was once found fit.
    trusted: bool,
    absences: Absences,
    /// A lock was not to be had in time: its holder may be frozen.
    met_lock: bool,
}

impl PostgresLedger {
    /// For a pipeline that [`register`] knows. Does not connect yet.
    pub fn new(settings: PostgresSettings, pipeline: impl Into<String>) -> Self {
        Self {
            settings,
            pipeline: pipeline.into(),
            session: None,
            xid: None,
            sources: Sources::new(),
            trusted: false,
            met_lock: false,
            absences: Absences::default(),
        }
    }

    /// With filters of closed generations, which all ledgers of a process share.
    pub fn with_absences(mut self, absences: &Absences) -> Self {
        self.absences = absences.clone();
        self
    }

    fn session(&mut self) -> Result<&mut Session, Error> {
        self.session.as_mut().ok_or_else(disconnected)
    }

    /// Drops a connection that an error ended.
    fn noting<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.met_lock |= error.code() == Some(LOCK_NOT_AVAILABLE);
            if error.is_disconnect() {
                self.disconnect();
            }
        }
        result
    }

    /// Ends whoever holds positions although its time is over.
    async fn end_overdue(&mut self) -> Result<(), Error> {
        let session = self.session()?;
        let query = session.sql.query(END_OVERDUE);
        let ended = session.fetch_one("look for overdue sessions", query).await;
        let ended: i64 = get(&self.noting(ended)?, "ended")?;
        if ended > 0 {
            warn!(
                sessions = ended,
                "ended sessions that held positions while their frozen process sent no rows"
            );
        }
        Ok(())
    }

    fn disconnect(&mut self) {
        self.session = None;
        self.xid = None;
        self.sources.clear();
    }
}

fn disconnected() -> Error {
    let closed = std::io::Error::from(std::io::ErrorKind::NotConnected);
    Error::postgres("use the ledger", sqlx::Error::Io(closed))
}

impl Ledger for PostgresLedger {
    type Connection = PgConnection;

    async fn connect(&mut self) -> Result<(), Error> {
        self.disconnect();
        let session = Session::open(&self.settings, &self.pipeline, self.trusted).await?;
        self.trusted = true;
        self.session = Some(Session {
            absences: self.absences.clone(),
            ..session
        });
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), Error> {
        if self.xid.is_some() {
            return Err(Error::fatal("a transaction is already open"));
        }
        let session = self.session()?;
        session.generations = None;
        let rows = session.raw("begin", BEGIN).await;
        let rows = self.noting(rows)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::fatal("begin: no answer"))?;
        let (xid, began_at_us) = (get(row, "xid")?, get(row, "began_at_us")?);
        self.session()?.began_at_us = began_at_us;
        self.xid = Some(xid);
        Ok(())
    }

    async fn lock_positions(
        &mut self,
        partitions: &[TopicPartition],
    ) -> Result<Vec<Position>, Error> {
        let locked = position::lock(self.session()?, partitions).await;
        self.noting(locked)
    }

    async fn knows_topic(&mut self, topic: &str) -> Result<bool, Error> {
        let known = position::knows_topic(self.session()?, topic).await;
        self.noting(known)
    }

    async fn insert_positions(&mut self, topic: &str, starts: &[(i32, i64)]) -> Result<(), Error> {
        let inserted = position::insert(self.session()?, topic, starts).await;
        self.noting(inserted)
    }

    async fn take(&mut self, owner: Uuid, takes: &[Take]) -> Result<Vec<i64>, Error> {
        let session = self.session.as_mut().ok_or_else(disconnected)?;
        let taken = position::take(session, owner, &self.settings.member, takes).await;
        self.noting(taken)
    }

    async fn advance(&mut self, moves: &[Move<'_>]) -> Result<Vec<usize>, Error> {
        let session = self.session.as_mut().ok_or_else(disconnected)?;
        let fenced = position::advance(session, moves, &mut self.sources).await;
        self.noting(fenced)
    }

    async fn claim(&mut self, entries: &[Entry<'_>]) -> Result<Vec<Claim>, Error> {
        let session = self.session.as_mut().ok_or_else(disconnected)?;
        let claims = claim::claim(session, entries, &mut self.sources).await;
        self.noting(claims)
    }

    async fn conflicts(&mut self, entries: &[Entry<'_>]) -> Result<Vec<bool>, Error> {
        let found = claim::conflicts(self.session()?, entries).await;
        self.noting(found)
    }

    fn connection(&mut self) -> Result<&mut PgConnection, Error> {
        Ok(&mut self.session()?.connection)
    }

    async fn park(&mut self, parked: &[Parked<'_>]) -> Result<(), Error> {
        let stored = waiting::park(self.session()?, parked).await;
        self.noting(stored)
    }

    async fn count(&mut self, tallies: &[(&TopicPartition, Tally, u64)]) -> Result<(), Error> {
        let Some(xid) = self.xid.clone() else {
            return Err(Error::fatal("count outcomes: no transaction is open"));
        };
        let counted = position::count(self.session()?, &xid, tallies).await;
        let counted = self.noting(counted).map_err(explain_aborted)?;
        if counted.xid != xid {
            return Err(Error::fatal(
                "the handler ended the transaction that it was given (commit, rollback, or a \
                 procedure that does so): its effects can no longer commit together with the \
                 position, so nothing is counted; remove that statement",
            ));
        }
        if counted.rows != tallies.len() as i64 {
            return Err(Error::fatal(
                "count outcomes: a partition's row in onceonly.position is gone: was it deleted?",
            ));
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<Receipt, CommitError> {
        if self.xid.take().is_none() {
            return Err(CommitError::Failed(Error::fatal(
                "commit: no transaction is open",
            )));
        }
        let session = self.session().map_err(CommitError::Unknown)?;
        match session.raw("commit", COMMIT).await {
            Ok(_) => Ok(Receipt::new()),
            Err(error) if is_certain(&error) => Err(CommitError::Failed(explain_aborted(error))),
            Err(error) => {
                self.disconnect();
                Err(CommitError::Unknown(error))
            }
        }
    }

    async fn rollback(&mut self) -> Result<(), Error> {
        self.xid = None;
        let rolled_back = self.session()?.raw("rollback", ROLLBACK).await;
        if rolled_back.is_err() {
            self.disconnect();
        }
        rolled_back?;
        if std::mem::take(&mut self.met_lock) {
            self.end_overdue().await?;
        }
        Ok(())
    }

    fn vouch(&mut self) -> Receipt {
        Receipt::new()
    }

    async fn standings(&mut self) -> Result<Vec<Standing>, Error> {
        let standings = position::standings(self.session()?).await;
        self.noting(standings)
    }

    fn history(&self) -> Result<String, Error> {
        let session = self.session.as_ref().ok_or_else(disconnected)?;
        Ok(session.history.clone())
    }

    async fn mark_namespace(&mut self) -> Result<i32, Error> {
        let session = self.session()?;
        let query = session.query(MARK_NAMESPACE);
        let row = session
            .fetch_one("read the namespace of marks", query)
            .await;
        get(&self.noting(row)?, "mark_namespace")
    }

    async fn bump_mark_namespace(&mut self) -> Result<i32, Error> {
        let session = self.session()?;
        let query = session.query(BUMP_MARK_NAMESPACE);
        let row = session
            .fetch_one("change the namespace of marks", query)
            .await;
        get(&self.noting(row)?, "mark_namespace")
    }

    async fn stop(&mut self, at: &TopicPartition, epoch: i64, reason: &str) -> Result<(), Error> {
        let stopped = position::stop(self.session()?, at, epoch, reason).await;
        self.noting(stopped)
    }

    async fn due(&mut self, limit: usize) -> Result<Due, Error> {
        let due = waiting::due(self.session()?, limit).await;
        self.noting(due)
    }

    async fn settle(&mut self, settled: &[Settled<'_>]) -> Result<usize, Error> {
        let changed = waiting::settle(self.session()?, settled).await;
        self.noting(changed)
    }
}

/// Whether a failed COMMIT certainly committed nothing: the server answered that it rolled back.
///
/// An answer that also ends the session says nothing of a commit that may have come before it.
fn is_certain(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|s| s.downcast_ref::<sqlx::Error>());
    let answer = match source {
        Some(sqlx::Error::Database(answer)) => answer.try_downcast_ref::<PgDatabaseError>(),
        _ => None,
    };
    answer.is_some_and(|answer| {
        !matches!(answer.severity(), PgSeverity::Fatal | PgSeverity::Panic)
            && !error.is_disconnect()
    })
}

/// Says what "current transaction is aborted" means here.
fn explain_aborted(error: Error) -> Error {
    match error.code() {
        Some("25P02") => error.context(
            "the handler went on after a statement of its own had failed, which aborted the \
             transaction: it must return the error, or use a savepoint",
        ),
        _ => error,
    }
}
