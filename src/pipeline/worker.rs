//! One worker: its partitions, its connection, and the loop that feeds the line.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};
use uuid::Uuid;

use super::health::Health;
use super::ownership::{HighWaters, Ownership};
use super::{Retries, Settings};
use crate::error::{Class, Error};
use crate::event::TopicPartition;
use crate::filter::Filter;
use crate::filter::recent::RecentSet;
use crate::handler::Handler;
use crate::ledger::{Ledger, Standing};
use crate::source::{Assigned, Next, Source};
use crate::telemetry::Heartbeat;

/// How often a worker re-reads everybody's positions: proofs for marks, and word of its own fences.
const STANDINGS_INTERVAL: Duration = Duration::from_secs(1);

/// How long a turn of the loop, or one try of it while Postgres does not answer, may take: each is
/// bounded by the server's timeouts.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// How long the end waits for marks that are on their way.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Owns partitions, one connection and one recent set, and processes one batch at a time.
pub struct Worker<S, F, L, H> {
    pub(super) source: S,
    pub(super) filter: F,
    pub(super) ledger: L,
    pub(super) handler: Arc<H>,
    pub(super) settings: Arc<Settings>,
    pub(super) health: Arc<Health>,
    pub(super) owner: Uuid,
    pub(super) owned: Ownership,
    pub(super) waters: HighWaters,
    pub(super) recent: RecentSet,
    pub(super) connected: bool,
    /// Assigned, but not claimed yet: something that could not wait came between.
    pub(super) unclaimed: Vec<Assigned>,
    /// Says that the loop turns, also while it waits for what is not there.
    pub(super) heartbeat: Heartbeat,
}

/// Whether a step was carried through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Done,
    /// A revocation or the end waits: look at the source before anything else.
    Interrupted,
}

impl<S, F, L, H> Worker<S, F, L, H>
where
    S: Source,
    F: Filter,
    L: Ledger,
    H: Handler<L::Connection>,
{
    /// A worker that owns nothing yet and has not connected.
    pub fn new(
        source: S,
        filter: F,
        ledger: L,
        handler: Arc<H>,
        settings: Arc<Settings>,
        health: Arc<Health>,
    ) -> Self {
        let heartbeat = health.heartbeats.register("a worker", SILENCE_MAX);
        Self {
            source,
            filter,
            ledger,
            handler,
            owner: settings.owner,
            recent: RecentSet::new(settings.recent_ids),
            settings,
            health,
            owned: Ownership::default(),
            waters: HighWaters::default(),
            connected: false,
            unclaimed: Vec::new(),
            heartbeat,
        }
    }

    /// Works until the source is over. An error is one that only a person can mend.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut tick = interval(STANDINGS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next = tokio::select! {
                biased;
                _ = tick.tick() => None,
                next = self.source.next() => Some(next?),
            };
            self.heartbeat.beat();
            match next {
                None => self.refresh().await?,
                Some(Next::Batch(batch)) => self.process_batch(batch).await?,
                Some(Next::Assigned(assigned)) => self.claim(assigned).await?,
                Some(Next::Revoked(partitions)) => self.release(&partitions),
                Some(Next::Closed) => {
                    self.filter.flush(FLUSH_LIMIT).await;
                    return Ok(());
                }
            }
        }
    }

    fn release(&mut self, partitions: &[TopicPartition]) {
        self.unclaimed
            .retain(|assigned| !partitions.contains(&assigned.at));
        for at in partitions {
            self.owned.remove(at);
            self.health.forget(at);
        }
        self.source.released(partitions);
    }

    /// Makes a connection if there is none, and learns anew what it says.
    pub(super) async fn connect(&mut self) -> Result<(), Error> {
        if self.connected {
            return Ok(());
        }
        self.recent.clear();
        self.ledger.connect().await?;
        self.waters.begin(self.ledger.history()?);
        self.handler.prepare(self.ledger.connection()?).await?;
        self.resync().await?;
        self.connected = true;
        if self.health.postgres_is(true) {
            info!("Postgres answers again");
        }
        Ok(())
    }

    /// Compares what this worker believes of its partitions with what Postgres says, which is the
    /// truth even where it is older.
    async fn resync(&mut self) -> Result<(), Error> {
        let standings = self.learn().await?;
        let owned: Vec<_> = self
            .owned
            .iter()
            .map(|(at, o)| (at.clone(), o.clone()))
            .collect();
        for (at, mine) in owned {
            match standings.iter().find(|standing| standing.at == at) {
                Some(row) if row.epoch == mine.epoch && row.next_offset == mine.next_offset => {}
                Some(row) if row.epoch == mine.epoch => {
                    warn!(partition = %at, believed = mine.next_offset, position = row.next_offset,
                        "Postgres has another position than this worker knew; reading on from there");
                    self.read_from(&at, row.next_offset);
                }
                Some(row) => self.fenced(&at, row.next_offset),
                None => self.fenced(&at, mine.next_offset),
            }
        }
        Ok(())
    }

    /// Begins another session of an owned partition.
    pub(super) fn read_from(&mut self, at: &TopicPartition, offset: i64) {
        let session = self.owned.next_session();
        if let Some(owned) = self.owned.get_mut(at) {
            owned.next_offset = offset;
            owned.session = session;
            if !owned.stopped {
                self.source.start(at, session, offset);
            }
        }
    }

    /// Lets go of a partition that another member claimed. If it is still assigned to this one,
    /// the source gives it back once the log has taken a commit of the position in force.
    pub(super) fn fenced(&mut self, at: &TopicPartition, next_offset: i64) {
        info!(partition = %at, position = next_offset, "fenced: another claim has this partition");
        self.health.count_fenced();
        self.health.forget(at);
        self.owned.remove(at);
        self.source.halt(at);
        self.source.reassign(at, next_offset);
    }

    /// Stops one partition until a person decides; the others go on.
    pub(super) async fn stop(&mut self, at: &TopicPartition, reason: String) -> Result<(), Error> {
        error!(partition = %at, "partition stopped: {reason}");
        let Some(owned) = self.owned.get_mut(at) else {
            return Ok(());
        };
        owned.stopped = true;
        let (epoch, position) = (owned.epoch, owned.next_offset);
        self.source.halt(at);
        self.health.stopped(at, position, &reason);
        self.ledger.stop(at, epoch, &reason).await
    }

    async fn refresh(&mut self) -> Result<(), Error> {
        let read = match self.connect().await {
            Ok(()) => self.read_standings().await,
            Err(error) => Err(error),
        };
        match read {
            Err(error) if error.class() != Class::Transient => Err(error),
            Err(error) => {
                self.lost(&error);
                Ok(())
            }
            Ok(()) if self.unclaimed.is_empty() => Ok(()),
            Ok(()) => {
                let unclaimed = std::mem::take(&mut self.unclaimed);
                self.claim(unclaimed).await
            }
        }
    }

    /// Reads how far everybody is, and then which marks count. In this order: a position that was
    /// set forward proves nothing about marks from before, and its namespace is committed with it.
    async fn learn(&mut self) -> Result<Vec<Standing>, Error> {
        let standings = self.ledger.standings().await?;
        let namespace = self.ledger.mark_namespace().await?;
        self.filter.set_namespace(namespace);
        self.waters.read(&standings);
        Ok(standings)
    }

    async fn read_standings(&mut self) -> Result<(), Error> {
        let standings = self.learn().await?;
        for row in &standings {
            if self
                .owned
                .get(&row.at)
                .is_some_and(|mine| mine.epoch != row.epoch)
            {
                self.fenced(&row.at, row.next_offset);
            }
        }
        Ok(())
    }

    /// Notes that the connection may not be believed any more, and says so once per outage.
    pub(super) fn lost(&mut self, error: &Error) {
        self.connected = false;
        if self.health.postgres_is(false) {
            warn!("Postgres is not answering; waiting: {error}");
        }
    }

    /// Waits before another try, unless the source has something that cannot wait.
    pub(super) async fn pause(&mut self, retries: &mut Retries) -> Pace {
        self.heartbeat.beat();
        let delay = retries.next_delay(&self.settings.reconnect);
        tokio::select! {
            () = tokio::time::sleep(delay) => Pace::Done,
            () = self.source.interrupted() => Pace::Interrupted,
        }
    }
}
