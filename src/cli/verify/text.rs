//! What was compared, for people.

use onceonly::verify::{Finding, Range, Report};

use crate::cli::output;

pub(super) fn text(report: &Report) -> String {
    let mut parts = vec![counts(report), ranges(&report.partitions)];
    parts.extend(report.partitions.iter().filter_map(left_out));
    parts.extend(report.notes.iter().cloned());
    if report.is_clean() {
        parts.push("Nothing is missing, contradictory or extra.".to_owned());
    } else {
        parts.push(findings(&report.findings));
        let all = report.missing + report.contradictory + report.extra;
        let shown = report.findings.len() as u64;
        if shown < all {
            parts.push(format!(
                "There are {} more findings than these {shown}: raise --limit.",
                all - shown
            ));
        }
    }
    let mut text = parts.join("\n\n");
    text.push('\n');
    text
}

fn counts(report: &Report) -> String {
    let mut table = output::table();
    table.set_header(["what", "how many"]);
    let mut row = |what: &str, count: u64| {
        table.add_row([what.to_owned(), count.to_string()]);
    };
    row("records read", report.read);
    if let Some(distinct) = report.distinct {
        row("ids", distinct);
    }
    row("records whose id is applied", report.applied);
    row("waiting", report.waiting);
    row("dead", report.dead);
    row("passed over", report.skipped);
    if report.forgotten > 0 {
        row("forgotten ids", report.forgotten);
    }
    row("missing ids", report.missing);
    row("contradictory ids", report.contradictory);
    row("extra effects", report.extra);
    table.trim_fmt()
}

fn ranges(ranges: &[Range]) -> String {
    let mut table = output::table();
    table.set_header(["partition", "from", "to", "records"]);
    for range in ranges {
        table.add_row([
            name(range),
            range.from.to_string(),
            range.to.to_string(),
            range.read.to_string(),
        ]);
    }
    output::keep_first_column(&mut table);
    table.trim_fmt()
}

fn name(range: &Range) -> String {
    format!("{}/{}", range.topic, range.partition)
}

fn left_out(range: &Range) -> Option<String> {
    let reasons = [
        (range.before_log_start, "are no longer in the log"),
        (
            range.before_start,
            "lie before the place where the pipeline began",
        ),
        (
            range.before_horizon,
            "lie before the horizon: their ids may be forgotten",
        ),
        (range.not_consumed, "are not consumed yet"),
    ];
    let reasons = reasons.into_iter().filter(|(offsets, _)| *offsets > 0);
    let reasons: Vec<String> = reasons
        .map(|(offsets, reason)| format!("{offsets} {reason}"))
        .collect();
    match reasons.is_empty() {
        true => None,
        false => Some(format!(
            "Offsets of {} not compared: {}.",
            name(range),
            reasons.join("; ")
        )),
    }
}

fn findings(findings: &[Finding]) -> String {
    let mut table = output::table();
    table.set_header(["event", "where", "finding"]);
    for finding in findings {
        table.add_row([
            output::shown(&finding.event_id),
            place(finding),
            finding.detail.to_owned(),
        ]);
    }
    output::keep_first_column(&mut table);
    table.trim_fmt()
}

fn place(finding: &Finding) -> String {
    match (&finding.topic, finding.partition, finding.offset) {
        (Some(topic), Some(partition), Some(offset)) => format!("{topic}/{partition} @ {offset}"),
        _ => "no record".to_owned(),
    }
}
