//! What is shown of a pipeline, as it is written in JSON.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use onceonly::config::Config;
use onceonly::error::Error;
use onceonly::filter::redis::RedisReport;
use onceonly::ledger::postgres::report::Sizes;
use onceonly::ledger::postgres::{self, Difference};
use onceonly::outcome::{Outcome, Tally};
use onceonly::retention::Generation;
use onceonly::span;
use serde::{Serialize, Serializer};

use super::partition::{Partition, partitions};
use super::{Found, Kept};

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) pipeline: String,
    pub(super) healthy: bool,
    /// What makes it unhealthy, a sentence each.
    pub(super) problems: Vec<String>,
    pub(super) postgres: Service,
    pub(super) kafka: Service,
    /// Null: the pipeline uses none.
    pub(super) redis: Option<Redis>,
    /// Null where Postgres cannot be asked, as is what follows.
    pub(super) fingerprint: Option<Fingerprint>,
    pub(super) partitions: Option<Vec<Partition>>,
    /// Sums over all partitions.
    pub(super) outcomes: Option<Outcomes>,
    pub(super) conflicts: Option<u64>,
    pub(super) ledger: Option<Ledger>,
    pub(super) waiting: Option<i64>,
    pub(super) next_due: Option<Timestamp>,
    pub(super) dead: Option<i64>,
    pub(super) discarded: Option<i64>,
}

#[derive(Serialize)]
pub(super) struct Service {
    pub(super) up: bool,
    pub(super) problem: Option<String>,
}

impl Service {
    fn new<T>(found: &Result<T, Error>) -> Self {
        Self {
            up: found.is_ok(),
            problem: found.as_ref().err().map(Error::to_string),
        }
    }
}

#[derive(Serialize)]
pub(super) struct Redis {
    #[serde(flatten)]
    pub(super) service: Service,
    pub(super) version: Option<String>,
    pub(super) ping_ms: Option<f64>,
    pub(super) warnings: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Fingerprint {
    pub(super) group: String,
    pub(super) identity: String,
    pub(super) scope: String,
    pub(super) retention: String,
    pub(super) handler: String,
    /// What the configuration has otherwise, so that `run` refuses it.
    pub(super) differences: Vec<Difference>,
}

#[derive(Serialize)]
pub(super) struct Ledger {
    /// An estimate; null where there is none yet.
    pub(super) rows: Option<i64>,
    pub(super) bytes: i64,
    /// By the estimate; null where there is none yet, or nothing to divide by.
    pub(super) bytes_per_id: Option<i64>,
    pub(super) generations: i64,
    /// From the oldest to the one that is written to.
    pub(super) ages: Vec<Age>,
}

/// One generation.
#[derive(Serialize)]
pub(super) struct Age {
    pub(super) generation: i32,
    /// The pipeline's own time from which on it holds every id; null until that is noted.
    pub(super) since: Option<Timestamp>,
    /// An estimate.
    pub(super) ids: u64,
    pub(super) bytes: u64,
}

/// Counts by the outcomes' names, in their order, with the sums that people ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcomes(pub(super) Tally);

impl Serialize for Outcomes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(tally) = self;
        let each = Outcome::ALL.map(|outcome| (outcome.name(), tally.get(outcome)));
        let sums = [
            ("duplicates", tally.duplicates()),
            ("consumed", tally.total()),
        ];
        serializer.collect_map(each.into_iter().chain(sums))
    }
}

impl Report {
    pub(super) fn new(config: &Config, file: Option<&Path>, found: &Found) -> Self {
        let kept = found.postgres.as_ref().ok();
        let log = found.kafka.as_ref().ok();
        let sizes = kept.map(|kept| kept.sizes);
        let mut sum = Tally::default();
        let mut conflicts = 0;
        for position in kept.iter().flat_map(|kept| &kept.positions) {
            sum.merge(&position.tally);
            conflicts += position.conflicts;
        }
        let mut report = Self {
            pipeline: config.pipeline.clone(),
            healthy: true,
            problems: Vec::new(),
            postgres: Service::new(&found.postgres),
            kafka: Service::new(&found.kafka),
            redis: redis(found),
            fingerprint: kept.map(|kept| fingerprint(kept, found)),
            partitions: kept.map(|kept| partitions(&kept.positions, log, file)),
            outcomes: kept.map(|_| Outcomes(sum)),
            conflicts: kept.map(|_| conflicts),
            ledger: kept.map(ledger),
            waiting: sizes.map(|sizes| sizes.waiting),
            next_due: sizes.and_then(|sizes| sizes.next_due),
            dead: sizes.map(|sizes| sizes.dead),
            discarded: sizes.map(|sizes| sizes.discarded),
        };
        report.problems = report.find_problems();
        report.healthy = report.problems.is_empty();
        report
    }

    fn find_problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.postgres.problem.iter().cloned().collect();
        let differs = self.fingerprint.iter().flat_map(|f| &f.differences);
        for difference in differs {
            problems.push(format!(
                "the pipeline is recorded with {} = {:?}, the configuration has {:?}: `onceonly \
                 run` refuses it until `onceonly pipeline adopt` accepts it",
                difference.field, difference.recorded, difference.configured
            ));
        }
        let partitions = self.partitions.iter().flatten();
        match partitions.filter(|p| p.stopped.is_some()).count() {
            0 => {}
            1 => problems.push("1 partition is stopped".to_owned()),
            many => problems.push(format!("{many} partitions are stopped")),
        }
        problems
    }
}

fn redis(found: &Found) -> Option<Redis> {
    let answer = found.redis.as_ref()?;
    let report = answer.as_ref().ok();
    Some(Redis {
        service: Service::new(answer),
        version: report.map(|report| report.version.clone()),
        ping_ms: report.map(|report| report.ping.as_secs_f64() * 1000.0),
        warnings: report.map_or_else(Vec::new, |report| warnings(report, found.redis_timeout)),
    })
}

fn warnings(report: &RedisReport, timeout: Duration) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(policy) = &report.evicts_by {
        warnings.push(format!(
            "maxmemory-policy {policy} may evict marks before they expire: nothing is lost, but \
             duplicates of evicted ids cost a trip to Postgres; noeviction keeps them"
        ));
    }
    if report.ping > timeout {
        warnings.push(format!(
            "an answer took {:.1} ms, longer than redis.timeout = {}: batches do not wait that \
             long, and go to Postgres",
            report.ping.as_secs_f64() * 1000.0,
            span::text(timeout)
        ));
    }
    warnings
}

fn fingerprint(kept: &Kept, found: &Found) -> Fingerprint {
    let recorded: &postgres::Fingerprint = &kept.fingerprint;
    let configured = found.configured.as_ref();
    Fingerprint {
        group: recorded.consumer_group.clone(),
        identity: recorded.identity.clone(),
        scope: recorded.scope.clone(),
        retention: span::text(recorded.retention),
        handler: recorded.handler_kind.clone(),
        differences: configured.map_or_else(Vec::new, |c| recorded.differences(c)),
    }
}

fn ledger(kept: &Kept) -> Ledger {
    let sizes: &Sizes = &kept.sizes;
    let age = |generation: &Generation| Age {
        generation: generation.number,
        since: (generation.event_time_ms).and_then(|ms| Timestamp::from_millisecond(ms).ok()),
        ids: generation.ids,
        bytes: generation.bytes,
    };
    Ledger {
        bytes_per_id: (sizes.ledger_rows > 0).then(|| sizes.ledger_bytes / sizes.ledger_rows),
        ages: kept.generations.iter().map(age).collect(),
        rows: (sizes.ledger_rows >= 0).then_some(sizes.ledger_rows),
        bytes: sizes.ledger_bytes,
        generations: sizes.generations,
    }
}
