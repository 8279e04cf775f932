//! `onceonly bench` as people run it, with few events: what it says, and what it leaves behind.

#![cfg(feature = "cli")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;

use support::command::{finish, has_schema, onceonly, send_signal, text};
use support::{PATIENCE, client, service, unique};

/// The longest that a measurement may take here, in a debug build beside other tests.
const BENCH_TIMEOUT: Duration = Duration::from_secs(180);

const EVENTS: u64 = 5_000;

/// Measures one scenario in one round. Returns what `--json` printed, and what was said meanwhile.
fn measure(scenario: &str, more: &[&str]) -> (Value, String) {
    for variable in ["KAFKA_BROKERS", "REDIS_URL", "DATABASE_URL"] {
        service(variable);
    }
    let events = EVENTS.to_string();
    let mut arguments = vec!["bench", "--scenario", scenario, "--json"];
    for (option, value) in [("--events", events.as_str()), ("--rounds", "1")] {
        if !more.contains(&option) {
            arguments.extend([option, value]);
        }
    }
    arguments.extend(more);
    let bench = onceonly(&arguments).spawn();
    let output = finish(bench.expect("a measurement"), BENCH_TIMEOUT);
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}\n{out}");
    let json = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    (json, said)
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts what holds of one scenario's figures, compared with these in one round.
fn assert_figures(json: &Value, name: &str, baselines: &[&str], goal: f64) {
    let machine = &json["machine"];
    assert!(number(&machine["cores"]) >= 1.0);
    assert_eq!(machine["versions"]["onceonly"], env!("CARGO_PKG_VERSION"));
    let scenarios = json["scenarios"].as_array().expect("scenarios");
    assert_eq!(scenarios.len(), 1);
    let figures = &scenarios[0];
    assert_eq!(figures["name"], name);
    assert_eq!(figures["events"], EVENTS);
    let (rate, seconds) = (
        number(&figures["events_per_second"]),
        number(&figures["seconds"]),
    );
    assert!(
        (rate * seconds / EVENTS as f64 - 1.0).abs() < 0.02,
        "{figures:#}"
    );
    let found = figures["baselines"].as_object().expect("baselines");
    let mut names: Vec<_> = found.keys().map(String::as_str).collect();
    let mut expected = baselines.to_vec();
    names.sort_unstable();
    expected.sort_unstable();
    assert_eq!(names, expected);
    let ratio = number(&figures["ratio"]);
    let quotient = rate / number(&found[baselines[0]]);
    assert!((ratio / quotient - 1.0).abs() < 0.02, "{figures:#}");
    assert_eq!(figures["goal"], goal);
    assert!(figures["met"].is_boolean());
    for part in ["onceonly", "kafka", "redis", "postgres"] {
        let us = &figures["cpu_us_per_event"][part];
        assert!(us.is_null() || number(us) >= 0.0, "{figures:#}");
    }
    assert!(
        number(&figures["cpu_us_per_event"]["onceonly"]) > 0.0,
        "it ran: {figures:#}"
    );
    assert!(number(&figures["peak_rss_bytes"]) > 1e6);
}

/// The name that a measurement has given to all that it makes.
fn name(said: &str) -> String {
    let word = said
        .split_whitespace()
        .find_map(|word| word.strip_suffix("-events"));
    word.unwrap_or_else(|| panic!("no topic is named in {said}"))
        .to_owned()
}

/// Asserts that nothing is left that bears a measurement's name.
async fn assert_nothing_is_left(name: &str) {
    let schema = name.replace('-', "_");
    assert!(!has_schema(&schema).await, "{schema} is left");
    let folder = std::env::temp_dir().join(name);
    assert!(!folder.exists(), "{} is left", folder.display());
    let redis = redis::Client::open(service("REDIS_URL")).expect("an address");
    let mut redis = redis.get_connection().expect("a connection");
    let pattern = format!("*{name}*");
    let scan = redis::Cmd::new().arg("KEYS").arg(pattern).to_owned();
    let keys: Vec<String> = scan.query(&mut redis).expect("an answer");
    assert_eq!(keys, Vec::<String>::new());
    let consumer: BaseConsumer = client(&service("KAFKA_BROKERS"))
        .create()
        .expect("a client");
    support::command::wait_for("its topics to be gone", || {
        let metadata = consumer.fetch_metadata(None, PATIENCE).expect("metadata");
        let mut topics = metadata.topics().iter();
        topics.all(|topic| !topic.name().starts_with(name))
    });
}

#[tokio::test]
async fn events_without_duplicates_are_measured_against_a_bare_copy_and_nothing_is_left() {
    let file = std::env::temp_dir().join(unique("onceonly-figures"));
    let path = file.to_str().expect("a path");
    let (json, said) = measure("unique", &["--output", path]);
    assert_figures(&json, "unique", &["copy", "consume"], 0.85);
    let written = fs::read_to_string(&file).expect("the file");
    fs::remove_file(&file).expect("the file");
    let written: Value = serde_json::from_str(&written).expect("JSON");
    assert_eq!(written, json, "the file has what was printed");
    assert!(said.contains("unique 1/1: onceonly "), "{said}");
    assert_nothing_is_left(&name(&said)).await;
}

#[tokio::test]
async fn the_filter_is_measured_against_all_its_parts_and_leaves_no_key() {
    let (json, said) = measure("filtered", &[]);
    let baselines = ["copy", "naive", "consume", "marks"];
    assert_figures(&json, "filtered", &baselines, 0.65);
    assert_eq!(json["scenarios"][0]["ratios"]["naive"]["goal"], 25.0);
    assert_nothing_is_left(&name(&said)).await;
}

#[tokio::test]
async fn marks_in_buckets_are_measured_and_leave_no_key() {
    let (json, said) = measure("buckets", &[]);
    assert_figures(&json, "buckets", &["copy"], 0.8);
    assert_nothing_is_left(&name(&said)).await;
}

#[test]
fn a_users_statement_is_measured_against_itself_by_hand() {
    let (json, _) = measure("sql", &[]);
    assert_figures(&json, "sql", &["sql"], 0.8);
}

#[tokio::test]
async fn duplicates_are_measured_and_have_no_effect() {
    let (json, said) = measure("mixed", &[]);
    assert_figures(&json, "mixed", &["copy"], 1.1);
    assert_nothing_is_left(&name(&said)).await;
}

#[tokio::test]
async fn a_rewound_topic_is_measured_again_and_again_without_another_effect() {
    for (scenario, goal) in [("replay", 0.6), ("ledger", 0.4)] {
        let (json, said) = measure(scenario, &["--rounds", "2"]);
        assert_eq!(json["scenarios"][0]["goal"], goal);
        assert_eq!(json["scenarios"][0]["events"], EVENTS);
        assert!(
            said.contains(&format!("{scenario} 2/2: consume ")),
            "{said}"
        );
        assert_nothing_is_left(&name(&said)).await;
    }
}

#[test]
fn latency_is_that_of_the_99th_percentile_against_its_two_parts() {
    let (json, _) = measure("latency", &[]);
    let figures = &json["scenarios"][0];
    assert_eq!(number(&figures["goal"]), 2_f64);
    assert_eq!(figures["unit"], "milliseconds");
    let (value, parts) = (number(&figures["value"]), &figures["baselines"]);
    let sum = number(&parts["consume+commit"]);
    assert!((number(&parts["consume"]) + number(&parts["commit"]) - sum).abs() < 0.03);
    assert!(value > 0.0 && sum > 0.0, "{figures:#}");
    assert!(
        (number(&figures["ratio"]) / (value / sum) - 1.0).abs() < 0.02,
        "{figures:#}"
    );
    let rate = number(&figures["events_per_second"]);
    assert!(
        (500.0..=1_000.0).contains(&rate),
        "1,000 a second are offered: {figures:#}"
    );
}

#[tokio::test]
async fn memory_is_measured_over_a_stall_and_nothing_is_lost() {
    let more = ["--events", "60000", "--stall", "1"];
    let (json, said) = measure("memory", &more);
    let figures = &json["scenarios"][0];
    assert_eq!(number(&figures["goal"]), 1_f64);
    assert_eq!(figures["unit"], "bytes");
    assert_eq!(figures["events"], 60_000);
    let peak = number(&figures["peak_rss_bytes"]);
    assert_eq!(number(&figures["value"]), peak);
    assert!((number(&figures["ratio"]) - peak / 200e6).abs() < 0.001);
    assert!(number(&figures["seconds"]) > 1.0, "it waits: {figures:#}");
    assert_nothing_is_left(&name(&said)).await;
}

#[test]
fn efficiency_is_the_parts_processor_time_by_that_of_the_whole() {
    let (json, _) = measure("efficiency", &[]);
    let figures = &json["scenarios"][0];
    assert_eq!(number(&figures["goal"]), 0.9_f64);
    assert_eq!(figures["unit"], "microseconds");
    let us = |name: &str| number(&figures["baselines"][name]);
    let parts = us("consume") + us("copy") + us("marks");
    assert!((parts - us("parts")).abs() < 0.05, "{figures:#}");
    let ratio = us("parts") / number(&figures["value"]);
    assert!(
        (number(&figures["ratio"]) - ratio).abs() < 0.01,
        "{figures:#}"
    );
}

#[test]
fn without_json_people_get_tables_that_fit_their_terminal() {
    let arguments = [
        "bench",
        "--scenario",
        "unique",
        "--events",
        "1000",
        "--rounds",
        "1",
    ];
    let bench = onceonly(&arguments).env("COLUMNS", "80").spawn();
    let output = finish(bench.expect("a measurement"), BENCH_TIMEOUT);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in [
        " scenario ",
        " unique ",
        "≥ 0.85",
        "CPU µs per event",
        "fsync on",
        "cores,",
    ] {
        assert!(out.contains(part), "no {part:?} in {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[test]
fn an_unknown_scenario_is_refused_with_those_that_are_known() {
    let bench = onceonly(&["bench", "--scenario", "fast"]).output();
    let output = bench.expect("a refusal");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for known in ["'fast'", "unique", "filtered"] {
        assert!(said.contains(known), "no {known} in {said}");
    }
}

#[tokio::test]
async fn an_interrupted_measurement_takes_everything_away() {
    // Interrupted once with the product at work, once with a baseline.
    for (scenario, last) in [("filtered", "Sending"), ("filtered", "onceonly")] {
        let arguments = [
            "bench",
            "--scenario",
            scenario,
            "--events",
            "50000",
            "--rounds",
            "1",
        ];
        let mut bench = onceonly(&arguments).spawn().expect("a measurement");
        let said = BufReader::new(bench.stderr.take().expect("its progress"));
        let mut lines = said.lines().map_while(Result::ok);
        let first = lines.next().expect("its first line");
        if !first.contains(last) {
            assert!(lines.any(|line| line.contains(last)), "it measures");
        } else {
            let folder = std::env::temp_dir().join(name(&first));
            support::command::wait_for("the product", || has_log(&folder));
        }
        let rest = thread::spawn(move || lines.count());
        send_signal("INT", bench.id());
        bench.stderr = None;
        let output = bench.wait().expect("its end");
        rest.join().expect("its progress");
        assert_eq!(output.code(), Some(1));
        assert_nothing_is_left(&name(&first)).await;
    }
}

fn has_log(folder: &Path) -> bool {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name());
    names.any(|name| name.to_string_lossy().ends_with(".log"))
}
