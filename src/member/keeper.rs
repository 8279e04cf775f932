//! Keeps the ledger's memory as long as `dedup.retention` says: one member of the fleet does, by an
//! advisory lock, and another one when it is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error::Error;
use crate::event::TopicPartition;
use crate::ledger::postgres::PostgresSettings;
use crate::ledger::postgres::rotation::Rotator;
use crate::pipeline::Health;
use crate::retention::{Chore, Generation, Retention, Standing, pipeline_time};
use crate::source::kafka::{KafkaLog, LogView};
use crate::span;
use crate::telemetry::LedgerState;

/// How often the ledger's age is looked at: often enough for a metric not to look idle.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(500);

/// How many looks each generation gets.
const LOOKS_PER_GENERATION: u32 = 20;

/// How long a rotation waits for transactions that were open before it; then it is tried again.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may fail before that is told, each time: lost connections are told elsewhere.
const ALARM_AFTER: Duration = Duration::from_secs(60);

/// How many chores one look may find: catching up is a few rotations and forgettings.
const CHORES_MAX: usize = 200;

/// Rotates and forgets while the process lives.
pub(super) struct Keeper {
    pub(super) postgres: PostgresSettings,
    pub(super) pipeline: String,
    pub(super) log: KafkaLog,
    pub(super) retention: Retention,
    pub(super) health: Arc<Health>,
}

/// What a look found out.
struct Looked {
    generations: Vec<Generation>,
    time_ms: Option<i64>,
    now_ms: i64,
    slowest: Option<TopicPartition>,
}

impl Keeper {
    /// Runs until `end`. What fails is told once a minute and tried again: the line does not depend on it.
    pub(super) async fn run(self, end: CancellationToken) {
        let slice = self.retention.retention / self.retention.generations.max(1);
        let every = (slice / LOOKS_PER_GENERATION).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX);
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rotator = None;
        let (mut failing_since, mut told_held) = (None, None);
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                _ = tick.tick() => {}
            }
            let looked = tokio::select! {
                () = end.cancelled() => return,
                looked = self.look_after(&mut rotator) => looked,
            };
            match looked {
                Ok(None) => {
                    failing_since = None;
                    self.note(None);
                }
                Ok(Some(looked)) => {
                    failing_since = None;
                    self.tell(&looked, &mut told_held);
                }
                Err(error) => {
                    rotator = None;
                    self.note(None);
                    if failing_since.get_or_insert_with(Instant::now).elapsed() >= ALARM_AFTER {
                        failing_since = None;
                        warn!("the ledger forgets nothing for now; trying again: {error}");
                    }
                }
            }
        }
    }

    /// Does what is due. `None`: another member does it.
    async fn look_after(&self, kept: &mut Option<Rotator>) -> Result<Option<Looked>, Error> {
        if kept.is_none() {
            *kept = Rotator::open(&self.postgres, &self.pipeline, PATIENCE).await?;
        }
        let Some(rotator) = kept.as_mut() else {
            return Ok(None);
        };
        if rotator.generations().await?.next.is_some() {
            rotator.rotate().await?;
        }
        rotator.drop_passed_over().await?;
        let mut looked = self.look(rotator).await?;
        for _ in 0..CHORES_MAX {
            let Some(chore) = self.retention.due(looked.time_ms, &looked.generations) else {
                break;
            };
            self.carry_out(chore, rotator, &looked).await?;
            looked = self.look(rotator).await?;
        }
        Ok(Some(looked))
    }

    /// The clock is read before the log, and the log before the positions: a partition that has
    /// reached the end that the log had then is as late as the clock was.
    async fn look(&self, rotator: &mut Rotator) -> Result<Looked, Error> {
        let now_ms = rotator.now_ms().await?;
        let mut topics: Vec<String> = (rotator.places().await?.iter())
            .map(|(at, ..)| at.topic.to_string())
            .filter(|topic| self.log.reads(topic))
            .collect();
        topics.dedup();
        let log = self.log.look(topics).await?;
        let standings = standings(&log, &rotator.places().await?);
        let time = pipeline_time(now_ms, &standings);
        Ok(Looked {
            generations: rotator.ages().await?,
            time_ms: time.time_ms,
            now_ms,
            slowest: time.slowest.cloned(),
        })
    }

    async fn carry_out(
        &self,
        chore: Chore,
        rotator: &mut Rotator,
        looked: &Looked,
    ) -> Result<(), Error> {
        match chore {
            Chore::Date(generation) => match looked.time_ms {
                Some(time_ms) => rotator.date(generation, time_ms).await,
                None => Ok(()),
            },
            Chore::Rotate => {
                rotator.rotate().await?;
                info!("the ledger has a new generation");
                Ok(())
            }
            Chore::Forget => {
                rotator.forget_oldest().await?;
                info!(
                    "the ledger forgot its oldest generation: its ids are older than dedup.retention"
                );
                Ok(())
            }
            Chore::ForgetEarly => {
                rotator.forget_oldest().await?;
                error!(
                    "the ledger is larger than dedup.max_bytes = {}: its oldest generation was \
                     forgotten before its time, and duplicates of those ids will take effect again",
                    self.retention.max_bytes
                );
                Ok(())
            }
        }
    }

    fn note(&self, state: Option<LedgerState>) {
        *(self.health.ledger)
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Tells when a backlog holds forgetting up, and when it no longer does.
    fn tell(&self, looked: &Looked, told: &mut Option<TopicPartition>) {
        let bytes: u64 = looked.generations.iter().map(|g| g.bytes).sum();
        let due = |time_ms| self.retention.due(time_ms, &looked.generations);
        let held = due(Some(looked.now_ms)) == Some(Chore::Forget);
        self.note(Some(LedgerState {
            bytes,
            forgetting_held: held,
        }));
        let holder = looked.slowest.clone().filter(|_| held);
        if let Some(at) = &holder
            && told.as_ref() != Some(at)
        {
            warn!(partition = %at,
            "ids are kept beyond dedup.retention: this partition has records to read that are {}, \
             and their duplicates must still be known",
            looked.time_ms.map_or("of an unknown time".to_owned(), |time_ms| {
                let behind_ms = looked.now_ms.saturating_sub(time_ms).unsigned_abs();
                format!("{} old", span::text(Duration::from_secs(behind_ms / 1000)))
            }));
        }
        *told = holder;
    }
}

/// Where each partition of the topics that are read stands in time.
fn standings(
    log: &LogView,
    places: &[(TopicPartition, i64, Option<i64>)],
) -> Vec<(TopicPartition, Standing)> {
    let places: BTreeMap<&TopicPartition, _> = (places.iter())
        .map(|(at, next_offset, time_ms)| (at, (*next_offset, *time_ms)))
        .collect();
    let mut standings = Vec::new();
    for (topic, found) in &log.topics {
        for (&partition, bounds) in &found.bounds {
            let at = TopicPartition::new(topic.as_str(), partition);
            let standing = match (places.get(&at), bounds) {
                (Some((next_offset, _)), Some((_, end))) if next_offset >= end => {
                    Standing::CaughtUp
                }
                (Some((_, time_ms)), _) => Standing::Behind(*time_ms),
                (None, Some((low, end))) if low == end => Standing::CaughtUp,
                (None, _) => Standing::Behind(None),
            };
            standings.push((at, standing));
        }
    }
    standings
}

#[cfg(test)]
mod tests {
    use crate::source::kafka::TopicLog;

    use super::*;

    #[test]
    fn a_partition_is_caught_up_at_its_end_and_unknown_before_its_first_claim() {
        let bounds = [
            (0, Some((0, 10))),
            (1, Some((0, 10))),
            (2, None),
            (3, Some((5, 5))),
            (4, Some((5, 6))),
        ];
        let log = TopicLog {
            topic_id: None,
            bounds: bounds.into(),
        };
        let view = LogView {
            cluster_id: None,
            topics: BTreeMap::from([("orders".to_owned(), log)]),
        };
        let at = |partition| TopicPartition::new("orders", partition);
        let gone = TopicPartition::new("gone", 0);
        let places = [
            (at(0), 10, Some(7)),
            (at(1), 9, Some(8)),
            (at(2), 3, Some(9)),
            (gone, 1, Some(1)),
        ];
        let standings: Vec<Standing> = (standings(&view, &places).into_iter())
            .map(|(_, standing)| standing)
            .collect();
        assert_eq!(
            standings,
            [
                Standing::CaughtUp,
                Standing::Behind(Some(8)),
                Standing::Behind(Some(9)),
                Standing::CaughtUp,
                Standing::Behind(None),
            ]
        );
    }
}
