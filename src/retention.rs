//! When ids are forgotten: in the pipeline's own time, by generations of the ledger.
//!
//! The pipeline's own time is that of its slowest partition, so that the duplicates that wait in a
//! backlog are still known, however long the pipeline was down; a partition that is read to its end
//! is as late as the clock, so that an idle one holds nothing up.

use std::time::Duration;

use crate::event::TopicPartition;

/// Where a partition stands in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Everything in its log is done.
    CaughtUp,
    /// There is more to read, and this is the time of the last record that was, in milliseconds
    /// since the epoch; `None` where none had one.
    Behind(Option<i64>),
}

/// The pipeline's own time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineTime<'a> {
    /// Milliseconds since the epoch; `None` where a partition's is not known, and nothing may be
    /// forgotten.
    pub time_ms: Option<i64>,
    /// The partition that it is the time of, unless all are read to their ends.
    pub slowest: Option<&'a TopicPartition>,
}

/// The minimum over all partitions, never above the clock `now_ms`.
pub fn pipeline_time(now_ms: i64, partitions: &[(TopicPartition, Standing)]) -> PipelineTime<'_> {
    let mut slowest = PipelineTime {
        time_ms: Some(now_ms),
        slowest: None,
    };
    for (at, standing) in partitions {
        let time_ms = match standing {
            Standing::CaughtUp => continue,
            Standing::Behind(time_ms) => *time_ms,
        };
        if slowest.slowest.is_none() || time_ms < slowest.time_ms {
            slowest = PipelineTime {
                time_ms: time_ms.map(|time_ms| time_ms.min(now_ms)),
                slowest: Some(at),
            };
        }
    }
    slowest
}

/// A generation of the ledger that claims look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Counts the generations.
    pub number: i32,
    /// The pipeline's own time from which on it holds every id, in milliseconds since the epoch;
    /// `None` where that is not noted yet.
    pub event_time_ms: Option<i64>,
    /// What it takes on disk, with its index.
    pub bytes: u64,
    /// Ids that it holds, as the database estimates.
    pub ids: u64,
}

/// For how long ids are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// At least so long.
    pub retention: Duration,
    /// The generations into which that is divided; ids are remembered for one of them longer at
    /// most.
    pub generations: u32,
    /// The ledger's bytes beyond which ids are forgotten earlier; 0: never.
    pub max_bytes: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// To note that a generation is complete as of now.
    Date(i32),
    /// To begin the next generation.
    Rotate,
    /// To forget the oldest generation: its youngest id is older than the retention.
    Forget,
    /// To forget the oldest generation although its time has not come: the ledger is too large.
    ForgetEarly,
}

impl Retention {
    /// The next chore for generations, from the oldest to the current one.
    pub fn due(&self, time_ms: Option<i64>, generations: &[Generation]) -> Option<Chore> {
        if let Some(chore) = self.brake(generations) {
            return Some(chore);
        }
        let (time_ms, current) = (time_ms?, generations.last()?);
        if let Some(undated) = generations.iter().find(|g| g.event_time_ms.is_none()) {
            return Some(Chore::Date(undated.number));
        }
        let passed = |since: &Generation, span: Duration| {
            let span_ms = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
            (since.event_time_ms)
                .is_some_and(|since_ms| time_ms >= since_ms.saturating_add(span_ms))
        };
        // Who was applied before the second generation was complete is in the first at the latest.
        if let [_, second, ..] = generations
            && passed(second, self.retention)
        {
            return Some(Chore::Forget);
        }
        let slice = self.retention / self.generations.max(1);
        passed(current, slice).then_some(Chore::Rotate)
    }

    fn brake(&self, generations: &[Generation]) -> Option<Chore> {
        let bytes: u64 = generations.iter().map(|g| g.bytes).sum();
        if self.max_bytes == 0 || bytes <= self.max_bytes {
            return None;
        }
        // The one that is written to is never forgotten; it has to be closed first.
        match generations {
            [] => None,
            [_] => Some(Chore::Rotate),
            _ => Some(Chore::ForgetEarly),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("orders", partition)
    }

    #[test]
    fn an_idle_partition_holds_nothing_up_and_a_backlog_does() {
        let idle = [(at(0), Standing::CaughtUp)];
        assert_eq!(pipeline_time(100, &idle).time_ms, Some(100));
        assert_eq!(pipeline_time(100, &[]).time_ms, Some(100));
        let backlog = [
            (at(0), Standing::CaughtUp),
            (at(1), Standing::Behind(Some(40))),
            (at(2), Standing::Behind(Some(30))),
        ];
        let time = pipeline_time(100, &backlog);
        assert_eq!((time.time_ms, time.slowest), (Some(30), Some(&at(2))));
    }

    #[test]
    fn an_unknown_time_forgets_nothing_and_a_time_to_come_is_now() {
        let unknown = [
            (at(0), Standing::Behind(Some(30))),
            (at(1), Standing::Behind(None)),
        ];
        let time = pipeline_time(100, &unknown);
        assert_eq!((time.time_ms, time.slowest), (None, Some(&at(1))));
        let future = [(at(0), Standing::Behind(Some(900)))];
        assert_eq!(pipeline_time(100, &future).time_ms, Some(100));
    }

    fn week(generations: u32) -> Retention {
        Retention {
            retention: Duration::from_millis(7 * DAY_MS as u64),
            generations,
            max_bytes: 0,
        }
    }

    fn ledger(days: &[Option<i64>]) -> Vec<Generation> {
        let generation = |(number, day): (i32, &Option<i64>)| Generation {
            number,
            event_time_ms: day.map(|day| day * DAY_MS),
            bytes: 100,
            ids: 1,
        };
        (0..).zip(days).map(generation).collect()
    }

    #[test]
    fn generations_are_dated_begun_and_forgotten_in_their_time() {
        let due = |day, days: &[Option<i64>]| week(7).due(Some(day * DAY_MS), &ledger(days));
        assert_eq!(due(5, &[None]), Some(Chore::Date(0)));
        assert_eq!(due(5, &[Some(5)]), None);
        assert_eq!(due(6, &[Some(5)]), Some(Chore::Rotate));
        assert_eq!(due(6, &[Some(5), None]), Some(Chore::Date(1)));
        let week_of = |first| (first..first + 8).map(Some).collect::<Vec<_>>();
        assert_eq!(
            due(12, &week_of(5)),
            None,
            "the youngest id of day 5 is of day 6"
        );
        assert_eq!(due(13, &week_of(5)), Some(Chore::Forget));
        assert_eq!(
            due(99, &[Some(5)]),
            Some(Chore::Rotate),
            "the current one stays"
        );
        assert_eq!(week(7).due(None, &ledger(&week_of(5))), None);
    }

    #[test]
    fn a_long_absence_is_one_rotation_and_forgets_only_what_is_old() {
        let days = [Some(5), Some(6), Some(40)];
        let due = week(7).due(Some(41 * DAY_MS), &ledger(&days));
        assert_eq!(due, Some(Chore::Forget), "of before day 6");
        let due = week(7).due(Some(40 * DAY_MS), &ledger(&days[1..]));
        assert_eq!(
            due, None,
            "ids of between day 6 and day 40 stay until day 47"
        );
    }

    #[test]
    fn the_brake_closes_and_forgets_but_never_what_is_written_to() {
        let braked = |max_bytes, days: &[Option<i64>]| {
            Retention {
                max_bytes,
                ..week(7)
            }
            .due(None, &ledger(days))
        };
        assert_eq!(braked(200, &[Some(1), Some(2)]), None);
        assert_eq!(braked(199, &[Some(1), Some(2)]), Some(Chore::ForgetEarly));
        assert_eq!(braked(99, &[Some(1)]), Some(Chore::Rotate));
        assert_eq!(braked(0, &[Some(1), Some(2)]), None);
    }
}
