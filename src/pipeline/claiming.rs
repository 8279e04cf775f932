//! How a worker becomes the owner of partitions that the log assigned to it.

use tracing::{error, info};

use super::Retries;
use super::assignment::{Decision, decide};
use super::ownership::Owned;
use super::worker::{Pace, Worker};
use crate::error::{Class, Error};
use crate::event::TopicPartition;
use crate::filter::Filter;
use crate::handler::Handler;
use crate::ledger::{CommitError, Ledger, Position, Take};
use crate::source::{Assigned, Source, TopicStart};

/// What one claim's transaction did.
struct Claimed {
    epochs: Vec<i64>,
    takes: Vec<Take>,
    decisions: Vec<Decision>,
    high_waters: Vec<i64>,
}

impl<S, F, L, H> Worker<S, F, L, H>
where
    S: Source,
    F: Filter,
    L: Ledger,
    H: Handler<L::Connection>,
{
    /// Claims partitions in the ledger, then has them read. Tried until it succeeds, or until the
    /// source has something that cannot wait, such as their revocation; then they are kept for
    /// later.
    pub(super) async fn claim(&mut self, mut assigned: Vec<Assigned>) -> Result<(), Error> {
        assigned.sort_by(|a, b| a.at.cmp(&b.at));
        let mut retries = Retries::default();
        loop {
            match self.try_claim(&assigned).await {
                Ok(claimed) => {
                    self.own(&assigned, claimed);
                    return Ok(());
                }
                Err(error) if error.class() == Class::Transient => {
                    if error.is_disconnect()
                        || !self.connected
                        || self.ledger.rollback().await.is_err()
                    {
                        self.lost(&error);
                    } else {
                        info!("claiming again: {error}");
                    }
                }
                Err(error) => return Err(error),
            }
            if self.pause(&mut retries).await == Pace::Interrupted {
                self.unclaimed.extend(assigned);
                return Ok(());
            }
        }
    }

    async fn try_claim(&mut self, assigned: &[Assigned]) -> Result<Claimed, Error> {
        self.connect().await?;
        let starts = self.unknown_starts(assigned).await?;
        self.ledger.begin().await?;
        for TopicStart { topic, offsets } in &starts {
            self.ledger.insert_positions(topic, offsets).await?;
        }
        let rows = self.rows(assigned).await?;
        let decisions: Vec<_> = rows
            .iter()
            .zip(assigned)
            .map(|(row, a)| decide(row, a))
            .collect();
        let takes = takes(&rows, assigned, &decisions);
        let epochs = self.ledger.take(self.owner, &takes).await?;
        let high_waters = rows.iter().map(|row| row.high_water).collect();
        let lost_tail = rows
            .iter()
            .zip(assigned)
            .any(|(row, a)| lost_its_tail(row, a));
        // Read under the rows' locks: what these positions prove, they prove in this namespace.
        let namespace = match lost_tail {
            true => self.ledger.bump_mark_namespace().await?,
            false => self.ledger.mark_namespace().await?,
        };
        match self.ledger.commit().await {
            Ok(_) => {}
            Err(CommitError::Failed(error) | CommitError::Unknown(error)) => return Err(error),
        }
        if lost_tail {
            info!(
                namespace,
                "our own commits are ahead of Postgres: earlier marks are forgotten"
            );
        }
        self.filter.set_namespace(namespace);
        Ok(Claimed {
            epochs,
            takes,
            decisions,
            high_waters,
        })
    }

    /// Where each partition begins of topics that this pipeline never read, asked before the
    /// transaction, since the log may take its time.
    async fn unknown_starts(&mut self, assigned: &[Assigned]) -> Result<Vec<TopicStart>, Error> {
        let mut starts: Vec<TopicStart> = Vec::new();
        let first = self.ledger.standings().await?.is_empty();
        for Assigned { at, .. } in assigned {
            let is_found = starts.iter().any(|start| start.topic == at.topic);
            if is_found || self.ledger.knows_topic(&at.topic).await? {
                continue;
            }
            let resolved = self.source.starts(&at.topic, first).await?;
            info!(
                ?resolved,
                "first claim: the start of every partition is decided"
            );
            starts.extend(resolved);
        }
        Ok(starts)
    }

    /// The locked rows, one for each. A partition that appeared after its topic's start was
    /// decided begins at its beginning.
    async fn rows(&mut self, assigned: &[Assigned]) -> Result<Vec<Position>, Error> {
        let partitions: Vec<TopicPartition> = assigned.iter().map(|a| a.at.clone()).collect();
        let mut rows = self.ledger.lock_positions(&partitions).await?;
        if rows.len() < assigned.len() {
            for Assigned { at, low, .. } in assigned {
                if !rows.iter().any(|row| row.at == *at) {
                    self.ledger
                        .insert_positions(&at.topic, &[(at.partition, *low)])
                        .await?;
                }
            }
            rows = self.ledger.lock_positions(&partitions).await?;
        }
        if rows.len() == assigned.len() {
            return Ok(rows);
        }
        Err(Error::transient(
            "a position's row vanished while it was being claimed",
        ))
    }

    fn own(&mut self, assigned: &[Assigned], claimed: Claimed) {
        let Claimed {
            epochs,
            takes,
            decisions,
            high_waters,
        } = claimed;
        let claims = takes
            .into_iter()
            .zip(decisions)
            .zip(epochs.into_iter().zip(high_waters));
        for (((take, decision), (epoch, high_water)), assigned) in claims.zip(assigned) {
            let place = self.waters.place(&take.at, assigned.topic_id);
            self.waters.raise(&place, high_water);
            let owned = Owned {
                epoch,
                next_offset: take.next_offset,
                session: self.owned.next_session(),
                topic_id: assigned.topic_id,
                place,
                failed_in_a_row: 0,
                stopped: take.stopped.is_some(),
            };
            self.owned.insert(take.at.clone(), owned);
            self.begin(&take, &decision);
        }
    }

    fn begin(&mut self, take: &Take, decision: &Decision) {
        let Take {
            at, next_offset, ..
        } = take;
        match decision {
            Decision::Continue => {
                info!(partition = %at, offset = next_offset, "claimed");
                self.health.reading(at, *next_offset);
                self.read_from(at, *next_offset);
            }
            Decision::Confirm | Decision::Rewind(_) => {
                info!(partition = %at, offset = next_offset, "claimed; confirming the offset in the log first");
                self.source.reassign(at, *next_offset);
            }
            Decision::Stop(reason) => {
                error!(partition = %at, "partition stopped: {reason}");
                self.health.stopped(at, *next_offset, reason);
            }
        }
    }
}

fn takes(rows: &[Position], assigned: &[Assigned], decisions: &[Decision]) -> Vec<Take> {
    let take = |((row, assigned), decision): ((&Position, &Assigned), &Decision)| {
        let stopped = match decision {
            Decision::Stop(reason) => Some(reason.clone()),
            _ => None,
        };
        let next_offset = match decision {
            Decision::Rewind(offset) => *offset,
            _ => row.next_offset,
        };
        let (topic_id, cluster_id) = match stopped {
            Some(_) => (row.topic_id, row.cluster_id.clone()),
            None => (
                assigned.topic_id.or(row.topic_id),
                assigned
                    .cluster_id
                    .clone()
                    .or_else(|| row.cluster_id.clone()),
            ),
        };
        Take {
            at: row.at.clone(),
            next_offset,
            topic_id,
            cluster_id,
            stopped,
        }
    };
    rows.iter().zip(assigned).zip(decisions).map(take).collect()
}

/// Our commits follow Postgres; one that is ahead of it means that Postgres lost its last
/// transactions, and with them records which the log may not hold any more. Their marks would
/// name ids that nobody can prove again.
fn lost_its_tail(row: &Position, assigned: &Assigned) -> bool {
    assigned
        .committed
        .is_some_and(|c| c.ours && c.offset > row.high_water && row.epoch > 0)
}
