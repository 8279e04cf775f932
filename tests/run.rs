//! `onceonly run` as operators meet it, on real services: its port, its log, its way out.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use support::PATIENCE;
use support::database::Database;
use support::proxy::{Fault, Proxy};

const EVENTS: i32 = 90;
const REPEATED: i32 = 10;

/// A running consumer that does not outlive the test.
struct Consumer {
    child: Child,
    /// `host:port` of the operator's port.
    address: String,
    log: Receiver<Value>,
}

impl Drop for Consumer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Consumer {
    /// Starts one, and waits until its port is open.
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .args(["--log-format", "json", "--config"])
            .arg(config)
            .arg("run")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let errors = BufReader::new(child.stderr.take().expect("its standard error"));
        let (send, log) = channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                // What is no JSON is the last word of a process that fails.
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                _ = send.send(line);
            }
        });
        let address = loop {
            let line = log.recv_timeout(PATIENCE).expect("a line with the address");
            if let Some(address) = line["address"].as_str() {
                break address.to_owned();
            }
        };
        Self {
            child,
            address,
            log,
        }
    }

    /// The status and body of an answer.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("the port is open");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).expect("a status");
        (status.parse().expect("a number"), body.to_owned())
    }

    /// Asks whether it is ready until it says so, or until it does not.
    async fn until_ready_is(&self, status: u16) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (found, body) = self.get("/ready");
            if found == status {
                return serde_json::from_str(&body).expect("JSON");
            }
            assert!(Instant::now() < deadline, "still {found}: {body}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks for the metrics until a series has a value.
    async fn until_metric_is(&self, series: &str, value: i32) {
        let deadline = Instant::now() + PATIENCE;
        let line = format!("{series} {value}");
        loop {
            let (_, text) = self.get("/metrics");
            if text.lines().any(|found| found == line) {
                return;
            }
            assert!(Instant::now() < deadline, "no `{line}` in\n{text}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends SIGTERM and waits for the end: the exit code.
    async fn terminate(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(sent.expect("kill runs").success());
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it goes on after SIGTERM");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn config(folder: &Path, postgres: &str, topic: &str) -> std::path::PathBuf {
    let path = folder.join("onceonly.toml");
    let text = format!(
        r#"
pipeline = "face"
[kafka]
brokers = "{brokers}"
topics = ["{topic}"]
group = "{topic}"
start = "earliest"
[postgres]
url = "{postgres}"
[identity]
from = "header:event-id"
[http]
listen = "127.0.0.1:0"
"#,
        brokers = support::brokers(),
    );
    std::fs::write(&path, text).expect("a configuration file");
    path
}

fn produce(topic: &str, ids: impl Iterator<Item = i32>) {
    let producer = support::producer(&support::brokers(), &[]);
    for id in ids {
        producer.send_json(topic, id % 2, &format!("id-{id}"));
    }
    producer.flush();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_tells_how_it_fares_through_outages_of_postgres_and_leaves_on_sigterm() {
    let database = Database::migrated().await;
    let proxy = Proxy::start(database.address()).await;
    proxy.set(Fault::Cut);
    let topic = support::topic("face", 2).await;
    produce(&topic, (0..EVENTS).chain(0..REPEATED));
    let folder = tempfile::tempdir().expect("a folder");
    let postgres = database.url_at(&proxy.address().to_string());
    let mut consumer = Consumer::start(&config(folder.path(), &postgres, &topic));

    let absent = consumer.until_ready_is(503).await;
    assert_eq!(absent["postgres"]["up"], false, "{absent}");
    assert!(
        absent["missing"]
            .to_string()
            .contains("Postgres is not answering"),
        "{absent}"
    );
    assert_eq!(consumer.get("/live").0, 200);

    proxy.set(Fault::None);
    let ready = consumer.until_ready_is(200).await;
    assert_eq!(ready["missing"], serde_json::json!([]), "{ready}");
    assert_eq!(ready["redis"]["configured"], false, "{ready}");
    let applied = "onceonly_events_total{outcome=\"applied\"}";
    consumer.until_metric_is(applied, EVENTS).await;
    consumer
        .until_metric_is("onceonly_partitions_owned", 2)
        .await;
    for partition in [0, 1] {
        let labels = format!("{{topic=\"{topic}\",partition=\"{partition}\"}}");
        consumer
            .until_metric_is(&format!("onceonly_lag_records{labels}"), 0)
            .await;
        let age = format!("onceonly_position_age_seconds{labels}");
        consumer.until_metric_is(&age, 0).await;
    }

    proxy.set(Fault::Cut);
    consumer.until_ready_is(503).await;
    assert_eq!(consumer.get("/live").0, 200);
    consumer.until_metric_is("onceonly_postgres_up", 0).await;
    produce(&topic, EVENTS..EVENTS + 10);
    proxy.set(Fault::None);
    consumer.until_ready_is(200).await;
    consumer.until_metric_is(applied, EVENTS + 10).await;

    assert_eq!(consumer.terminate().await, Some(0));
    let lines: Vec<Value> = consumer.log.iter().collect();
    assert!(lines.iter().all(Value::is_object), "JSON only: {lines:?}");
    let outages = lines
        .iter()
        .filter(|line| line.to_string().contains("not answering"));
    assert!(outages.count() <= 2, "once per outage: {lines:?}");
    let effects: i64 = database.value("select count(*) from onceonly.event").await;
    assert_eq!(effects, i64::from(EVENTS + 10));
    let places: BTreeSet<String> = lines
        .iter()
        .map(|line| line["target"].to_string())
        .collect();
    assert!(
        lines.len() < 60,
        "a log that does not grow with events: {places:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_bad_configuration() {
    let database = Database::migrated().await;
    let topic = support::topic("face", 1).await;
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("its address").to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_onceonly"))
        .arg("--config")
        .arg(config(folder.path(), &database.url(), &topic))
        .args(["--set", &format!("http.listen={taken}"), "run"])
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let sentence = format!("error: cannot listen on {taken} (http.listen): ");
    assert!(said.contains(&sentence), "{said}");
}
