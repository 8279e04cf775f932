//! `onceonly demo` as people run it.

#![cfg(feature = "cli")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use support::command::{finish, has_schema, onceonly, postgres, send_signal, text, wait_for};
use support::{PATIENCE, client, service};

/// The longest that a demo may take here, in a debug build beside other tests.
const DEMO_TIMEOUT: Duration = Duration::from_secs(180);

/// Enough to be killed in the middle of.
const EVENTS: &str = "30000";

/// Runs a demo to its end.
fn demo(arguments: &[&str]) -> Output {
    service("REDIS_URL");
    service("DATABASE_URL");
    let demo = onceonly(&[&["demo", "--events", EVENTS], arguments].concat()).spawn();
    finish(demo.expect("a demo"), DEMO_TIMEOUT)
}

/// Whether a process is there and not only waiting to be reaped.
fn is_alive(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

/// The processes that a process has started.
fn children(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let lists = tasks
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")));
    lists
        .flatten()
        .flat_map(|list| list.split_whitespace().map(parse).collect::<Vec<_>>())
        .collect()
}

fn parse(number: &str) -> u32 {
    number.parse().expect("a number")
}

/// A variable in the environment of a process.
fn variable(process: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let text = text(&environment);
    text.split('\0')
        .find_map(|pair| pair.strip_prefix(&format!("{name}=")))
        .map(str::to_owned)
}

/// A demo that is in the middle of it, with what it started and made.
struct Running {
    demo: Child,
    processes: Vec<u32>,
    schema: String,
    folder: PathBuf,
    /// What it says from now on.
    said: JoinHandle<String>,
}

/// Starts a demo and waits until it produces: workers and Kafka are there.
fn start_demo() -> Running {
    service("REDIS_URL");
    let mut demo = onceonly(&["demo", "--events", "200000"])
        .spawn()
        .expect("a demo");
    let said = BufReader::new(demo.stderr.take().expect("its progress"));
    let mut lines = said.lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.starts_with("Producing")),
        "it produces"
    );
    let said = thread::spawn(move || lines.map(|line| line + "\n").collect());
    let processes = children(demo.id());
    assert_eq!(processes.len(), 3, "a Kafka and two workers");
    let find = |name| {
        processes
            .iter()
            .find_map(|process| variable(*process, name))
            .expect(name)
    };
    let schema = find("ONCEONLY_POSTGRES__SCHEMA");
    let folder = PathBuf::from(find("ONCEONLY_CONFIG"))
        .parent()
        .expect("a folder")
        .to_owned();
    Running {
        demo,
        processes,
        schema,
        folder,
        said,
    }
}

#[test]
fn the_embedded_kafka_has_its_topic_and_ends_with_its_standard_input() {
    let mut broker = onceonly(&["mock-broker", "--topic", "orders", "--partitions", "5"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a broker");
    let mut address = String::new();
    let out = broker.stdout.as_mut().expect("its output");
    BufReader::new(out)
        .read_line(&mut address)
        .expect("its address");
    let consumer: BaseConsumer = client(address.trim()).create().expect("a client");
    let metadata = consumer
        .fetch_metadata(Some("orders"), PATIENCE)
        .expect("metadata");
    assert_eq!(metadata.topics()[0].partitions().len(), 5);

    assert!(
        broker.try_wait().expect("its status").is_none(),
        "it waits for its input to end"
    );
    drop(broker.stdin.take());
    assert!(finish_plainly(&mut broker), "it ends by itself, with 0");
}

fn finish_plainly(child: &mut Child) -> bool {
    let mut ended = None;
    wait_for("its end", || {
        ended = child.try_wait().expect("its status");
        ended.is_some()
    });
    ended.is_some_and(|status| status.success())
}

#[test]
fn a_service_that_is_missing_is_named_with_the_command_that_starts_it() {
    let cases = [
        (
            "REDIS_URL",
            "redis://127.0.0.1:1",
            "error: there is no Redis: run `make stack-up`",
        ),
        (
            "DATABASE_URL",
            "postgres://me:secret@127.0.0.1:1/app",
            "error: there is no Postgres at 127.0.0.1:1/app: run `make stack-up`",
        ),
    ];
    for (variable, address, sentence) in cases {
        let demo = onceonly(&["demo"]).env(variable, address).spawn();
        let output = finish(demo.expect("a demo"), DEMO_TIMEOUT);
        let said = text(&output.stderr);
        assert!(said.contains(sentence), "{said}");
        assert!(!said.contains("secret"), "{said}");
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(1), String::new())
        );
    }
}

/// What `--json` printed, and nothing else.
fn summary(output: &Output) -> Value {
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{:?}\n{said}\n{out}",
        output.status
    );
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"))
}

/// Asserts what holds of every demo of [`EVENTS`] records.
fn assert_exactly_once(summary: &Value) {
    let expected = [
        ("produced", 30_000),
        ("distinct", 21_000),
        ("consumed", 30_000),
        ("effects", 21_000),
        ("applied", 21_000),
        ("retrying", 0),
        ("dead", 0),
        ("skipped", 0),
        ("restarts", 1),
    ];
    for (key, count) in expected {
        assert_eq!(summary[key], count, "{key} in {summary:#}");
    }
    assert_eq!(summary["exactly_once"], true);
    assert!(
        summary["seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0)
    );
    let layers = summary["duplicates"]
        .as_object()
        .expect("duplicates by layer");
    let names = [
        "batch", "dead", "ledger", "position", "recent", "redis", "waiting",
    ];
    let mut keys: Vec<_> = layers.keys().collect();
    keys.sort();
    assert_eq!(keys, names);
    assert_eq!(layers.values().map(number).sum::<u64>(), 9_000);
    assert!(
        number(&layers["batch"]) > 2_000,
        "adjacent ones meet in a batch: {summary:#}"
    );
    assert!(
        number(&layers["redis"]) > 0,
        "Redis is not asked: {summary:#}"
    );
}

#[test]
fn a_worker_killed_in_the_middle_costs_no_effect_and_doubles_none() {
    let output = demo(&["--json"]);
    assert_exactly_once(&summary(&output));
    let said = text(&output.stderr);
    assert!(said.contains("Killed worker 1 (SIGKILL)"), "{said}");
}

#[test]
fn a_real_cluster_and_claims_before_the_work_do_as_well_and_the_topic_is_gone_afterwards() {
    let brokers = service("KAFKA_BROKERS");
    let output = demo(&["--json", "--mark", "before", "--brokers", &brokers]);
    assert_exactly_once(&summary(&output));
    let said = text(&output.stderr);
    let topic = said
        .split_whitespace()
        .find(|word| word.starts_with("onceonly-demo-"));
    let topic = topic.unwrap_or_else(|| panic!("no topic is named in {said}"));
    let consumer: BaseConsumer = client(&brokers).create().expect("a client");
    wait_for("the topic to be gone", || {
        let metadata = consumer.fetch_metadata(None, PATIENCE).expect("metadata");
        metadata.topics().iter().all(|known| known.name() != topic)
    });
}

#[test]
fn without_json_people_get_the_table_and_the_verdict() {
    let output = demo(&["--seed", "2"]);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}\n{}", text(&output.stderr));
    for row in [
        "│ applied                21,000",
        "│ duplicate: ledger",
        "│ consumed               30,000",
    ] {
        assert!(out.contains(row), "no {row:?} in {out}");
    }
    assert!(out.ends_with("exactly once: yes\n"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
}

#[tokio::test]
async fn an_interrupted_demo_takes_everything_away() {
    let mut running = start_demo();
    assert!(has_schema(&running.schema).await);
    send_signal("INT", running.demo.id());
    let mut ended = None;
    wait_for("its end", || {
        ended = running.demo.try_wait().expect("its status");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
    assert!(
        !has_schema(&running.schema).await,
        "{} is left",
        running.schema
    );
    assert!(
        !running.folder.exists(),
        "{} is left",
        running.folder.display()
    );
    assert!(running.processes.iter().all(|process| !is_alive(*process)));
}

#[tokio::test]
async fn a_worker_that_ends_unasked_ends_the_demo_with_the_end_of_its_log() {
    let mut running = start_demo();
    let worker = running.processes.iter().find(|process| {
        fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|line| line.contains("demo-worker"))
    });
    send_signal("KILL", *worker.expect("a worker"));
    wait_for("its end", || {
        running.demo.try_wait().expect("its status").is_some()
    });
    let status = running.demo.wait().expect("its status");
    let said = running.said.join().expect("what it said");
    assert_eq!(status.code(), Some(1), "{said}");
    let sentence = "ended too early (signal: 9 (SIGKILL))";
    for part in [sentence, "the end of its log:", "partitions assigned"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(
        !has_schema(&running.schema).await,
        "{} is left",
        running.schema
    );
}

#[tokio::test]
async fn no_process_outlives_a_demo_that_was_killed() {
    let mut running = start_demo();
    running.demo.kill().expect("it was alive");
    running.demo.wait().expect("its status");
    wait_for("its processes to end", || {
        running.processes.iter().all(|process| !is_alive(*process))
    });

    // Nobody was there to do it.
    let drop = format!("drop schema {} cascade", running.schema);
    sqlx::raw_sql(AssertSqlSafe(drop))
        .execute(&mut postgres().await)
        .await
        .expect("it was there");
    fs::remove_dir_all(&running.folder).expect("it was there");
}
