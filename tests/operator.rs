//! The operator's port over a real socket: liveness, readiness, metrics.
#![cfg(feature = "http")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use onceonly::event::TopicPartition;
use onceonly::http::Server;
use onceonly::http::operator::Operator;
use onceonly::outcome::{Outcome, Tally};
use onceonly::telemetry::{
    Exporter, FilterState, Heartbeats, Kind, LedgerState, LineMetrics, METRICS, PartitionState,
    ProcessState, SourceState,
};

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process has one recorder.
fn exporter() -> Exporter {
    static EXPORTER: OnceLock<Exporter> = OnceLock::new();
    EXPORTER
        .get_or_init(|| Exporter::install().expect("the only recorder"))
        .clone()
}

/// A process that does its work.
fn well() -> ProcessState {
    ProcessState {
        postgres_up: true,
        source: SourceState {
            connected: true,
            rebalances: 3,
            ..SourceState::default()
        },
        filter: Some(FilterState::default()),
        partitions: vec![partition(0, None), partition(1, None)],
        ledger: Some(LedgerState {
            bytes: 4096,
            forgetting_held: true,
        }),
        leaving: false,
    }
}

fn partition(number: i32, stopped: Option<&str>) -> PartitionState {
    PartitionState {
        at: TopicPartition::new("orders", number),
        position: Some(100),
        lag: Some(7),
        stopped: stopped.map(str::to_owned),
    }
}

/// An operator's port of a process whose state the test decides.
struct Port {
    server: Server,
    state: Arc<Mutex<ProcessState>>,
    heartbeats: Heartbeats,
}

fn open(state: ProcessState) -> Port {
    let state = Arc::new(Mutex::new(state));
    let heartbeats = Heartbeats::default();
    let shown = Arc::clone(&state);
    let operator = Operator {
        state: Arc::new(move || shown.lock().unwrap().clone()),
        heartbeats: heartbeats.clone(),
        exporter: exporter(),
    };
    let server = operator.start(free()).expect("a free port");
    Port {
        server,
        state,
        heartbeats,
    }
}

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// What a server answered.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}

impl Port {
    fn get(&self, path: &str) -> Answer {
        get(self.server.address(), path)
    }
}

/// Asks as simply as a probe may.
fn get(address: SocketAddr, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Answer {
        status: status.expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// The value of a line of the metrics, named with its labels.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(series)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    line?.rsplit(' ').next()?.parse().ok()
}

/// Asks for the metrics until they satisfy.
fn metrics_with(port: &Port, satisfied: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = port.get("/metrics").body;
        if satisfied(&text) {
            return text;
        }
        assert!(
            Instant::now() < deadline,
            "not within {PATIENCE:?}:\n{text}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ready_is_200_while_everything_is_there() {
    let port = open(well());
    let answer = port.get("/ready");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(
        answer.head.contains("content-type: application/json"),
        "{answer:?}"
    );
    assert!(
        answer.head.contains("cache-control: no-store"),
        "{answer:?}"
    );
    assert_eq!(
        answer.json(),
        json!({
            "ready": true,
            "missing": [],
            "postgres": {"up": true},
            "kafka": {"up": true},
            "redis": {"configured": true, "degraded": null},
            "partitions": {"owned": 2, "stopped": []},
        })
    );
}

#[test]
fn ready_is_503_and_names_everything_that_is_missing() {
    let port = open(ProcessState {
        postgres_up: false,
        source: SourceState {
            connected: false,
            waiting: Some("orders: unknown topic: waiting for the topic".into()),
            last_error: Some("localhost:9092: connection refused".into()),
            ..SourceState::default()
        },
        filter: None,
        partitions: vec![
            partition(0, None),
            partition(1, Some("ahead of the position")),
        ],
        ledger: None,
        leaving: true,
    });
    let answer = port.get("/ready");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(
        answer.json(),
        json!({
            "ready": false,
            "missing": [
                "the process is leaving: it finishes what it has in hand",
                "Postgres is not answering: nothing is applied until it does",
                "no Kafka broker can be reached: localhost:9092: connection refused",
                "orders: unknown topic: waiting for the topic",
                "partition 1 of orders is stopped: ahead of the position",
            ],
            "postgres": {"up": false},
            "kafka": {"up": false},
            "redis": {"configured": false, "degraded": null},
            "partitions": {
                "owned": 2,
                "stopped": [
                    {"topic": "orders", "partition": 1, "reason": "ahead of the position"},
                ],
            },
        })
    );
}

#[test]
fn each_thing_missing_alone_makes_the_process_unready() {
    let port = open(well());
    let breaks: [fn(&mut ProcessState); 5] = [
        |state| state.postgres_up = false,
        |state| state.source.connected = false,
        |state| state.source.waiting = Some("waiting for the topic".into()),
        |state| state.partitions[1].stopped = Some("a reason".into()),
        |state| state.leaving = true,
    ];
    for (number, break_it) in breaks.into_iter().enumerate() {
        let mut state = well();
        break_it(&mut state);
        *port.state.lock().unwrap() = state;
        let answer = port.get("/ready");
        let missing = answer.json()["missing"].as_array().map(Vec::len);
        assert_eq!(
            (answer.status, missing),
            (503, Some(1)),
            "{number}: {answer:?}"
        );
        *port.state.lock().unwrap() = well();
        assert_eq!(port.get("/ready").status, 200, "{number}");
    }
}

#[test]
fn a_degraded_redis_is_told_and_leaves_the_process_ready() {
    let mut state = well();
    state.filter = Some(FilterState {
        trouble: Some("Redis does not answer".into()),
        answers_open: true,
        writes_open: false,
    });
    let answer = open(state).get("/ready");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        answer.json()["redis"],
        json!({"configured": true, "degraded": "Redis does not answer"})
    );
}

#[test]
fn live_fails_with_the_loop_that_stands_still_and_recovers_with_it() {
    let port = open(ProcessState::default());
    let worker = port
        .heartbeats
        .register("worker 0", Duration::from_millis(200));
    let _other = port.heartbeats.register("worker 1", PATIENCE * 100);
    let deadline = Instant::now() + PATIENCE;
    let answer = loop {
        let answer = port.get("/live");
        if answer.status != 200 {
            break answer;
        }
        assert!(Instant::now() < deadline, "never unhealthy");
    };
    assert_eq!(answer.status, 503, "{answer:?}");
    let body = answer.json();
    assert_eq!(body["live"], json!(false));
    assert_eq!(body["stalled"].as_array().map(Vec::len), Some(1), "{body}");
    assert_eq!(body["stalled"][0]["name"], json!("worker 0"));
    assert!(
        body["stalled"][0]["silent_seconds"].as_f64() > Some(0.2),
        "{body}"
    );
    drop(worker);
    let answer = port.get("/live");
    assert_eq!(
        (answer.status, answer.json()["live"].clone()),
        (200, json!(true))
    );
}

#[test]
fn live_does_not_depend_on_postgres_kafka_or_partitions() {
    let port = open(ProcessState {
        partitions: vec![partition(0, Some("a reason"))],
        ..ProcessState::default()
    });
    let _worker = port.heartbeats.register("worker 0", PATIENCE * 100);
    assert_eq!(port.get("/ready").status, 503);
    let answer = port.get("/live");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!({"live": true, "stalled": []}));
}

/// The only test that counts, so that the sums are its own.
#[test]
fn counters_and_histograms_show_what_the_line_recorded() {
    let exporter = exporter();
    let line = LineMetrics::default();
    let mut tally = Tally::default();
    (0..40).for_each(|_| tally.add(Outcome::Applied));
    (0..2).for_each(|_| tally.add(Outcome::Dead));
    line.committed(&tally, 5);
    line.took(Duration::from_millis(30), Duration::from_millis(2));
    line.retried(6, 1, 3);
    line.fenced();
    exporter.upkeep();
    let text = exporter.render();
    let counted = [
        ("onceonly_events_total{outcome=\"applied\"}", 40.0),
        ("onceonly_events_total{outcome=\"dead\"}", 2.0),
        ("onceonly_events_total{outcome=\"duplicate_redis\"}", 0.0),
        ("onceonly_conflicts_total", 5.0),
        ("onceonly_dead_letters_total", 5.0),
        ("onceonly_retries_total{result=\"applied\"}", 6.0),
        ("onceonly_retries_total{result=\"waiting\"}", 1.0),
        ("onceonly_retries_total{result=\"dead\"}", 3.0),
        ("onceonly_fenced_total", 1.0),
        ("onceonly_redis_errors_total{kind=\"timeout\"}", 0.0),
        ("onceonly_transaction_events_bucket{le=\"10\"}", 0.0),
        ("onceonly_transaction_events_bucket{le=\"50\"}", 1.0),
        ("onceonly_transaction_events_sum", 42.0),
        ("onceonly_transaction_seconds_bucket{le=\"0.025\"}", 0.0),
        ("onceonly_transaction_seconds_bucket{le=\"0.05\"}", 1.0),
        ("onceonly_transaction_seconds_count", 1.0),
        ("onceonly_commit_seconds_bucket{le=\"0.0025\"}", 1.0),
    ];
    for (series, expected) in counted {
        assert_eq!(value(&text, series), Some(expected), "{series} in\n{text}");
    }
}

/// Other ports of this process write the same gauges while their tests last; in the end only this
/// one does.
#[test]
fn gauges_show_the_state_and_every_metric_its_meaning() {
    let mut state = well();
    state.postgres_up = false;
    state.source.rebalances = 12;
    state.source.failed_commits = 4;
    state.filter = Some(FilterState {
        trouble: Some("full".into()),
        answers_open: false,
        writes_open: true,
    });
    let stopped = |number| partition(number, Some("a reason"));
    state.partitions = vec![partition(0, None), stopped(1), stopped(2)];
    for partition in &mut state.partitions {
        partition.at.topic = "gauges".into();
    }
    state.partitions[0].lag = None;
    let port = open(state);
    LineMetrics::default().took(Duration::ZERO, Duration::ZERO);
    let of_1 = "{topic=\"gauges\",partition=\"1\"}";
    let expected = [
        ("onceonly_ready".to_owned(), 0.0),
        ("onceonly_postgres_up".to_owned(), 0.0),
        ("onceonly_kafka_up".to_owned(), 1.0),
        ("onceonly_kafka_rebalances_total".to_owned(), 12.0),
        ("onceonly_kafka_failed_commits_total".to_owned(), 4.0),
        ("onceonly_partitions_owned".to_owned(), 3.0),
        ("onceonly_partitions_stopped".to_owned(), 2.0),
        (
            "onceonly_redis_breaker_open{breaker=\"answers\"}".to_owned(),
            0.0,
        ),
        (
            "onceonly_redis_breaker_open{breaker=\"writes\"}".to_owned(),
            1.0,
        ),
        (format!("onceonly_lag_records{of_1}"), 7.0),
        ("onceonly_ledger_bytes".to_owned(), 4096.0),
        ("onceonly_forgetting_held".to_owned(), 1.0),
    ];
    let text = metrics_with(&port, |text| {
        let shown = |(series, expected): &(String, f64)| value(text, series) == Some(*expected);
        expected.iter().all(shown)
    });
    let age = format!("onceonly_position_age_seconds{of_1}");
    metrics_with(&port, |text| value(text, &age) > Some(1.0));
    let unknown = "onceonly_lag_records{topic=\"gauges\",partition=\"0\"}";
    assert_eq!(value(&text, unknown), None, "an unknown lag is not 0");
    for metric in METRICS {
        let help = format!("# HELP {} {}\n", metric.name, metric.meaning);
        let kind = format!("# TYPE {} {}\n", metric.name, metric.kind.name());
        assert!(text.contains(&help), "{help} in\n{text}");
        assert!(text.contains(&kind), "{kind} in\n{text}");
    }
    assert_eq!(
        METRICS
            .iter()
            .filter(|m| matches!(m.kind, Kind::Histogram(_)))
            .count(),
        3
    );
}

#[test]
fn metrics_come_in_the_text_format() {
    let answer = open(well()).get("/metrics");
    assert_eq!(answer.status, 200);
    assert!(
        answer
            .head
            .contains("content-type: text/plain; version=0.0.4"),
        "{answer:?}"
    );
}

#[test]
fn the_root_names_the_routes_and_another_path_is_404() {
    let port = open(well());
    let index = port.get("/");
    assert_eq!(index.status, 200);
    for route in ["/live", "/ready", "/metrics"] {
        assert!(index.body.contains(route), "{index:?}");
        assert_eq!(port.get(route).status, 200, "{route}");
    }
    assert_eq!(port.get("/nothing").status, 404);
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_the_key_and_the_address() {
    let holder = TcpListener::bind(free()).unwrap();
    let taken = holder.local_addr().unwrap();
    let operator = Operator {
        state: Arc::new(well),
        heartbeats: Heartbeats::default(),
        exporter: exporter(),
    };
    let error = operator.start(taken).expect_err("the port is taken");
    let sentence = error.to_string();
    let begin = format!("cannot listen on {taken} (http.listen): ");
    assert!(sentence.starts_with(&begin), "{sentence}");
    assert!(
        sentence.contains("another process has this port"),
        "{sentence}"
    );
}

#[test]
fn a_closed_server_has_left_its_port_even_beside_a_client_that_never_ends_its_request() {
    let port = open(well());
    let address = port.server.address();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET /live HTTP/1.1\r\nHost: ").unwrap();
    assert_eq!(port.get("/live").status, 200);
    let (done, closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        port.server.close();
        done.send(())
    });
    assert_eq!(closed.recv_timeout(PATIENCE), Ok(()), "it never ends");
    assert!(
        TcpStream::connect(address).is_err(),
        "nobody listens any more"
    );
    drop(slow);
}

#[test]
fn a_busy_runtime_does_not_delay_the_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let port = runtime.block_on(async { open(well()) });
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let busy = std::thread::spawn(move || {
        runtime.block_on(async { end.recv().expect_err("the test lets go") });
    });
    assert_eq!(port.get("/ready").status, 200);
    drop(ended);
    busy.join().unwrap();
}
