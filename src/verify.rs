//! Whether what was consumed is what has effects: a range of a topic compared with the ledger, the
//! waiting events, the dead letters, and the effects themselves.
//!
//! Nothing is written but a temporary table of the session, and no offset is committed. It may run
//! beside the pipeline: only records below the position are compared, whose transactions are
//! committed, and whatever looks wrong is looked at again, in one snapshot, before it is told.
//! Memory is bounded by a few batches; what has to be remembered of ids lies in the temporary table.
//!
//! What it does not know: ids that the ledger has forgotten. Records before the horizon are not
//! compared. A record behind it may be a duplicate of an event from before it; it is taken for that
//! where the event is still in the log or has an effect.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use crate::config::{Config, DedupMode};
use crate::error::Error;
use crate::event::{Batch, TopicPartition};
use crate::identity::{EventKey, Identity, Ids, Scope};
use crate::ledger::id_state::{Kind, State};
use crate::ledger::postgres::comparison::{Comparison, Noted};
use crate::ledger::postgres::report::{Observer, PositionReport};
use crate::member::{kafka_settings, line_settings, postgres_settings};
use crate::pipeline::Settings;
use crate::place::LogPlaces;
use crate::source::kafka::{KafkaScan, KafkaSettings, ScanRange};

mod effects;
mod plan;
mod range;
mod report;

pub use range::Range;
pub use report::{Finding, Report};

use plan::Plan;

/// What its clients call themselves.
const MEMBER: &str = "onceonly verify";
const CLIENT: &str = "onceonly-verify";

/// What to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// One topic; `None` for all of the pipeline's.
    pub topic: Option<String>,
    /// Partitions of it; none for all.
    pub partitions: BTreeSet<i32>,
    /// Where to begin; by default where the log and the ledger's memory do.
    pub from: Option<LogPlaces>,
    /// Where to end, exclusive; by default, and at most, at the position.
    pub to: Option<LogPlaces>,
    /// A query of one column, the event's id, with a row for each effect.
    pub effects: Option<String>,
    /// At most so many findings are listed; all are counted.
    pub limit: usize,
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The request, or the configuration, makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Kafka or Postgres failed, or has not what was asked for.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many offsets are to be read.
    Begun(u64),
    /// So many of them were.
    Read(u64),
    /// Effects are compared, which is one statement for all of them.
    Effects,
    /// Records before the horizon are read, which duplicates may repeat.
    BeforeHorizon,
}

/// Compares, and says how far it is.
pub async fn verify(
    config: &Config,
    request: &Request,
    mut progress: impl FnMut(Progress),
) -> Result<Report, VerifyError> {
    let settings = postgres_settings(config, MEMBER);
    let mut observer = Observer::connect(&settings, &config.pipeline).await?;
    let plan = Plan::make(config, request, &mut observer).await?;
    let effects = request.effects.as_deref();
    let mut comparison = Comparison::open(&settings, &config.pipeline, effects).await?;
    comparison.check_effects().await.map_err(wrong_query)?;
    let mut verification = Verification {
        settings: line_settings(config, Uuid::nil()),
        kafka: kafka_settings(config, CLIENT)?,
        report: Report::new(config, &plan),
        observed: config.dedup.mode == DedupMode::Observe,
        has_effects: effects.is_some(),
        observer,
        comparison,
        plan,
        ids: Ids::default(),
    };
    verification.read(&mut progress).await?;
    if verification.has_effects {
        progress(Progress::Effects);
        verification.compare_effects().await?;
        verification.find_strangers().await?;
    }
    verification.recall(&mut progress).await?;
    verification.finish(request.limit).await.map_err(Into::into)
}

/// A query that Postgres does not take is the caller's; a lost connection is not.
fn wrong_query(error: Error) -> VerifyError {
    match error.class() {
        crate::error::Class::Transient => VerifyError::Failed(error),
        _ => VerifyError::Usage(error.to_string()),
    }
}

/// A comparison under way.
struct Verification {
    /// What the pipeline's members agree on, identity first of all.
    settings: Settings,
    kafka: KafkaSettings,
    observer: Observer,
    comparison: Comparison,
    plan: Plan,
    report: Report,
    ids: Ids,
    /// Duplicates are applied on purpose.
    observed: bool,
    has_effects: bool,
}

impl Verification {
    fn identity(&self) -> &Identity {
        &self.settings.identity
    }

    /// Reads every range and compares its records with the tables.
    async fn read(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let ranges = self.report.partitions.iter();
        progress(Progress::Begun(
            ranges
                .map(|range| (range.to - range.from).unsigned_abs())
                .sum(),
        ));
        let mut done = 0;
        for topic in self.plan.topics.clone() {
            let ranges = self.report.partitions.iter().filter(|r| r.topic == topic);
            let ranges: Vec<ScanRange> = ranges
                .map(|range| ScanRange {
                    partition: range.partition,
                    from: range.from,
                    to: range.to,
                })
                .collect();
            let mut read_to: HashMap<i32, i64> = ranges
                .iter()
                .map(|range| (range.partition, range.from))
                .collect();
            let mut scan = KafkaScan::open(&self.kafka, &topic, &ranges)?;
            while let Some(batch) = scan.next().await {
                let batch = batch?;
                self.compare(&batch).await?;
                for slice in batch.slices() {
                    let before = read_to.insert(slice.at.partition, slice.next_offset);
                    let before = before.unwrap_or(slice.next_offset);
                    done += (slice.next_offset - before).max(0).unsigned_abs();
                }
                progress(Progress::Read(done));
            }
        }
        Ok(())
    }

    /// Compares a batch with the tables.
    async fn compare(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut records = self.identify(batch);
        records.sort_by_key(|(key, _)| *key);
        let mut copies: Vec<(EventKey, usize, u64)> = Vec::with_capacity(records.len());
        for (key, index) in records {
            match copies.last_mut().filter(|(last, ..)| *last == key) {
                Some((.., count)) => *count += 1,
                None => copies.push((key, index, 1)),
            }
        }
        let keys: Vec<EventKey> = copies.iter().map(|(key, ..)| *key).collect();
        let known = self.comparison.states(&keys).await?;
        let mut met = Vec::with_capacity(copies.len());
        for ((key, index, count), known) in copies.into_iter().zip(known) {
            let event = batch.event(index);
            let noted = Noted {
                key,
                id: self.ids.text(index).to_owned(),
                record: Some((event.topic().to_owned(), event.partition(), event.offset())),
                state: State::of(known),
            };
            met.push((noted, count));
        }
        self.doubt(&mut met).await?;
        for (noted, count) in &met {
            self.report.count(noted.state, *count);
        }
        // Without effects to compare them with, ids that are as they should be need no memory.
        let keep = |noted: &Noted| self.has_effects || noted.state.kind().is_some();
        let noted: Vec<Noted> = met
            .into_iter()
            .map(|(noted, _)| noted)
            .filter(keep)
            .collect();
        self.comparison.note(&noted).await
    }

    /// The ids of a batch's records that were not passed over.
    fn identify(&mut self, batch: &Batch) -> Vec<(EventKey, usize)> {
        self.ids.clear();
        let mut records = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let event = batch.event(index);
            let topic_id = self.plan.topic_id(event.at());
            let identity = &self.settings.identity;
            identity.identify(event, topic_id, &mut self.ids);
            self.report.count_read(event.at());
            match self.settings.passes_over(&event, self.ids.found(index)) {
                true => self.report.skipped += 1,
                false => records.push((self.ids.key(index), index)),
            }
        }
        records
    }

    /// Looks again at what is missing. A position that was taken back, or ids that were forgotten
    /// meanwhile, are no finding: what is known of positions now was true before the second look.
    async fn doubt(&mut self, met: &mut Vec<(Noted, u64)>) -> Result<(), Error> {
        let missing = |(noted, _): &(Noted, u64)| noted.state == State::Missing;
        if !met.iter().any(missing) {
            return Ok(());
        }
        let suspects: Vec<EventKey> = met
            .iter()
            .filter(|met| missing(met))
            .map(|(noted, _)| noted.key)
            .collect();
        let known = self.comparison.states(&suspects).await?;
        let positions = self.observer.positions().await?;
        let mut known = known.into_iter();
        for (noted, count) in met.iter_mut() {
            if noted.state != State::Missing {
                continue;
            }
            noted.state = State::of(known.next().unwrap_or_default());
            if noted.state != State::Missing {
                continue;
            }
            let Some((topic, partition, offset)) = &noted.record else {
                continue;
            };
            let row = positions
                .iter()
                .find(|row| *row.topic == **topic && row.partition == *partition);
            if let Some(range) = self.report.range(topic, *partition) {
                if row.is_none_or(|row| *offset >= row.next_offset) {
                    range.not_consumed += *count;
                    *count = 0;
                } else if row.is_some_and(|row| *offset < row.horizon) {
                    range.before_horizon += *count;
                    *count = 0;
                }
            }
        }
        met.retain(|(_, count)| *count > 0);
        Ok(())
    }

    /// Whether any id was ever forgotten.
    async fn forgets(&mut self) -> Result<bool, Error> {
        let generations = self.observer.generations().await?;
        Ok(generations.first().is_some_and(|oldest| oldest.number > 0))
    }

    /// Takes what looks missing for forgotten where the log before the horizon has it too.
    async fn recall(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), Error> {
        let missing = self
            .comparison
            .tally()
            .await?
            .get(State::Missing.name())
            .copied();
        if missing.is_none() || !self.forgets().await? {
            return Ok(());
        }
        progress(Progress::BeforeHorizon);
        let rows = self.observer.positions().await?;
        for (topic, ranges) in self.forgotten_ranges(&rows) {
            let mut scan = KafkaScan::open(&self.kafka, &topic, &ranges)?;
            while let Some(batch) = scan.next().await {
                let batch = batch?;
                let records = self.identify_quietly(&batch);
                self.comparison.recall(&records).await?;
            }
        }
        self.report.notes.push(
            "Ids before the horizon are forgotten. A duplicate behind it, of an event that the log \
             does not hold any more, looks missing; --effects tells it apart."
                .to_owned(),
        );
        Ok(())
    }

    /// What lies before the horizon, wherever the first copy of an id may be.
    fn forgotten_ranges(&self, rows: &[PositionReport]) -> Vec<(String, Vec<ScanRange>)> {
        let mut ranges: HashMap<String, Vec<ScanRange>> = HashMap::new();
        for row in rows {
            let elsewhere = !self.plan.topics.iter().any(|topic| **topic == *row.topic);
            if elsewhere && self.identity().scope == Scope::Topic {
                continue;
            }
            let Some((low, high)) = self.plan.bounds(&row.topic, row.partition) else {
                continue;
            };
            ranges
                .entry(row.topic.to_string())
                .or_default()
                .push(ScanRange {
                    partition: row.partition,
                    from: low,
                    to: row.horizon.min(high),
                });
        }
        ranges.into_iter().collect()
    }

    /// The ids of records that are not counted.
    fn identify_quietly(&mut self, batch: &Batch) -> Vec<EventKey> {
        self.ids.clear();
        for event in batch.events() {
            let topic_id = self.plan.topic_id(event.at());
            let identity = &self.settings.identity;
            identity.identify(event, topic_id, &mut self.ids);
        }
        (0..self.ids.len())
            .map(|index| self.ids.key(index))
            .collect()
    }

    /// Counts what was noted, and lists the first findings.
    async fn finish(mut self, limit: usize) -> Result<Report, Error> {
        self.report.sum_up();
        let tally = self.comparison.tally().await?;
        let found = |kind| {
            let of_kind = State::ALL
                .into_iter()
                .filter(move |s| s.kind() == Some(kind));
            of_kind.filter_map(|state| tally.get(state.name())).sum()
        };
        self.report.missing = found(Kind::Missing);
        self.report.contradictory = found(Kind::Contradictory);
        self.report.extra = found(Kind::Extra);
        self.report.forgotten += tally.get(State::Forgotten.name()).copied().unwrap_or(0);
        if self.has_effects {
            let strangers = tally.get(State::Stranger.name()).copied().unwrap_or(0);
            self.report.distinct = Some(tally.values().sum::<u64>() - strangers);
        }
        let states: Vec<State> = State::ALL
            .into_iter()
            .filter(|s| s.kind().is_some())
            .collect();
        let noted = self.comparison.findings(&states, limit).await?;
        self.report.findings = noted.into_iter().filter_map(Finding::new).collect();
        Ok(self.report)
    }
}

/// The row of a partition.
fn row_of<'a>(rows: &'a [PositionReport], at: &TopicPartition) -> Option<&'a PositionReport> {
    rows.iter()
        .find(|row| row.topic == at.topic && row.partition == at.partition)
}
