//! The line that every batch takes, and what happens when a step of it fails.

use tokio::time::Instant;
use tracing::{info, warn};

use super::work::{Part, Plan, Work, halve, places};
use super::worker::{Pace, Worker};
use super::{Retries, Sort, failure_of};
use crate::error::{Class, Error};
use crate::event::{Batch, TopicPartition};
use crate::filter::{Filter, Receipt};
use crate::handler::{Handler, NewEvents};
use crate::ledger::{CommitError, Ledger};
use crate::outcome::{Outcome, Tally};
use crate::source::Source;

/// A transient error that an event may have caused is blamed on the event when it comes back this
/// often in a row, each time over a connection that worked before the handler had it.
const SUSPECT_TRIES: u32 = 3;

/// How an attempt at a part ended, if not in a commit.
enum Stopped {
    /// Other members own these partitions now.
    Fenced(Vec<TopicPartition>),
    /// The handler, or the commit of its effects, failed over these events.
    Handling { error: Error, handled: Vec<u32> },
    /// A step around the handler failed.
    Around(Error),
    /// The answer of COMMIT was lost; the plan says what it would have done.
    Unknown { error: Error, plan: Box<Plan> },
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Around(error)
    }
}

/// What to do with a part next.
enum After {
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
    /// Takes a batch through the line: identify, probe, and then each part of it in one
    /// transaction. A part is the whole batch unless an event in it is rejected.
    pub(super) async fn process_batch(&mut self, batch: Batch) -> Result<(), Error> {
        self.settings.throttle(batch.len()).await;
        let mut work = self.identify(batch);
        let mut parts = vec![work.whole()];
        self.probe(&mut work).await;
        while let Some(part) = parts.pop() {
            match self.carry_through(&work, &part, &mut parts).await? {
                Pace::Done => {}
                Pace::Interrupted => {
                    self.unclaim(&work, part.range.start).await;
                    self.read_again(&work);
                    break;
                }
            }
        }
        Ok(())
    }

    fn identify(&self, batch: Batch) -> Work {
        let topic_ids: Vec<_> = batch
            .slices()
            .iter()
            .map(|s| self.owned.get(&s.at).and_then(|o| o.topic_id))
            .collect();
        let mut work = Work::new(batch, self.settings.identity.scope);
        for index in 0..work.batch.len() {
            let event = work.batch.event(index);
            self.settings
                .identity
                .identify(event, topic_ids[event.slot()], &mut work.ids);
            match self.settings.sort(&event, work.ids.found(index)) {
                Sort::Take => {
                    if let Some(failure) = self.handler.screen(&event) {
                        work.condemned.insert(index as u32, failure);
                    }
                }
                Sort::Skip => work.skipped[index] = true,
                Sort::Condemn(failure) => {
                    work.condemned.insert(index as u32, failure);
                }
            }
        }
        work
    }

    async fn probe(&mut self, work: &mut Work) {
        let plan = Plan::new(
            work,
            &work.whole(),
            &self.owned,
            &self.recent,
            self.settings.observe,
        );
        let mut asked = plan.open().to_vec();
        asked.retain(|index| !work.condemned.contains_key(index));
        if asked.is_empty() {
            return;
        }
        asked.sort_unstable();
        let places = places(work, &self.owned);
        let answers = self
            .filter
            .probe(&places, &work.lookups(&asked), &self.waters)
            .await;
        for (index, answer) in asked.into_iter().zip(answers) {
            work.probes[index as usize] = answer;
        }
    }

    /// Tries a part until it is committed, cut in pieces, or given up because the source has
    /// something that cannot wait.
    async fn carry_through(
        &mut self,
        work: &Work,
        part: &Part,
        parts: &mut Vec<Part>,
    ) -> Result<Pace, Error> {
        let mut retries = Retries::default();
        let mut suspicions = 0;
        loop {
            let after = match self.connect().await {
                Ok(()) => match self.commit_part(work, part).await {
                    Ok(()) => After::Done,
                    Err(stopped) => self.recover(work, part, stopped, &mut suspicions).await?,
                },
                Err(error) if error.class() == Class::Transient => {
                    self.lost(&error);
                    After::Again
                }
                Err(error) => return Err(error),
            };
            match after {
                After::Done => return Ok(Pace::Done),
                After::Pieces(pieces) => {
                    parts.extend(pieces);
                    return Ok(Pace::Done);
                }
                After::Again => {
                    if self.pause(&mut retries).await == Pace::Interrupted {
                        return Ok(Pace::Interrupted);
                    }
                }
            }
        }
    }

    /// One transaction: positions, ids, effects, failures and counts, then what may follow only
    /// a commit: memory, marks and the acknowledgement.
    async fn commit_part(&mut self, work: &Work, part: &Part) -> Result<(), Stopped> {
        let mut plan = Plan::new(work, part, &self.owned, &self.recent, self.settings.observe);
        if plan.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        self.ledger.begin().await?;
        let moves = plan.moves(work);
        let fenced = self.ledger.advance(&moves).await?;
        if !fenced.is_empty() {
            let lost = fenced.iter().filter_map(|&index| moves.get(index));
            return Err(Stopped::Fenced(lost.map(|m| m.at.clone()).collect()));
        }
        let entries = plan.entries(work, self.settings.detect_conflicts);
        if !entries.is_empty() {
            plan.meet(&self.ledger.claim(&entries).await?);
        }
        let handled = plan.to_handle(work, part);
        self.handle(work, &handled).await?;
        let parked = plan.parked(work, part, || self.settings.judge(1));
        if !parked.is_empty() {
            self.ledger.park(&parked).await?;
        }
        let tallies = plan.close(work);
        self.ledger.count(&tallies).await?;
        let committing = Instant::now();
        match self.ledger.commit().await {
            Ok(receipt) => {
                self.health
                    .metrics
                    .took(begun.elapsed(), committing.elapsed());
                self.committed(work, &plan, &receipt).await?;
                Ok(())
            }
            Err(CommitError::Failed(error)) => Err(Stopped::Handling { error, handled }),
            Err(CommitError::Unknown(error)) => Err(Stopped::Unknown {
                error,
                plan: Box::new(plan),
            }),
        }
    }

    async fn handle(&mut self, work: &Work, handled: &[u32]) -> Result<(), Stopped> {
        if handled.is_empty() {
            return Ok(());
        }
        let events = NewEvents::new(&work.batch, &work.ids, handled);
        let connection = self.ledger.connection()?;
        let result = self.handler.handle(connection, &events).await;
        result.map_err(|error| Stopped::Handling {
            error,
            handled: handled.to_vec(),
        })
    }

    /// What a commit allows, and nothing before it does.
    async fn committed(
        &mut self,
        work: &Work,
        plan: &Plan,
        receipt: &Receipt,
    ) -> Result<(), Error> {
        for m in plan.moves(work) {
            if let Some(owned) = self.owned.get_mut(m.at) {
                owned.next_offset = m.to;
                self.waters.raise(&owned.place, m.to);
                self.health.reading(m.at, m.to);
            }
            self.source.acknowledge(m.at, m.to);
        }
        let marks = plan.marks(work);
        for mark in &marks {
            self.recent.insert(mark.key);
        }
        if !marks.is_empty() {
            let places = places(work, &self.owned);
            self.filter
                .mark(receipt, &places, &plan.committed(work), &marks)
                .await;
        }
        self.unclaim_failed(work, plan).await;
        let mut tally = Tally::default();
        plan.outcomes().for_each(|(_, outcome)| tally.add(outcome));
        self.health.count(&tally, plan.conflicts());
        self.health.postgres_is(true);
        self.watch_failures(work, plan).await
    }

    /// Stops a partition whose events fail one after another: the fault is then hardly theirs, and
    /// a topic would be emptied into dead letters.
    async fn watch_failures(&mut self, work: &Work, plan: &Plan) -> Result<(), Error> {
        let limit = self.settings.max_dead_in_a_row;
        let mut stop = Vec::new();
        for (index, outcome) in plan.outcomes() {
            let at = work.batch.event(index as usize).at();
            let Some(owned) = self.owned.get_mut(at) else {
                continue;
            };
            match outcome {
                Outcome::Applied => owned.failed_in_a_row = 0,
                Outcome::Dead | Outcome::Retrying => {
                    owned.failed_in_a_row += 1;
                    if owned.failed_in_a_row == limit {
                        stop.push(at.clone());
                    }
                }
                _ => {}
            }
        }
        for at in stop {
            let reason = format!(
                "{limit} events in a row failed and none was applied between them \
                 (retry.max_dead_in_a_row): see onceonly dead-letters list --topic {}. \
                 Mend the cause and start the consumer again",
                at.topic
            );
            self.stop(&at, reason).await?;
        }
        Ok(())
    }

    async fn recover(
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
        if self.connected && self.ledger.rollback().await.is_err() {
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
            info!("trying again: {error}");
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

    /// Gives back the filter's claims on events that failed: a mark must never follow from them.
    async fn unclaim_failed(&mut self, work: &Work, plan: &Plan) {
        let failed = |(index, outcome): (u32, Outcome)| {
            matches!(outcome, Outcome::Dead | Outcome::Retrying).then_some(index as usize)
        };
        let claimed: Vec<u32> = plan
            .outcomes()
            .filter_map(failed)
            .flat_map(|i| work.claimed(i..i + 1))
            .collect();
        if !claimed.is_empty() {
            let places = places(work, &self.owned);
            self.filter.unclaim(&places, &work.lookups(&claimed)).await;
        }
    }

    /// Gives back the filter's claims on everything from a record on.
    async fn unclaim(&mut self, work: &Work, from: usize) {
        let claimed = work.claimed(from..work.batch.len());
        if !claimed.is_empty() {
            let places = places(work, &self.owned);
            self.filter.unclaim(&places, &work.lookups(&claimed)).await;
        }
    }

    /// Has the rest of a batch that was given up read again.
    fn read_again(&mut self, work: &Work) {
        for slice in work.batch.slices() {
            let Some(owned) = self.owned.reading(&slice.at, slice.session) else {
                continue;
            };
            let offset = owned.next_offset;
            warn!(partition = %slice.at, offset, "batch given up for a rebalance; it will be read again");
            self.read_from(&slice.at, offset);
        }
    }
}
