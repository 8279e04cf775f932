//! What is shown of a pipeline, for people.

use std::time::Duration;

use bytesize::ByteSize;
use onceonly::outcome::{Outcome, Tally};

use super::partition::Partition;
use super::report::{Age, Redis, Report, Service};
use crate::cli::output;

pub(super) fn text(report: &Report, verbose: bool) -> String {
    let mut parts = vec![services(report)];
    if let Some(partitions) = &report.partitions {
        if partitions.is_empty() {
            parts.push("No partition was claimed yet.".to_owned());
        } else {
            parts.push(positions(partitions));
            parts.push(outcomes(report));
            if verbose {
                parts.push(details(partitions));
            }
        }
        if verbose && let Some(ledger) = &report.ledger {
            parts.push(generations(&ledger.ages));
        }
        parts.extend(partitions.iter().filter_map(stopped));
    }
    let mut text = parts.join("\n\n");
    text.push('\n');
    text
}

fn services(report: &Report) -> String {
    let mut table = output::table();
    table.add_row(["pipeline", &pipeline(report)]);
    table.add_row(["Postgres", &service(&report.postgres, "")]);
    let unknown = match report.postgres.up {
        true => "; lag is unknown",
        false => "",
    };
    table.add_row(["Kafka", &service(&report.kafka, unknown)]);
    table.add_row(["Redis", &redis(report.redis.as_ref())]);
    if let Some(ledger) = &report.ledger {
        let ids = match (ledger.rows, ledger.bytes_per_id) {
            (Some(rows), Some(each)) => format!("about {rows} ids of {each} bytes"),
            (Some(rows), None) => format!("about {rows} ids"),
            (None, _) => "ids not counted yet".to_owned(),
        };
        let bytes = ByteSize(ledger.bytes.unsigned_abs());
        let kept = report.fingerprint.as_ref().map_or("", |f| &f.retention);
        let generations = match ledger.generations {
            1 => "1 generation".to_owned(),
            many => format!("{many} generations"),
        };
        let row = format!("{ids}, {bytes}, kept for {kept} in {generations}");
        table.add_row(["ledger", &row]);
    }
    if let (Some(waiting), Some(dead), Some(discarded)) =
        (report.waiting, report.dead, report.discarded)
    {
        let due = match report.next_due {
            Some(due) => format!(" (next at {})", output::time(due)),
            None => String::new(),
        };
        let list = match dead {
            0 => "",
            _ => ": onceonly dead-letters list",
        };
        let row = format!("{waiting} waiting{due}, {discarded} discarded, {dead} dead{list}");
        table.add_row(["failed events", &row]);
    }
    table.trim_fmt()
}

fn pipeline(report: &Report) -> String {
    let Some(recorded) = &report.fingerprint else {
        return report.pipeline.clone();
    };
    let differs = match recorded.differences.is_empty() {
        true => "",
        false => "; the configuration differs",
    };
    format!(
        "{}: group {}, ids from {}, scope {}, handler {}{differs}",
        report.pipeline, recorded.group, recorded.identity, recorded.scope, recorded.handler
    )
}

fn service(service: &Service, without: &str) -> String {
    match &service.problem {
        None => "answers".to_owned(),
        Some(problem) => format!("{}{without}", output::shown(problem)),
    }
}

fn redis(redis: Option<&Redis>) -> String {
    let Some(redis) = redis else {
        return "not used: Postgres alone recognises duplicates".to_owned();
    };
    let mut text = match redis.ping_ms {
        Some(ping_ms) => format!("answers in {ping_ms:.1} ms"),
        None => service(
            &redis.service,
            "; Postgres alone recognises duplicates until it answers",
        ),
    };
    for warning in &redis.warnings {
        text.push_str(&format!("\nwarning: {warning}"));
    }
    text
}

fn positions(partitions: &[Partition]) -> String {
    let mut table = output::table();
    table.set_header([
        "partition",
        "state",
        "position",
        "lag",
        "moved",
        "epoch",
        "owner",
    ]);
    for partition in partitions {
        let lag = match partition.lag {
            Some(lag) => lag.to_string(),
            None => "unknown".to_owned(),
        };
        let age = Duration::from_secs(partition.age_seconds);
        table.add_row([
            name(partition),
            partition.state.label().to_owned(),
            partition.position.to_string(),
            lag,
            format!("{} ago", output::span(age)),
            partition.epoch.to_string(),
            partition.owner.clone().unwrap_or_else(|| "none".to_owned()),
        ]);
    }
    output::keep_first_column(&mut table);
    table.trim_fmt()
}

fn name(partition: &Partition) -> String {
    format!("{}/{}", partition.topic, partition.partition)
}

fn outcomes(report: &Report) -> String {
    let total = report.outcomes.unwrap_or_default().0;
    let mut table = output::table();
    table.set_header(["outcome", "records"]);
    for outcome in Outcome::ALL {
        table.add_row([outcome.name(), &total.get(outcome).to_string()]);
    }
    table.add_row(["consumed", &total.total().to_string()]);
    let conflicts = report.conflicts.unwrap_or_default();
    if conflicts > 0 {
        table.add_row([
            "conflicts",
            &format!("{conflicts} (known ids with another body)"),
        ]);
    }
    table.trim_fmt()
}

/// The ledger's generations.
fn generations(ages: &[Age]) -> String {
    let mut table = output::table();
    table.set_header(["generation", "complete since", "ids", "size"]);
    for age in ages {
        table.add_row([
            age.generation.to_string(),
            age.since.map_or("not noted yet".to_owned(), output::time),
            format!("about {}", age.ids),
            ByteSize(age.bytes).to_string(),
        ]);
    }
    table.trim_fmt()
}

/// What there is to know of each partition beside its standing.
fn details(partitions: &[Partition]) -> String {
    let mut table = output::table();
    table.set_header(["partition", "horizon", "log", "last record", "outcomes"]);
    for partition in partitions {
        let log = match (partition.log_start, partition.log_end) {
            (Some(start), Some(end)) => format!("{start} to {end}"),
            _ => "unknown".to_owned(),
        };
        table.add_row([
            name(partition),
            partition.horizon.to_string(),
            log,
            partition.event_time.map_or("none".to_owned(), output::time),
            counted(&partition.outcomes.0),
        ]);
    }
    output::keep_first_column(&mut table);
    table.trim_fmt()
}

fn counted(tally: &Tally) -> String {
    let counted = Outcome::ALL.into_iter().filter(|o| tally.get(*o) > 0);
    let each: Vec<String> = counted
        .map(|outcome| format!("{} {}", outcome.name(), tally.get(outcome)))
        .collect();
    match each.is_empty() {
        true => "none".to_owned(),
        false => each.join(", "),
    }
}

fn stopped(partition: &Partition) -> Option<String> {
    let (reason, command) = (partition.stopped.as_ref()?, partition.command.as_ref()?);
    // The reason's own command follows, with all that it needs.
    let told = reason.split(" To go on from another place: ").next();
    Some(format!(
        "{} is stopped: {}\n\n    {command}",
        name(partition),
        output::shown(told.unwrap_or(reason))
    ))
}
