//! What is to be compared, decided before a record is read.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::range::{Asked, Range, Standing};
use super::{CLIENT, Request, VerifyError, row_of};
use crate::config::Config;
use crate::error::Error;
use crate::event::TopicPartition;
use crate::identity::Scope;
use crate::ledger::postgres::report::{Observer, PositionReport};
use crate::member::kafka_settings;
use crate::place::{LogPlace, LogPlaces, Start};
use crate::source::kafka::{KafkaLog, LogView};

/// How long each answer of the brokers is waited for.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(5);

/// Ranges, and what they are ranges of.
pub(super) struct Plan {
    /// Topics to read, in order.
    pub(super) topics: Vec<String>,
    /// Partitions to read, in order.
    pub(super) ranges: Vec<Range>,
    /// What is not compared, a sentence each.
    pub(super) notes: Vec<String>,
    view: LogView,
    /// As they were when the pipeline claimed the partitions.
    topic_ids: HashMap<TopicPartition, Option<Uuid>>,
}

impl Plan {
    /// Looks at positions and log, and resolves the places that were asked for.
    pub(super) async fn make(
        config: &Config,
        request: &Request,
        observer: &mut Observer,
    ) -> Result<Self, VerifyError> {
        refuse_other_identity(config, observer).await?;
        let rows = observer.positions().await?;
        let topics = topics(&config.pipeline, request, &rows)?;
        refuse_ambiguous(config, request, &rows, &topics)?;
        let kafka = KafkaLog::open(&kafka_settings(config, CLIENT)?, KAFKA_TIMEOUT)?;
        let mut every: Vec<String> = rows.iter().map(|row| row.topic.to_string()).collect();
        every.dedup();
        let mut plan = Self {
            view: kafka.look(every).await?,
            topic_ids: rows.iter().map(topic_id).collect(),
            topics: Vec::new(),
            ranges: Vec::new(),
            notes: Vec::new(),
        };
        for topic in topics {
            if plan.view.topics.contains_key(&topic) {
                plan.topics.push(topic);
            } else if request.topic.is_some() {
                let gone = format!("Kafka has no topic {topic:?}: nothing can be read of it");
                return Err(Error::fatal(gone).into());
            } else {
                let gone = format!("Topic {topic} is gone from Kafka: nothing of it was compared.");
                plan.notes.push(gone);
            }
        }
        let chosen = chosen(request, &rows, &plan.topics)?;
        let times = times(&kafka, request, &chosen).await?;
        for at in &chosen {
            let Some(row) = row_of(&rows, at) else {
                continue;
            };
            refuse_another_log(row, &plan.view)?;
            let standing = plan.standing(row)?;
            let offset = |places: &Option<LogPlaces>, times: &Times| {
                let place = places.as_ref().and_then(|places| places.of(at.partition));
                place.map(|place| resolve(place, standing, times.get(at).copied()))
            };
            let asked = Asked {
                from: offset(&request.from, &times.0),
                to: offset(&request.to, &times.1),
            };
            if let (Some(from), Some(to)) = (asked.from, asked.to)
                && from > to
            {
                return Err(VerifyError::Usage(format!(
                    "{at}: the range begins at {from}, behind its end {to}"
                )));
            }
            plan.ranges.push(Range::new(at, asked, standing));
        }
        plan.note_unknown_start(config, &rows);
        Ok(plan)
    }

    /// The bounds of a partition's log.
    pub(super) fn bounds(&self, topic: &str, partition: i32) -> Option<(i64, i64)> {
        self.view.bounds(topic, partition)
    }

    /// The id of a partition's topic, by which ids that are places are known.
    pub(super) fn topic_id(&self, at: &TopicPartition) -> Option<Uuid> {
        self.topic_ids.get(at).copied().flatten()
    }

    /// The same by name and number.
    pub(super) fn topic_id_of(&self, topic: &str, partition: i32) -> Option<Uuid> {
        self.topic_id(&TopicPartition::new(topic, partition))
    }

    fn standing(&self, row: &PositionReport) -> Result<Standing, Error> {
        let Some((low, high)) = self.bounds(&row.topic, row.partition) else {
            return Err(Error::transient(format!(
                "the bounds of {}/{} are not known: its leader did not answer",
                row.topic, row.partition
            )));
        };
        Ok(Standing {
            low,
            high,
            start: row.start_offset.unwrap_or(0),
            horizon: row.horizon,
            next_offset: row.next_offset,
        })
    }

    /// Positions that an older version stored do not say where they began.
    fn note_unknown_start(&mut self, config: &Config, rows: &[PositionReport]) {
        let is_unknown = |range: &Range| {
            let at = TopicPartition::new(range.topic.as_str(), range.partition);
            row_of(rows, &at).is_some_and(|row| row.start_offset.is_none())
        };
        let from_the_first = config.kafka.start == Start::Place(LogPlace::Earliest);
        if !from_the_first && self.ranges.iter().any(is_unknown) {
            self.notes.push(format!(
                "Where the pipeline began was not recorded by the version that claimed these \
                 partitions. With kafka.start = \"{}\" records before that place look missing: \
                 begin behind it with --from.",
                config.kafka.start
            ));
        }
    }
}

/// Offsets of the times asked for; `None` where all records are older.
type Times = HashMap<TopicPartition, Option<i64>>;

fn topic_id(row: &PositionReport) -> (TopicPartition, Option<Uuid>) {
    let at = TopicPartition::new(row.topic.clone(), row.partition);
    (at, row.topic_id)
}

/// Other keys than those in the ledger would find everything missing.
async fn refuse_other_identity(
    config: &Config,
    observer: &mut Observer,
) -> Result<(), VerifyError> {
    let recorded = observer.fingerprint().await?;
    let identity = config.identity();
    for (field, recorded, configured) in [
        (
            "identity.from",
            &recorded.identity,
            identity.from.to_string(),
        ),
        (
            "identity.scope",
            &recorded.scope,
            identity.scope.to_string(),
        ),
    ] {
        if *recorded != configured {
            return Err(VerifyError::Usage(format!(
                "the pipeline is recorded with {field} = {recorded:?}, the configuration has \
                 {configured:?}: by that no id would be found"
            )));
        }
    }
    Ok(())
}

fn topics(
    pipeline: &str,
    request: &Request,
    rows: &[PositionReport],
) -> Result<Vec<String>, Error> {
    let mut known: Vec<String> = rows.iter().map(|row| row.topic.to_string()).collect();
    known.dedup();
    if known.is_empty() {
        return Err(Error::fatal(format!(
            "pipeline {pipeline} has claimed no partition yet: there is nothing to compare"
        )));
    }
    match &request.topic {
        None => Ok(known),
        Some(topic) if known.contains(topic) => Ok(vec![topic.clone()]),
        Some(topic) => Err(Error::fatal(format!(
            "pipeline {pipeline} has no position in topic {topic:?}: it knows {}",
            known.join(", ")
        ))),
    }
}

/// Refuses what means something else in every topic.
fn refuse_ambiguous(
    config: &Config,
    request: &Request,
    rows: &[PositionReport],
    topics: &[String],
) -> Result<(), VerifyError> {
    if topics.len() < 2 {
        return Ok(());
    }
    let is_of_one = |places: &Option<LogPlaces>| {
        matches!(
            places,
            Some(LogPlaces::Each(_) | LogPlaces::All(LogPlace::Offset(_)))
        )
    };
    let reason = if !request.partitions.is_empty() {
        "--partitions are those of one topic"
    } else if is_of_one(&request.from) || is_of_one(&request.to) {
        "offsets are those of one topic"
    } else if request.effects.is_some() && config.identity().scope == Scope::Topic {
        "under identity.scope = \"topic\" an id with an effect may be one of any topic"
    } else {
        return Ok(());
    };
    let known = rows.first().map_or("T", |row| &row.topic);
    Err(VerifyError::Usage(format!(
        "{reason}, and the pipeline reads {}: name one, such as --topic {known}",
        topics.len()
    )))
}

/// The partitions to read, in order.
fn chosen(
    request: &Request,
    rows: &[PositionReport],
    topics: &[String],
) -> Result<Vec<TopicPartition>, Error> {
    let is_read = |row: &&PositionReport| topics.iter().any(|topic| **topic == *row.topic);
    let known = rows.iter().filter(is_read);
    let known = known.map(|row| TopicPartition::new(row.topic.clone(), row.partition));
    let mut known: Vec<TopicPartition> = known.collect();
    if request.partitions.is_empty() {
        return Ok(known);
    }
    for partition in &request.partitions {
        if !known.iter().any(|at| at.partition == *partition) {
            return Err(Error::fatal(format!(
                "the pipeline has no position for partition {partition} of {}: of this topic it \
                 knows {} partitions",
                topics.join(", "),
                known.len()
            )));
        }
    }
    known.retain(|at| request.partitions.contains(&at.partition));
    Ok(known)
}

/// Another topic of the same name, or another cluster: none of its records was read.
fn refuse_another_log(row: &PositionReport, view: &LogView) -> Result<(), Error> {
    let found = view.topics.get(&*row.topic).and_then(|log| log.topic_id);
    if let (Some(known), Some(found)) = (row.topic_id, found)
        && known != found
    {
        return Err(Error::fatal(format!(
            "topic {} was deleted and created again: the position belongs to topic id {known}, it \
             is now {found}: nothing of it can be compared",
            row.topic
        )));
    }
    if let (Some(known), Some(found)) = (&row.cluster_id, &view.cluster_id)
        && known != found
    {
        return Err(Error::fatal(format!(
            "the position of {}/{} belongs to Kafka cluster {known}, these brokers are cluster \
             {found}: nothing can be compared",
            row.topic, row.partition
        )));
    }
    Ok(())
}

/// The offsets of all times, for the beginnings and for the ends.
async fn times(
    kafka: &KafkaLog,
    request: &Request,
    chosen: &[TopicPartition],
) -> Result<(Times, Times), Error> {
    let now = Timestamp::now();
    let of = |places: &Option<LogPlaces>| -> Vec<(TopicPartition, i64)> {
        let time = |at: &TopicPartition| {
            let place = places.as_ref()?.of(at.partition)?;
            Some((at.clone(), place.time(now)?.as_millisecond()))
        };
        chosen.iter().filter_map(time).collect()
    };
    let from = kafka.offsets_at(of(&request.from)).await?;
    let to = kafka.offsets_at(of(&request.to)).await?;
    Ok((from, to))
}

fn resolve(place: LogPlace, standing: Standing, time: Option<Option<i64>>) -> i64 {
    match place {
        LogPlace::Earliest => standing.low,
        LogPlace::Latest => standing.high,
        LogPlace::Offset(offset) => offset,
        LogPlace::Time(_) | LogPlace::Ago(_) => time.flatten().unwrap_or(standing.high),
    }
}
