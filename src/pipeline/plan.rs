//! What one transaction is about to do with a part of a batch.

use super::ownership::Ownership;
use super::work::{Part, Work};
use crate::event::TopicPartition;
use crate::filter::recent::RecentSet;
use crate::filter::{Mark, Probe};
use crate::ledger::{Claim, Entry, Fate, Move, Parked, Verdict};
use crate::outcome::{Layer, Outcome, Tally};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Of a partition, or a session of it, that is no longer this worker's: not consumed.
    Stale,
    /// Nobody has recognised it.
    Open,
    Ended(Outcome),
}

/// A slice's move, with the index of the slice.
#[derive(Clone, Copy, Debug)]
struct SlotMove {
    slot: usize,
    epoch: i64,
    from: i64,
    to: i64,
    event_time_ms: Option<i64>,
}

/// What one transaction is about to do with a part.
#[derive(Debug)]
pub(super) struct Plan {
    first: usize,
    states: Vec<State>,
    moves: Vec<SlotMove>,
    /// Where each slice's position stands, if the transaction moves it.
    froms: Vec<Option<i64>>,
    /// Open records sorted by key: the order in which every worker claims.
    claims: Vec<u32>,
    conflicts: Vec<u32>,
    /// Events that were parked, and why.
    pub failures: Vec<(u32, String)>,
    /// Repeats that the handler gets all the same; `None` where duplicates are dropped.
    observed: Option<Vec<u32>>,
}

impl Plan {
    /// Sorts out what needs no Postgres: stale records, those below the position, skipped ones,
    /// and repeats known to this process or proven by the filter.
    ///
    /// With `observe` repeats are counted, and handled all the same.
    pub fn new(
        work: &Work,
        part: &Part,
        owned: &Ownership,
        recent: &RecentSet,
        observe: bool,
    ) -> Self {
        let mut plan = Self {
            first: part.range.start,
            states: Vec::with_capacity(part.range.len()),
            moves: Vec::new(),
            froms: vec![None; work.batch.slices().len()],
            claims: Vec::new(),
            conflicts: Vec::new(),
            failures: Vec::new(),
            observed: observe.then(Vec::new),
        };
        plan.plan_moves(work, part, owned);
        for index in part.range.clone() {
            let state = plan.look(work, index, recent);
            plan.states.push(state);
        }
        plan.meet_each_other(work, part);
        for at in 0..plan.states.len() {
            if let State::Ended(Outcome::Duplicate(layer)) = plan.states[at] {
                plan.observe((plan.first + at) as u32, layer);
            }
        }
        plan
    }

    /// Of open records with the same id the first one read stays, unless a mark proves it applied.
    fn meet_each_other(&mut self, work: &Work, part: &Part) {
        self.claims.reserve(part.range.len());
        let mut last = None;
        for index in work.sorted(&part.range) {
            let state = &mut self.states[index as usize - self.first];
            if *state != State::Open {
                continue;
            }
            let key = work.key(index);
            if last.replace(key) == Some(key) {
                *state = State::Ended(Outcome::Duplicate(Layer::Batch));
            } else if work.probes.get(index as usize) == Some(&Probe::Proven) {
                *state = State::Ended(Outcome::Duplicate(Layer::Redis));
            } else {
                self.claims.push(index);
            }
        }
    }

    /// A redelivery is dropped even then, and so is an event that waits or is dead.
    fn observe(&mut self, index: u32, layer: Layer) {
        if let Some(observed) = &mut self.observed
            && matches!(
                layer,
                Layer::Batch | Layer::Recent | Layer::Redis | Layer::Ledger
            )
        {
            observed.push(index);
        }
    }

    fn plan_moves(&mut self, work: &Work, part: &Part, owned: &Ownership) {
        let slices = work.batch.slices();
        let at_the_end = part.range.end == work.batch.len();
        let mut read_to: Vec<Option<(i64, Option<i64>)>> = vec![None; slices.len()];
        for index in part.range.clone() {
            let event = work.batch.event(index);
            read_to[event.slot()] = Some((event.offset() + 1, event.timestamp_ms()));
        }
        for (slot, slice) in slices.iter().enumerate() {
            let Some(owner) = owned.reading(&slice.at, slice.session) else {
                continue;
            };
            let (mut to, event_time_ms) = read_to[slot].unwrap_or((i64::MIN, None));
            if at_the_end {
                to = to.max(slice.next_offset);
            }
            let (from, epoch) = (owner.next_offset, owner.epoch);
            if to > from {
                self.froms[slot] = Some(from);
                self.moves.push(SlotMove {
                    slot,
                    epoch,
                    from,
                    to,
                    event_time_ms,
                });
            }
        }
        self.moves
            .sort_by(|a, b| slices[a.slot].at.cmp(&slices[b.slot].at));
    }

    fn look(&self, work: &Work, index: usize, recent: &RecentSet) -> State {
        let event = work.batch.event(index);
        let Some(from) = self.froms[event.slot()] else {
            return State::Stale;
        };
        if event.offset() < from {
            return State::Ended(Outcome::Duplicate(Layer::Position));
        }
        if work.skipped[index] {
            return State::Ended(Outcome::Skipped);
        }
        if recent.contains(work.ids.key(index)) {
            return State::Ended(Outcome::Duplicate(Layer::Recent));
        }
        State::Open
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// Records that nobody has recognised, sorted by key.
    pub fn open(&self) -> &[u32] {
        &self.claims
    }

    /// The moves, sorted by partition.
    pub fn moves<'a>(&self, work: &'a Work) -> Vec<Move<'a>> {
        let slices = work.batch.slices();
        let to_move = |m: &SlotMove| Move {
            at: &slices[m.slot].at,
            epoch: m.epoch,
            from: m.from,
            to: m.to,
            event_time_ms: m.event_time_ms,
        };
        self.moves.iter().map(to_move).collect()
    }

    /// The ids to claim, sorted by key, none twice.
    pub fn entries<'a>(&self, work: &'a Work, detect_conflicts: bool) -> Vec<Entry<'a>> {
        work.entries(&self.claims, detect_conflicts)
    }

    /// Events that were recognised without the ledger's word on their bodies.
    pub fn repeats(&self) -> Vec<u32> {
        let is_repeat = |outcome| {
            matches!(
                outcome,
                Outcome::Duplicate(Layer::Batch | Layer::Recent | Layer::Redis)
            )
        };
        self.outcomes()
            .filter_map(|(index, outcome)| is_repeat(outcome).then_some(index))
            .collect()
    }

    /// Takes the ledger's word on them, in the same order.
    pub fn note_conflicts(&mut self, repeats: &[u32], conflicts: &[bool]) {
        let found = repeats.iter().zip(conflicts);
        let found = found.filter_map(|(&index, &conflict)| conflict.then_some(index));
        self.conflicts.extend(found);
    }

    /// Takes the ledger's answers: what is not new is a duplicate.
    pub fn meet(&mut self, answers: &[Claim]) {
        let claims = std::mem::take(&mut self.claims);
        for (&index, claim) in claims.iter().zip(answers) {
            if claim.conflict {
                self.conflicts.push(index);
            }
            let layer = match claim.fate {
                Fate::New => continue,
                Fate::Applied => Layer::Ledger,
                Fate::Waiting => Layer::Waiting,
                Fate::Dead => Layer::Dead,
            };
            self.states[index as usize - self.first] = State::Ended(Outcome::Duplicate(layer));
            self.observe(index, layer);
        }
        self.claims = claims;
    }

    /// New events for the handler, in the order read.
    pub fn to_handle(&self, work: &Work, part: &Part) -> Vec<u32> {
        let blamed = part.blamed.as_ref().map(|(index, _)| *index);
        let observed = self.observed.iter().flatten().copied();
        let mut handled: Vec<u32> = self
            .new_events()
            .chain(observed)
            .filter(|index| Some(*index) != blamed && !work.condemned.contains_key(index))
            .collect();
        handled.sort_unstable();
        handled
    }

    fn new_events(&self) -> impl Iterator<Item = u32> {
        let first = self.first;
        let open = move |(at, state): (usize, &State)| {
            (*state == State::Open).then_some((first + at) as u32)
        };
        self.states.iter().enumerate().filter_map(open)
    }

    /// New events that failed, with what `judge` makes of a blamed one; what can never be handled
    /// is dead at once.
    pub fn parked<'a>(
        &mut self,
        work: &'a Work,
        part: &'a Part,
        mut judge: impl FnMut() -> Verdict,
    ) -> Vec<Parked<'a>> {
        let mut parked = Vec::new();
        for index in self.new_events().collect::<Vec<_>>() {
            let (failure, verdict) = match (&part.blamed, work.condemned.get(&index)) {
                (_, Some(failure)) => (failure, Verdict::Dead),
                (Some((blamed, failure)), None) if *blamed == index => (failure, judge()),
                _ => continue,
            };
            let outcome = match verdict {
                Verdict::Dead => Outcome::Dead,
                Verdict::RetryAfter(_) => Outcome::Retrying,
            };
            self.states[index as usize - self.first] = State::Ended(outcome);
            self.failures.push((index, failure.message.clone()));
            let (id, key) = (work.ids.text(index as usize), work.key(index));
            parked.push(Parked {
                event: work.event(index),
                id,
                key,
                failure,
                verdict,
            });
        }
        parked
    }

    /// Declares what is still open applied, and counts every partition's outcomes and conflicts.
    pub fn close<'a>(&mut self, work: &'a Work) -> Vec<(&'a TopicPartition, Tally, u64)> {
        let mut tallies = vec![Tally::default(); work.batch.slices().len()];
        for (at, state) in self.states.iter_mut().enumerate() {
            let slot = work.batch.event(self.first + at).slot();
            match *state {
                State::Stale => {}
                State::Open => {
                    *state = State::Ended(Outcome::Applied);
                    tallies[slot].add(Outcome::Applied);
                }
                State::Ended(outcome) => tallies[slot].add(outcome),
            }
        }
        let conflicts = |slot: usize| {
            self.conflicts
                .iter()
                .filter(|index| work.event(**index).slot() == slot)
                .count() as u64
        };
        let slices = work.batch.slices();
        self.moves
            .iter()
            .map(|m| (&slices[m.slot].at, tallies[m.slot], conflicts(m.slot)))
            .collect()
    }

    /// How many ids came with another body than the one first seen.
    pub fn conflicts(&self) -> u64 {
        self.conflicts.len() as u64
    }

    /// Every record's outcome after [`Plan::close`], in the order read; stale ones are left out.
    pub fn outcomes(&self) -> impl Iterator<Item = (u32, Outcome)> {
        let first = self.first;
        self.states
            .iter()
            .enumerate()
            .filter_map(move |(at, state)| match state {
                State::Ended(outcome) => Some(((first + at) as u32, *outcome)),
                State::Stale | State::Open => None,
            })
    }

    /// What is known to be applied after the commit: new events, and duplicates that only the ledger
    /// knew.
    pub fn known(&self) -> impl Iterator<Item = u32> {
        self.outcomes().filter_map(|(index, outcome)| {
            let known = matches!(
                outcome,
                Outcome::Applied | Outcome::Duplicate(Layer::Ledger)
            );
            known.then_some(index)
        })
    }

    /// What to mark after the commit.
    pub fn marks<'a>(&self, work: &'a Work) -> Vec<Mark<'a>> {
        let mark = |index| Mark {
            scope: work.scope(work.event(index)),
            id: work.id_text(index),
            key: work.key(index),
            place: work.event(index).slot() as u32,
            overwrite: work.probes.get(index as usize) != Some(&Probe::Unknown),
        };
        self.known().map(mark).collect()
    }

    /// The position that each slice's mark cites.
    pub fn committed(&self, work: &Work) -> Vec<i64> {
        let mut committed: Vec<i64> = work.batch.slices().iter().map(|s| s.next_offset).collect();
        for m in &self.moves {
            committed[m.slot] = m.to;
        }
        committed
    }
}
