//! What happens when a step of the line fails.

use tracing::info;

use super::plan::Plan;
use super::work::{Part, Work, halve};
use super::worker::{Pace, Worker};
use super::{Retries, failure_of};
use crate::error::{Class, Error};
use crate::event::TopicPartition;
use crate::filter::Filter;
use crate::handler::Handler;
use crate::ledger::Ledger;
use crate::source::Source;

/// A transient error that an event may have caused is blamed on the event when it comes back this
/// often in a row, each time over a connection that worked before the handler had it.
const SUSPECT_TRIES: u32 = 3;

/// How an attempt at a part ended, if not in a commit.
pub(super) enum Stopped {
    /// Other members own these partitions now.
    Fenced(Vec<TopicPartition>),
    /// The handler, or the commit of its effects, failed over these events.
    Handling { error: Error, handled: Vec<u32> },
    /// A step around the handler failed.
    Around(Error),
    /// The answer of COMMIT was lost; the plan says what it would have done.
    Unknown { error: Error, plan: Box<Plan> },
}

impl Stopped {
    /// Whether there is nothing to roll back: a connection that is gone may never answer.
    fn is_disconnect(&self) -> bool {
        match self {
            Self::Handling { error, .. } | Self::Around(error) | Self::Unknown { error, .. } => {
                error.is_disconnect()
            }
            Self::Fenced(_) => false,
        }
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Around(error)
    }
}

/// What to do with a part next.
pub(super) enum After {
    Done,
    Again,
    Pieces(Vec<Part>),
}

impl<S, F, L, H> Worker<S, F, L, H>
where
    S: Source,
    F: Filter,
    L: Ledger,
    H: Handler<L::Connection>,
{
    pub(super) async fn recover(
        &mut self,
        work: &Work,
        part: &Part,
        stopped: Stopped,
        suspicions: &mut u32,
    ) -> Result<After, Error> {
        if let Stopped::Unknown { error, plan } = stopped {
            self.lost(&error);
            return self.settle(work, *plan).await;
        }
        if stopped.is_disconnect() || self.connected && self.ledger.rollback().await.is_err() {
            self.connected = false;
        }
        match stopped {
            Stopped::Fenced(partitions) => self.let_go(&partitions).await,
            Stopped::Handling { error, handled } => {
                self.recover_handling(part, error, handled, suspicions)
            }
            Stopped::Around(error) => self.recover_around(error),
            Stopped::Unknown { .. } => Ok(After::Again),
        }
    }

    async fn let_go(&mut self, partitions: &[TopicPartition]) -> Result<After, Error> {
        match self.ledger.standings().await {
            Ok(standings) => {
                for at in partitions {
                    let row = standings.iter().find(|standing| standing.at == *at);
                    let known = self.owned.get(at).map_or(0, |owned| owned.next_offset);
                    self.fenced(at, row.map_or(known, |row| row.next_offset));
                }
                Ok(After::Again)
            }
            Err(error) => self.recover_around(error),
        }
    }

    fn recover_around(&mut self, error: Error) -> Result<After, Error> {
        match error.class() {
            Class::Transient => {
                self.note_transient(&error);
                Ok(After::Again)
            }
            Class::Rejected | Class::Fatal => Err(error),
        }
    }

    fn recover_handling(
        &mut self,
        part: &Part,
        mut error: Error,
        handled: Vec<u32>,
        suspicions: &mut u32,
    ) -> Result<After, Error> {
        if error.class() == Class::Transient {
            *suspicions = if error.is_suspect() {
                *suspicions + 1
            } else {
                0
            };
            if *suspicions < SUSPECT_TRIES {
                self.note_transient(&error);
                return Ok(After::Again);
            }
            self.connected &= !error.is_disconnect();
            error = error.blame_event();
        }
        if error.class() == Class::Fatal {
            return Err(error);
        }
        Ok(After::Pieces(halve(part, handled, failure_of(&error))))
    }

    fn note_transient(&mut self, error: &Error) {
        if error.is_disconnect() || !self.connected {
            self.lost(error);
        } else {
            let code = error.code().unwrap_or_default();
            info!(code, "trying again: {error}");
        }
    }

    /// Learns whether a commit without an answer happened, from a row that it had to change.
    async fn settle(&mut self, work: &Work, plan: Plan) -> Result<After, Error> {
        let mut retries = Retries::default();
        loop {
            match self.try_settle(work, &plan).await {
                Ok(after) => return Ok(after),
                Err(error) if error.class() == Class::Transient => {
                    self.lost(&error);
                    if self.pause(&mut retries).await == Pace::Interrupted {
                        return Ok(After::Again);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The position decides by epoch and offset. If another owner has it by now the commit stays
    /// unsettled: nothing is marked or counted, and the fence deals with the rest.
    async fn try_settle(&mut self, work: &Work, plan: &Plan) -> Result<After, Error> {
        self.connected = false;
        self.ledger.connect().await?;
        let moves = plan.moves(work);
        let partitions: Vec<_> = moves.iter().map(|m| m.at.clone()).collect();
        self.ledger.begin().await?;
        let rows = self.ledger.lock_positions(&partitions).await?;
        self.ledger.rollback().await?;
        let moved = moves.iter().all(|m| {
            rows.iter()
                .any(|row| row.at == *m.at && row.epoch == m.epoch && row.next_offset == m.to)
        });
        if !moved || moves.is_empty() {
            return Ok(After::Again);
        }
        info!("a commit whose answer was lost is found in Postgres");
        self.recent.clear();
        let receipt = self.ledger.vouch();
        self.committed(work, plan, &receipt).await?;
        self.recent.clear();
        Ok(After::Done)
    }
}
