//! The findings as tables for people or as JSON.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::finding::{Comparison, Finding, Unit};
use super::machine::Machine;
use super::scenario::Goal;
use super::spread::Spread;
use super::usage::PARTS;
use crate::cli::output;

/// All that was found.
#[derive(Debug)]
pub(super) struct Report {
    /// Where.
    pub(super) machine: Machine,
    /// What.
    pub(super) findings: Vec<Finding>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    machine: &'a Machine,
    scenarios: Vec<Figures>,
}

#[derive(Serialize)]
struct Figures {
    name: &'static str,
    events: u64,
    seconds: f64,
    events_per_second: f64,
    baselines: BTreeMap<&'static str, f64>,
    ratio: Option<f64>,
    goal: Option<f64>,
    met: bool,
    cpu_us_per_event: BTreeMap<&'static str, Option<f64>>,
    peak_rss_bytes: Option<u64>,
    /// What the ratios compare: a rate, milliseconds, bytes or microseconds of a processor.
    value: f64,
    unit: Unit,
    /// Least and greatest of the rounds.
    events_per_second_range: [f64; 2],
    ratios: BTreeMap<&'static str, Ratio>,
}

#[derive(Serialize)]
struct Ratio {
    median: f64,
    range: [f64; 2],
    goal: Option<f64>,
}

impl Figures {
    fn of(finding: &Finding) -> Self {
        let first = finding.comparisons.first();
        let each = || finding.comparisons.iter();
        let ratio = |with: &Comparison| Ratio {
            median: rounded(with.ratio.median, 4),
            range: range(with.ratio, 4),
            goal: with.goal.map(Goal::bound),
        };
        Self {
            name: finding.name,
            events: finding.events,
            seconds: rounded(finding.seconds.median, 3),
            events_per_second: rounded(finding.rate.median, 1),
            baselines: each()
                .map(|with| (with.name, rounded(with.value.median, 2)))
                .collect(),
            ratio: first.map(|with| rounded(with.ratio.median, 4)),
            goal: first.and_then(|with| with.goal).map(Goal::bound),
            met: finding.is_met(),
            cpu_us_per_event: PARTS
                .into_iter()
                .zip(finding.cpu_us.map(|us| us.map(|us| rounded(us, 2))))
                .collect(),
            peak_rss_bytes: finding.peak_rss_bytes,
            value: rounded(finding.own.median, 2),
            unit: finding.unit,
            events_per_second_range: range(finding.rate, 1),
            ratios: each().map(|with| (with.name, ratio(with))).collect(),
        }
    }
}

fn range(spread: Spread, digits: i32) -> [f64; 2] {
    [spread.least, spread.greatest].map(|value| rounded(value, digits))
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

impl Report {
    /// The result as one object.
    pub(super) fn json(&self) -> impl Serialize {
        Summary {
            machine: &self.machine,
            scenarios: self.findings.iter().map(Figures::of).collect(),
        }
    }

    /// The result for people.
    pub(super) fn text(&self) -> String {
        format!(
            "{}\n\n{}\n\n{}",
            rates(&self.findings).trim_fmt(),
            costs(&self.findings).trim_fmt(),
            self.machine.text()
        )
    }
}

/// What each scenario came to, against what.
fn rates(findings: &[Finding]) -> Table {
    let mut table = output::table();
    table.set_header([
        "scenario", "measured", "[range]", "against", "its own", "ratio", "[range]", "goal", "met",
    ]);
    for finding in findings {
        let mut own = [
            finding.name.to_owned(),
            valued(finding.own.median, finding.unit),
            ranged(finding.own, finding.unit),
        ];
        for with in &finding.comparisons {
            let [name, rate, range] = std::mem::take(&mut own);
            table.add_row([
                name,
                rate,
                range,
                with.name.to_owned(),
                valued(with.value.median, finding.unit),
                figure(with.ratio.median),
                format!(
                    "{}–{}",
                    figure(with.ratio.least),
                    figure(with.ratio.greatest)
                ),
                with.goal.map_or_else(|| "-".to_owned(), goal),
                with.goal.map_or("-", |goal| verdict(goal, with)).to_owned(),
            ]);
        }
    }
    align_right(&mut table, &[1, 4, 5]);
    table
}

/// What each event cost, by process.
fn costs(findings: &[Finding]) -> Table {
    let mut table = output::table();
    let mut header = vec!["CPU µs per event"];
    header.extend(PARTS);
    header.extend(["all", "peak memory"]);
    table.set_header(header);
    for finding in findings {
        let peak = finding.peak_rss_bytes;
        let peak = peak.map_or_else(|| "-".to_owned(), |bytes| HumanBytes(bytes).to_string());
        table.add_row(cost(finding.name.to_owned(), finding.cpu_us, peak));
        for with in &finding.comparisons {
            if with.cpu_us.iter().all(Option::is_none) {
                continue;
            }
            let name = format!("  {}", with.name);
            table.add_row(cost(name, with.cpu_us, String::new()));
        }
    }
    align_right(&mut table, &[1, 2, 3, 4, 5, 6]);
    table
}

fn cost(name: String, cpu_us: [Option<f64>; PARTS.len()], peak: String) -> Vec<String> {
    let mut row = vec![name];
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
    row.extend(cpu_us.map(us));
    let known: Vec<f64> = cpu_us.into_iter().flatten().collect();
    row.push(us((!known.is_empty()).then(|| known.iter().sum())));
    row.push(peak);
    row
}

fn verdict(goal: Goal, with: &Comparison) -> &'static str {
    match goal.is_met(with.ratio.median) {
        true => "yes",
        false => "no",
    }
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::AtLeast(bound) => format!("≥ {bound}"),
        Goal::AtMost(bound) => format!("≤ {bound}"),
    }
}

/// A value with its unit.
fn valued(value: f64, unit: Unit) -> String {
    match unit {
        Unit::EventsPerSecond => format!("{}/s", HumanCount(value.round() as u64)),
        Unit::Milliseconds => format!("{value:.1} ms"),
        Unit::Bytes => format!("{:.0} MB", value / 1e6),
        Unit::Microseconds => format!("{value:.1} µs"),
    }
}

/// A range, in the same unit or thousands of it.
fn ranged(spread: Spread, unit: Unit) -> String {
    let range = |scale: f64| {
        let [least, greatest] = [spread.least, spread.greatest].map(|value| value / scale);
        format!("{least:.1}–{greatest:.1}")
    };
    match unit {
        Unit::EventsPerSecond => format!("{}k", range(1e3)),
        Unit::Bytes => range(1e6),
        Unit::Milliseconds | Unit::Microseconds => range(1.0),
    }
}

fn figure(value: f64) -> String {
    match value < 10.0 {
        true => format!("{value:.2}"),
        false => format!("{value:.0}"),
    }
}

fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
