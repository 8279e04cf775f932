//! What each assigned partition does next: as its worker wishes, as the brokers answer, as there is
//! room.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::Consumer;

use super::assignment::{Stage, list};
use super::desk::{Command, lock};
use super::inquiry::{Ask, Finding, Job, Purpose};
use super::native;
use super::reader::{Flow, Reader};
use crate::source::Assigned;

/// The longest that one call waits for the client's own threads.
const SEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two tries to seek, and how many of them before the client is made to begin a partition
/// anew.
const SEEK_BACKOFF: Duration = Duration::from_millis(50);
const SEEK_TRIES: u32 = 20;

impl Reader {
    /// Takes what workers wish.
    pub(super) fn obey(&mut self) {
        for command in self.membership.desk.take_commands() {
            let mut assignment = lock(&self.membership.assignment);
            match command {
                Command::Start {
                    at,
                    session,
                    offset,
                } => {
                    if let Some(owned) = assignment.offered(&at) {
                        (owned.next, owned.begun) = (offset, Some(offset));
                        owned.stage = Stage::Starting {
                            session,
                            offset,
                            tries: 0,
                            due: Instant::now(),
                        };
                    }
                }
                Command::Halt { at } => {
                    if let Some(owned) = assignment.offered(&at) {
                        owned.stage = Stage::Halted;
                    }
                }
                Command::Reassign { at, offset } => {
                    let Some(owned) = assignment.get(&at) else {
                        continue;
                    };
                    owned.stage = Stage::Asked;
                    let ask = Ask::from(&*owned);
                    drop(assignment);
                    self.membership.desk.forget(&[at]);
                    self.inquire(Job::Commit { ask, offset });
                }
            }
        }
    }

    fn inquire(&self, job: Job) {
        if self.inquiries.ask(job).is_err() {
            self.membership
                .health
                .fail("the thread that asks Kafka's brokers has ended: restart this process");
        }
    }

    /// Takes what the brokers answered.
    pub(super) fn learn(&mut self) {
        while let Ok(finding) = self.findings.try_recv() {
            match finding {
                Finding::Committed {
                    at,
                    generation,
                    offset,
                } => {
                    let mut assignment = lock(&self.membership.assignment);
                    if let Some(owned) = assignment.same(&at, generation) {
                        owned.committed = Some(offset);
                    }
                }
                Finding::Surveyed {
                    purpose: Purpose::Offer,
                    partitions,
                } => self.offer(partitions, |stage| stage == Stage::Asked),
                Finding::Surveyed {
                    purpose: Purpose::Check,
                    partitions,
                } => self.check(partitions),
            }
        }
    }

    /// Hands partitions to their workers, if they are still what the question was about.
    fn offer(&self, partitions: Vec<(u64, Assigned)>, fits: impl Fn(Stage) -> bool) {
        let mut offers: Vec<Vec<Assigned>> = vec![Vec::new(); self.membership.mailboxes.len()];
        let mut assignment = lock(&self.membership.assignment);
        for (generation, assigned) in partitions {
            self.membership.health.saw_end(&assigned.at, assigned.high);
            let Some(owned) = assignment.same(&assigned.at, generation) else {
                continue;
            };
            if fits(owned.stage) {
                owned.stage = Stage::Offered;
                if let Some(offer) = offers.get_mut(owned.worker) {
                    offer.push(assigned);
                }
            }
        }
        drop(assignment);
        for (mailbox, offer) in self.membership.mailboxes.iter().zip(offers) {
            if !offer.is_empty() {
                mailbox.assign(offer);
            }
        }
    }

    /// After the client gave up on some partition: one that is read outside of its log goes to its
    /// worker, which has to decide; the others are read on.
    fn check(&self, partitions: Vec<(u64, Assigned)>) {
        let mut outside = Vec::new();
        let mut assignment = lock(&self.membership.assignment);
        for (generation, assigned) in partitions {
            let Some(owned) = assignment.same(&assigned.at, generation) else {
                continue;
            };
            let Stage::Reading { session } = owned.stage else {
                continue;
            };
            if (assigned.low..=assigned.high).contains(&owned.next) {
                owned.stage = Stage::Starting {
                    session,
                    offset: owned.next,
                    tries: 0,
                    due: Instant::now(),
                };
            } else {
                tracing::warn!(
                    partition = %assigned.at,
                    position = owned.next,
                    low = assigned.low,
                    high = assigned.high,
                    "read outside of the log"
                );
                owned.given_up = true;
                outside.push((generation, assigned));
            }
        }
        drop(assignment);
        self.offer(outside, |stage| matches!(stage, Stage::Reading { .. }));
    }

    /// Asks about partitions that are new.
    pub(super) fn ask(&self) {
        let mut assignment = lock(&self.membership.assignment);
        let new = assignment.iter_mut().filter(|o| o.stage == Stage::New);
        let asks: Vec<_> = new
            .map(|owned| {
                owned.stage = Stage::Asked;
                Ask::from(&*owned)
            })
            .collect();
        drop(assignment);
        if !asks.is_empty() {
            self.inquire(Job::Survey {
                asks,
                purpose: Purpose::Offer,
            });
        }
    }

    /// Begins to read what is to be started: the client needs a moment to have a fetcher.
    pub(super) fn start_due(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = lock(&self.membership.assignment)
            .iter()
            .filter_map(|owned| match owned.stage {
                Stage::Starting {
                    offset, tries, due, ..
                } if due <= now => {
                    let again = owned.given_up || tries > 0 && tries % SEEK_TRIES == 0;
                    Some((owned.at.clone(), offset, again))
                }
                _ => None,
            })
            .collect();
        if due.is_empty() {
            return;
        }
        for (at, _, _) in due.iter().filter(|(_, _, again)| *again) {
            if let Err(error) = self.membership.refetch(&self.consumer, at) {
                let sentence = format!("{at} cannot be read anew: {error}");
                self.membership.health.warn("refetch", &sentence);
            }
        }
        self.settle_pauses();
        let seeks = list(due.iter().map(|(at, offset, _)| (at, Some(*offset))));
        let found = match self.consumer.seek_partitions(seeks, SEEK_TIMEOUT) {
            Ok(found) => native::entries(&found),
            Err(error) => {
                tracing::debug!("seek: {error}");
                Vec::new()
            }
        };
        let mut assignment = lock(&self.membership.assignment);
        for (at, _, _) in &due {
            let sought = found
                .iter()
                .any(|e| e.valid && e.partition == at.partition && *e.topic == *at.topic);
            let Some(owned) = assignment.get(at) else {
                continue;
            };
            if let Stage::Starting {
                session,
                tries,
                due,
                ..
            } = &mut owned.stage
            {
                if sought {
                    owned.stage = Stage::Reading { session: *session };
                } else {
                    *tries += 1;
                    *due = now + SEEK_BACKOFF;
                }
            }
        }
    }

    /// Tells the client to pause or resume where that differs from what it was told last.
    pub(super) fn settle_pauses(&mut self) {
        let open = self.flow != Flow::Paused;
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for owned in lock(&self.membership.assignment).iter_mut() {
            let paused = !(open && owned.is_reading());
            if paused == owned.paused {
                continue;
            }
            owned.paused = paused;
            let list = if paused { &mut pause } else { &mut resume };
            list.add_partition(&owned.at.topic, owned.at.partition);
        }
        for (list, resumes) in [(pause, false), (resume, true)] {
            if list.count() == 0 {
                continue;
            }
            let result = if resumes {
                self.consumer.resume(&list)
            } else {
                self.consumer.pause(&list)
            };
            if let Err(error) = result {
                self.membership.health.warn("pause", &error.to_string());
            }
        }
    }

    /// The client gave up on a partition and does not say which: all are looked at.
    pub(super) fn ask_all(&self) {
        let assignment = lock(&self.membership.assignment);
        let asks: Vec<_> = assignment
            .iter()
            .filter(|o| o.is_reading())
            .map(Ask::from)
            .collect();
        drop(assignment);
        if !asks.is_empty() {
            self.inquire(Job::Survey {
                asks,
                purpose: Purpose::Check,
            });
        }
    }
}
