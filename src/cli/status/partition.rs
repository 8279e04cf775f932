//! How a partition fares, and what makes a stopped one go on.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use onceonly::ledger::postgres::report::PositionReport;
use onceonly::source::kafka::LogView;
use serde::Serialize;

use super::report::Outcomes;

/// With records to read, a partition whose position did not move for so long stands still.
const STANDS_STILL: Duration = Duration::from_secs(60);

#[derive(Serialize)]
pub(super) struct Partition {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) state: State,
    pub(super) owner: Option<String>,
    /// Whether that process has a connection to this database.
    pub(super) owner_connected: bool,
    pub(super) epoch: i64,
    pub(super) position: i64,
    pub(super) log_start: Option<i64>,
    pub(super) log_end: Option<i64>,
    /// Null where Kafka did not tell.
    pub(super) lag: Option<i64>,
    pub(super) high_water: i64,
    /// Ids of records before this offset may be forgotten.
    pub(super) horizon: i64,
    /// The timestamp of the last record.
    pub(super) event_time: Option<Timestamp>,
    pub(super) updated_at: Timestamp,
    /// Since then, on the database's clock.
    pub(super) age_seconds: u64,
    pub(super) stopped: Option<String>,
    /// What to type to make a stopped partition go on.
    pub(super) command: Option<String>,
    pub(super) outcomes: Outcomes,
    pub(super) conflicts: u64,
}

/// How a partition fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    /// A person has to decide.
    Stopped,
    /// Nobody claimed it yet, or since its position was set.
    Unclaimed,
    /// Its owner is not connected to the database.
    OwnerAway,
    /// Read to its end.
    CaughtUp,
    /// Being read.
    Reading,
    /// There is something to read, and its position does not move.
    StandsStill,
    /// Owned; what there is to read is not known.
    Owned,
}

impl State {
    fn of(position: &PositionReport, lag: Option<i64>) -> Self {
        if position.stopped.is_some() {
            return Self::Stopped;
        }
        if position.owner.is_none() {
            return Self::Unclaimed;
        }
        if !position.owner_connected {
            return Self::OwnerAway;
        }
        match lag {
            Some(0) => Self::CaughtUp,
            Some(_) if position.age >= STANDS_STILL => Self::StandsStill,
            Some(_) => Self::Reading,
            None => Self::Owned,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Unclaimed => "unclaimed",
            Self::OwnerAway => "owner away",
            Self::CaughtUp => "caught up",
            Self::Reading => "reading",
            Self::StandsStill => "stands still",
            Self::Owned => "owned",
        }
    }
}

/// How each partition fares. `file` is the configuration's, as it was given.
pub(super) fn partitions(
    positions: &[PositionReport],
    log: Option<&LogView>,
    file: Option<&Path>,
) -> Vec<Partition> {
    let one = |position: &PositionReport| {
        let bounds = log.and_then(|log| log.bounds(&position.topic, position.partition));
        let lag = bounds.map(|(_, end)| (end - position.next_offset).max(0));
        let stopped = position.stopped.as_deref();
        Partition {
            topic: position.topic.to_string(),
            partition: position.partition,
            state: State::of(position, lag),
            owner: position.owner_name.clone(),
            owner_connected: position.owner_connected,
            epoch: position.epoch,
            position: position.next_offset,
            log_start: bounds.map(|(start, _)| start),
            log_end: bounds.map(|(_, end)| end),
            lag,
            high_water: position.high_water,
            horizon: position.horizon,
            event_time: position.event_time,
            updated_at: position.updated_at,
            age_seconds: position.age.as_secs(),
            stopped: position.stopped.clone(),
            command: stopped.map(|reason| command(reason, position, file)),
            outcomes: Outcomes(position.tally),
            conflicts: position.conflicts,
        }
    };
    positions.iter().map(one).collect()
}

/// The command that the reason names, or else the one to go on where the partition stands; with
/// the configuration's file, unless the environment names it.
fn command(reason: &str, position: &PositionReport, file: Option<&Path>) -> String {
    let arguments = match reason.split_once("onceonly position set ") {
        Some((_, arguments)) => arguments.trim().to_owned(),
        None => format!(
            "--topic {} --partition {} --to {}",
            position.topic, position.partition, position.next_offset
        ),
    };
    match file {
        Some(path) if std::env::var_os("ONCEONLY_CONFIG").is_none() => {
            let path = quoted(&path.display().to_string());
            format!("onceonly --config {path} position set {arguments}")
        }
        _ => format!("onceonly position set {arguments}"),
    }
}

/// As a shell reads it.
fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%=".contains(c);
    match path.chars().all(plain) {
        true => path.to_owned(),
        false => format!("'{}'", path.replace('\'', r"'\''")),
    }
}
