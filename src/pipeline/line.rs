//! The line that every batch takes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::plan::Plan;
use super::recovery::{After, Stopped};
use super::work::{Part, Work, places};
use super::worker::{Pace, Worker};
use super::{Retries, Sort};
use crate::error::{Class, Error};
use crate::event::Batch;
use crate::filter::{Filter, Receipt};
use crate::handler::{Handler, NewEvents};
use crate::ledger::{CommitError, Ledger};
use crate::outcome::{Outcome, Tally};
use crate::source::Source;

/// How often a worker that waits for its rate says that it lives.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// Tries of one batch after which a person should know.
const STUCK_TRIES: u32 = 10;

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
        let mut work = self.identify(batch);
        if self.throttle(work.batch.len()).await == Pace::Interrupted {
            self.read_again(&work);
            return Ok(());
        }
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
        work.sort();
        work
    }

    async fn throttle(&mut self, events: usize) -> Pace {
        let settings = Arc::clone(&self.settings);
        let Some(rate) = &settings.rate else {
            return Pace::Done;
        };
        let mut charged = pin!(rate.charge(events));
        loop {
            tokio::select! {
                () = &mut charged => return Pace::Done,
                () = self.source.interrupted() => return Pace::Interrupted,
                // A low rate may hold a batch back for longer than a loop may be silent.
                () = sleep(BEAT_EVERY) => self.heartbeat.beat(),
            }
        }
    }

    async fn probe(&mut self, work: &mut Work) {
        if self.filter.is_absent() {
            return;
        }
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
                    if retries.made > 0 && retries.made.is_multiple_of(STUCK_TRIES) {
                        say_stuck(work, part, retries.made);
                    }
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
        if self.settings.detect_conflicts {
            self.compare_repeats(work, &mut plan).await?;
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

    /// Repeats that were recognised without the ledger are compared with it all the same.
    async fn compare_repeats(&mut self, work: &Work, plan: &mut Plan) -> Result<(), Error> {
        let repeats = plan.repeats();
        if !repeats.is_empty() {
            let entries = work.entries(&repeats, true);
            let conflicts = self.ledger.conflicts(&entries).await?;
            plan.note_conflicts(&repeats, &conflicts);
        }
        Ok(())
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
    pub(super) async fn committed(
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
        for index in plan.known() {
            self.recent.insert(work.key(index));
        }
        if !self.filter.is_absent() {
            self.mark(work, plan, receipt).await;
        }
        self.unclaim_failed(work, plan).await;
        let mut tally = Tally::default();
        plan.outcomes().for_each(|(_, outcome)| tally.add(outcome));
        self.health.count(&tally, plan.conflicts());
        self.health.postgres_is(true);
        self.watch_failures(work, plan).await
    }

    async fn mark(&mut self, work: &Work, plan: &Plan, receipt: &Receipt) {
        let marks = plan.marks(work);
        if !marks.is_empty() {
            let places = places(work, &self.owned);
            self.filter
                .mark(receipt, &places, &plan.committed(work), &marks)
                .await;
        }
    }

    /// Says which events failed, and stops a partition whose events fail one after another: the
    /// fault is then hardly theirs, and a topic would be emptied into dead letters.
    async fn watch_failures(&mut self, work: &Work, plan: &Plan) -> Result<(), Error> {
        let mut stop = Vec::new();
        for (index, outcome) in plan.outcomes() {
            let event = work.batch.event(index as usize);
            let Some(owned) = self.owned.get_mut(event.at()) else {
                continue;
            };
            if outcome == Outcome::Applied {
                owned.failed_in_a_row = 0;
            }
            if !matches!(outcome, Outcome::Dead | Outcome::Retrying) {
                continue;
            }
            let failure = plan.failures.iter().find(|(failed, _)| *failed == index);
            let message = failure.map_or("", |(_, message)| message.as_str());
            let id = work.ids.text(index as usize);
            warn!(event = clip(id), partition = %event.at(), offset = event.offset(),
                "event failed ({}): {message}", outcome.name());
            owned.failed_in_a_row += 1;
            if owned.failed_in_a_row == self.settings.max_dead_in_a_row {
                let last = format!("the last at offset {}: {message}", event.offset());
                stop.push((event.at().clone(), last));
            }
        }
        for (at, last) in stop {
            let limit = self.settings.max_dead_in_a_row;
            let reason = format!(
                "{limit} events in a row failed, as dead letters or waiting for a retry, and none \
                 was applied between them (retry.max_dead_in_a_row); {last}. Mend the cause and \
                 start the consumer again"
            );
            self.stop(&at, reason).await?;
        }
        Ok(())
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

/// A batch that is tried again and again, for reasons that time was to mend.
fn say_stuck(work: &Work, part: &Part, tries: u32) {
    if part.range.is_empty() {
        return;
    }
    let event = work.batch.event(part.range.start);
    warn!(partition = %event.at(), offset = event.offset(), events = part.range.len(), tries,
        "the events from here on do not get through; \"trying again\" lines say why");
}

/// The beginning of an id, as much of it as a log line needs.
fn clip(id: &str) -> &str {
    match id.char_indices().nth(100) {
        Some((end, _)) => &id[..end],
        None => id,
    }
}
