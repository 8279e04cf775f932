//! Further attempts at events that wait, by every member, beside the line.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Health, Retries, Settings, failure_of};
use crate::error::{Class, Error};
use crate::handler::{Handler, NewEvents};
use crate::ledger::{CommitError, Due, Failure, Ledger, Settled, Verdict};

/// How many waiting events are tried in one transaction.
const LIMIT: usize = 500;

/// How many suspicions in a row an event that is tried alone may come under before it is blamed.
/// Of several, half as many are tried after each.
const SUSPICIONS_MAX: u32 = 3;

/// How long to wait when nothing is due.
const IDLE: Duration = Duration::from_millis(500);

/// How long a look at what is due may take: it waits for no lock and reads an index. A Postgres
/// that does not answer it does not answer.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Runs waiting events whose time has come, on a connection of its own.
///
/// Every member has one; rows are taken with `skip locked`, and change by compare-and-set on their
/// attempt, so any number of them may run at once.
pub struct Retrier<L, H> {
    ledger: L,
    handler: Arc<H>,
    settings: Arc<Settings>,
    health: Arc<Health>,
    connected: bool,
    /// How many events are tried at once: fewer while suspicion is on them.
    limit: usize,
    /// Backends lost, or statements out of time, in a row while one event was tried alone.
    suspicions: u32,
}

/// How one round ended.
enum Round {
    /// Nothing was due.
    Idle,
    /// So many rows changed.
    Settled,
}

impl<L, H> Retrier<L, H>
where
    L: Ledger,
    H: Handler<L::Connection>,
{
    /// A retrier that has not connected yet.
    pub fn new(ledger: L, handler: Arc<H>, settings: Arc<Settings>, health: Arc<Health>) -> Self {
        Self {
            health,
            ledger,
            handler,
            settings,
            connected: false,
            limit: LIMIT,
            suspicions: 0,
        }
    }

    /// Works until told to end. An error is one that only a person can mend.
    pub async fn run(mut self, end: CancellationToken) -> Result<(), Error> {
        let mut retries = Retries::default();
        while !end.is_cancelled() {
            let round = tokio::select! {
                round = self.round() => round,
                // What was begun is rolled back with its connection, and still due.
                () = end.cancelled() => return Ok(()),
            };
            let pause = match round {
                Ok(settled) => {
                    retries = Retries::default();
                    match settled {
                        Round::Settled => Duration::ZERO,
                        Round::Idle => IDLE,
                    }
                }
                Err(error) if error.class() == Class::Transient => {
                    self.recover(&error).await;
                    retries.next_delay(&self.settings.reconnect)
                }
                Err(error) => return Err(error.context("trying waiting events again")),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = end.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Puts the connection in order, and says once that Postgres is missed.
    async fn recover(&mut self, error: &Error) {
        if error.is_disconnect() || self.connected && self.ledger.rollback().await.is_err() {
            self.connected = false;
        }
        if !error.is_disconnect() {
            info!("waiting events are tried again later: {error}");
        } else if self.suspicions == 0 && self.health.postgres_is_silent(true) {
            warn!("Postgres is not answering; waiting: {error}");
        }
    }

    /// Tries everything that is due at once, and one by one if that fails.
    async fn round(&mut self) -> Result<Round, Error> {
        if !self.connected {
            self.ledger.connect().await?;
            self.handler.prepare(self.ledger.connection()?).await?;
            self.connected = true;
        }
        let mut limit = self.limit;
        loop {
            let due = self.look(limit).await?;
            if due.batch.is_empty() {
                self.ledger.rollback().await?;
                return Ok(Round::Idle);
            }
            match self.attempt(&due).await {
                Ok(()) => {
                    self.suspicions = 0;
                    self.limit = (self.limit * 2).min(LIMIT);
                    return Ok(Round::Settled);
                }
                Err(error) if error.is_suspect() => return self.suspect(&due, error).await,
                Err(error) if error.class() != Class::Rejected => return Err(error),
                Err(error) => {
                    self.ledger.rollback().await?;
                    if due.batch.len() == 1 {
                        self.give_back(&due, &failure_of(&error)).await?;
                        return Ok(Round::Settled);
                    }
                    limit = due.batch.len() / 2;
                }
            }
        }
    }

    /// Takes what is due, in a transaction. This is also how a Postgres is missed that fell silent
    /// while a worker waits for an answer that may rightly take long.
    async fn look(&mut self, limit: usize) -> Result<Due, Error> {
        let looked = async {
            self.ledger.begin().await?;
            self.ledger.due(limit).await
        };
        let due = timeout(LOOK_MAX, looked).await.unwrap_or_else(|_| {
            let text = format!("no answer within {LOOK_MAX:?} to a look at waiting events");
            Err(Error::lost_connection(text))
        })?;
        if self.health.postgres_is_silent(false) {
            info!("Postgres answers again");
        }
        Ok(due)
    }

    /// A backend was lost, or time ran out, while the handler had the connection.
    async fn suspect(&mut self, due: &Due, error: Error) -> Result<Round, Error> {
        if due.batch.len() > 1 {
            self.limit = due.batch.len() / 2;
            return Err(error);
        }
        self.suspicions += 1;
        if self.suspicions < SUSPICIONS_MAX {
            return Err(error);
        }
        self.suspicions = 0;
        self.ledger.connect().await?;
        self.handler.prepare(self.ledger.connection()?).await?;
        self.give_back(due, &failure_of(&error)).await?;
        Ok(Round::Settled)
    }

    async fn attempt(&mut self, due: &Due) -> Result<(), Error> {
        let all: Vec<u32> = (0..due.batch.len() as u32).collect();
        let events = NewEvents::new(&due.batch, &due.ids, &all);
        self.handler
            .handle(self.ledger.connection()?, &events)
            .await?;
        let applied = |(index, attempt): (usize, &u32)| Settled {
            key: due.ids.key(index),
            attempt: *attempt,
            failed: None,
        };
        let settled: Vec<_> = due.attempts.iter().enumerate().map(applied).collect();
        self.finish(&settled).await?;
        self.health.metrics.retried(settled.len() as u64, 0, 0);
        Ok(())
    }

    /// One event failed by itself: it waits again, or is dead. If somebody else has taken it since,
    /// its attempt differs, and nothing happens.
    async fn give_back(&mut self, due: &Due, failure: &Failure) -> Result<(), Error> {
        let Some(&attempt) = due.attempts.first() else {
            return Ok(());
        };
        let verdict = self.settings.judge(attempt.saturating_add(1));
        if verdict == Verdict::Dead {
            warn!(event = due.ids.text(0), "dead letter: {}", failure.message);
        }
        self.ledger.begin().await?;
        let failed = Some((failure, verdict));
        self.ledger
            .settle(&[Settled {
                key: due.ids.key(0),
                attempt,
                failed,
            }])
            .await?;
        self.commit().await?;
        let dead = u64::from(verdict == Verdict::Dead);
        self.health.metrics.retried(0, 1 - dead, dead);
        Ok(())
    }

    async fn finish(&mut self, settled: &[Settled<'_>]) -> Result<(), Error> {
        let changed = self.ledger.settle(settled).await?;
        if changed != settled.len() {
            return Err(Error::transient(
                "a waiting event changed while this transaction had it",
            ));
        }
        self.commit().await
    }

    /// A lost answer needs no settling: what was committed is no longer due, and the rest is.
    async fn commit(&mut self) -> Result<(), Error> {
        self.ledger.count(&[]).await?;
        match self.ledger.commit().await {
            Ok(_) => Ok(()),
            Err(CommitError::Failed(error) | CommitError::Unknown(error)) => Err(error),
        }
    }
}
