//! The commands as people type them: the real program on real services.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;
use serde_json::{Value, json};
use support::database::Database;
use support::redis_server::RedisServer;
use tempfile::TempDir;

const PIPELINE: &str = "orders";

/// An address where nothing listens.
const NOBODY: &str = "127.0.0.1:1";

/// A pipeline with a database, a topic and a configuration of its own.
struct Case {
    database: Database,
    topic: String,
    folder: TempDir,
}

impl Case {
    async fn new(partitions: i32, more: &str) -> Self {
        let database = Database::migrated().await;
        let topic = support::topic("commands", partitions).await;
        let folder = tempfile::tempdir().expect("a folder");
        let case = Self {
            database,
            topic,
            folder,
        };
        let text = format!(
            "pipeline = \"{PIPELINE}\"\n[kafka]\nbrokers = \"{}\"\ntopics = [\"{}\"]\n\
             group = \"{}\"\nstart = \"earliest\"\n[postgres]\nurl = \"{}\"\n\
             [http]\nlisten = \"127.0.0.1:0\"\n{more}",
            support::brokers(),
            case.topic,
            case.topic,
            case.database.url(),
        );
        std::fs::write(case.config(), text).expect("a configuration file");
        case
    }

    /// One whose pipeline is registered, with a position for each partition, and not run.
    async fn standing(positions: &[i64]) -> Self {
        let case = Self::new(positions.len() as i32, "").await;
        case.database.register(PIPELINE).await;
        let group = format!(
            "update onceonly.pipeline set consumer_group = '{}'",
            case.topic
        );
        case.database.run(&group).await;
        for (partition, position) in positions.iter().enumerate() {
            let insert = format!(
                "insert into onceonly.position \
                 (pipeline_id, topic, partition, next_offset, high_water, horizon) \
                 select id, '{}', {partition}, {position}, {position}, 2 from onceonly.pipeline",
                case.topic
            );
            case.database.run(&insert).await;
        }
        case
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("onceonly.toml")
    }

    fn onceonly(&self, arguments: &[&str]) -> Told {
        let config = self.config();
        let config = ["--config", config.to_str().expect("a path in UTF-8")];
        onceonly(&[&config[..], arguments].concat())
    }

    /// What a command printed as JSON, whatever its exit code.
    fn json(&self, arguments: &[&str]) -> Value {
        self.onceonly(&[arguments, &["--json"]].concat()).json()
    }

    fn run(&self) -> Member {
        Member::run(&self.config())
    }

    /// Repeats a command until what it prints satisfies.
    fn until(&self, arguments: &[&str], satisfied: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let told = self.onceonly(&[arguments, &["--json"]].concat());
            if let Ok(value) = serde_json::from_str(&told.out)
                && satisfied(&value)
            {
                return value;
            }
            assert!(
                begun.elapsed() < support::PATIENCE,
                "{arguments:?}: {told:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    async fn positions(&self) -> Vec<i64> {
        let query = "select array_agg(next_offset order by partition) from onceonly.position";
        self.database.value(query).await
    }
}

/// What a command told.
#[derive(Debug)]
struct Told {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The sentence of a command that failed with this exit code.
    fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        let error = self.err.lines().last().unwrap_or_default();
        error.strip_prefix("error: ").unwrap_or(&self.err)
    }
}

impl From<Output> for Told {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

fn onceonly(arguments: &[&str]) -> Told {
    onceonly_as_wide_as(100, arguments)
}

fn onceonly_as_wide_as(columns: usize, arguments: &[&str]) -> Told {
    let output = Command::new(env!("CARGO_BIN_EXE_onceonly"))
        .args(arguments)
        .env("COLUMNS", columns.to_string())
        .stdin(Stdio::null())
        .output();
    Told::from(output.expect("a process"))
}

/// A running member that does not outlive the test.
struct Member(Child);

impl Member {
    fn run(config: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .arg("--config")
            .arg(config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }

    /// Leaves the group, so that the next member need not wait for it to be missed.
    fn leave(mut self) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(sent.expect("kill").success());
        assert!(self.0.wait().expect("an end").success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const CHECKED: &str = r#"
[handler]
statements = ["insert into effect (id, amount) select event_id, (payload->>'amount')::numeric from batch"]
[retry]
max_attempts = 1
"#;

/// A pipeline whose effects must have a positive amount, with one event that has none such.
async fn with_dead_letter() -> Case {
    let case = Case::new(1, CHECKED).await;
    case.database
        .run("create table effect (id text, amount numeric constraint positive check (amount > 0))")
        .await;
    let producer = support::producer(&support::brokers(), &[]);
    for (id, amount) in [("good-1", "1"), ("bad", "-1"), ("good-2", "2")] {
        let body = format!(r#"{{"amount": {amount}}}"#);
        let header = |key, value| Header { key, value };
        let headers = OwnedHeaders::new()
            .insert(header("event-id", Some(id.as_bytes())))
            .insert(header("trace", Some(b"\xff\x00".as_slice())))
            .insert(header("nothing", None::<&[u8]>));
        let record = BaseRecord::to(&case.topic)
            .partition(0)
            .key("customer-7")
            .payload(&body)
            .timestamp(1_700_000_000_123)
            .headers(headers);
        let sent = producer.0.send(record).map_err(|(error, _)| error);
        sent.expect("room in the producer's queue");
    }
    producer.flush();
    let _member = case.run();
    case.until(&["status"], |status| status["outcomes"]["consumed"] == 3);
    case
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_violates_a_check_is_listed_with_its_coordinates_and_error() {
    let case = with_dead_letter().await;
    let listed = case.json(&["dead-letters", "list"]);
    assert_eq!(listed["pipeline"], PIPELINE);
    assert_eq!(listed["more"], false);
    let letters = listed["dead_letters"].as_array().expect("an array");
    assert_eq!(letters.len(), 1, "{listed}");
    let letter = &letters[0];
    assert_eq!(letter["event_id"], "bad");
    assert_eq!(letter["state"], "dead");
    assert_eq!(letter["attempts"], 1);
    assert_eq!(letter["topic"], *case.topic);
    assert_eq!(
        (&letter["partition"], &letter["offset"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(letter["timestamp_ms"], 1_700_000_000_123_i64);
    assert_eq!(letter["payload_bytes"], 14);
    assert_eq!(letter["errors"][0]["attempt"], 1);
    assert_eq!(letter["errors"][0]["code"], "23514");
    let message = letter["errors"][0]["message"].as_str().expect("a sentence");
    assert!(message.contains("\"positive\""), "{message}");

    let count = |filter: &[&str]| {
        let listed = case.json(&[&["dead-letters", "list"], filter].concat());
        listed["dead_letters"].as_array().expect("an array").len()
    };
    for (filter, expected) in [
        (&["--id", "bad"][..], 1),
        (&["--id", "good-1"], 0),
        (&["--error", "23514"], 1),
        (&["--error", "CHECK constraint"], 1),
        (&["--error", "23505"], 0),
        (&["--since", "-1h"], 1),
        (&["--since", "2100-01-01T00:00:00Z"], 0),
        (&["--topic", &case.topic], 1),
        (&["--topic", "other"], 0),
        (&["--limit", "1"], 1),
    ] {
        assert_eq!(count(filter), expected, "{filter:?}");
    }
    let refused = case.onceonly(&["dead-letters", "list", "--since", "latest"]);
    assert!(
        refused.error(2).contains("--since latest is no time"),
        "{refused:?}"
    );
    let none = case.onceonly(&["dead-letters", "list", "--id", "good-1"]);
    assert_eq!(none.code, Some(0));
    assert_eq!(
        none.out,
        "pipeline orders has no dead letters that the filters let through\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_shown_as_it_came() {
    let case = with_dead_letter().await;
    let shown = case.json(&["dead-letters", "show", "bad"]);
    let letter = &shown["dead_letters"][0];
    assert_eq!(letter["event_id"], "bad");
    assert_eq!(letter["payload"], json!({"text": "{\"amount\": -1}"}));
    assert_eq!(letter["key"], json!({"text": "customer-7"}));
    assert_eq!(
        letter["headers"],
        json!([
            {"name": "event-id", "value": {"text": "bad"}},
            {"name": "trace", "value": {"hex": "ff00"}},
            {"name": "nothing", "value": null},
        ])
    );
    assert_eq!(letter["errors"][0]["code"], "23514");

    let told = case.onceonly(&["dead-letters", "show", "bad"]);
    assert_eq!(told.code, Some(0));
    for part in [
        &format!("topic {}, partition 0, offset 1", case.topic),
        "2023-11-14T22:13:20Z",
        "customer-7",
        "trace: 0xff00",
        "nothing: null",
        "23514",
        "payload, 14 bytes:\n{\"amount\": -1}\n",
    ] {
        assert!(told.out.contains(part), "{part}: {}", told.out);
    }

    let missing = case.onceonly(&["dead-letters", "show", "good-1"]);
    assert_eq!(
        missing.error(1),
        "pipeline orders has no dead letter with the id \"good-1\""
    );
    let elsewhere = ["dead-letters", "show", "bad", "--topic", "other", "--json"];
    let elsewhere = case.onceonly(&elsewhere);
    assert!(
        elsewhere.error(1).ends_with("of topic other"),
        "{elsewhere:?}"
    );
    assert_eq!(elsewhere.json()["dead_letters"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_dead_letters_than_the_limit_are_said_to_be_there() {
    let case = Case::standing(&[3]).await;
    case.database
        .run(
            "insert into onceonly.dead_letter (pipeline_id, event_key, attempts, event_id, \
             kafka_topic, kafka_partition, kafka_offset, headers, errors, dead_at) \
             select id, gen_random_uuid(), 1, E'e\\x1b-' || n, 't', 0, n, '{}', \
             '[{\"attempt\": 1, \"code\": \"22P02\", \"message\": \"no\\u001bnumber\", \
             \"at\": \"2026-01-01T00:00:00Z\"}]', '2026-01-01'::timestamptz + n * interval '1 s' \
             from onceonly.pipeline, generate_series(1, 3) n",
        )
        .await;
    let listed = case.json(&["dead-letters", "list", "--limit", "2"]);
    assert_eq!(listed["more"], true);
    let offsets = listed["dead_letters"].as_array().expect("an array").iter();
    let offsets: Vec<_> = offsets.map(|letter| letter["offset"].clone()).collect();
    assert_eq!(offsets, [3, 2], "the latest first");
    let told = case.onceonly(&["dead-letters", "list", "--limit", "2"]);
    assert!(
        told.out.contains("more than these 2: raise --limit"),
        "{told:?}"
    );
    assert!(
        !told.out.contains('\u{1b}'),
        "nothing steers the terminal: {told:?}"
    );
    assert!(told.out.contains("e\\u{1b}-3"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_owner_lag_outcomes_ledger_and_fingerprint() {
    let redis = format!("[redis]\nurl = \"{}\"\n", support::service("REDIS_URL"));
    let case = Case::new(2, &redis).await;
    let producer = support::producer(&support::brokers(), &[]);
    for number in 0..30 {
        producer.send_json(&case.topic, number % 2, &format!("id-{}", number % 20));
    }
    producer.flush();
    let member = case.run();
    let status = case.until(&["status"], |status| {
        status["outcomes"]["consumed"] == 30
            && status["partitions"][0]["lag"] == 0
            && status["partitions"][1]["lag"] == 0
    });
    assert_eq!(
        (&status["healthy"], &status["problems"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(status["postgres"], json!({"up": true, "problem": null}));
    assert_eq!(status["kafka"], json!({"up": true, "problem": null}));
    assert_eq!(status["redis"]["up"], true);
    assert!(
        status["redis"]["ping_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0),
        "{status}"
    );
    assert_eq!(
        status["fingerprint"],
        json!({
            "group": case.topic, "identity": "header:event-id", "scope": "pipeline",
            "retention": "7d", "handler": "sql", "differences": [],
        })
    );
    assert_eq!(status["outcomes"]["applied"], 20);
    assert_eq!(status["outcomes"]["duplicates"], 10);
    assert_eq!(status["outcomes"]["dead"], 0);
    assert_eq!(status["ledger"]["generations"], 1);
    assert_eq!(status["ledger"]["ages"][0]["generation"], 0);
    assert!(
        status["ledger"]["bytes"]
            .as_i64()
            .is_some_and(|bytes| bytes > 0),
        "{status}"
    );
    for key in ["waiting", "dead", "discarded", "conflicts"] {
        assert_eq!(status[key], 0, "{key}");
    }
    let partitions = status["partitions"].as_array().expect("an array");
    assert_eq!(partitions.len(), 2);
    let mut consumed = 0;
    for (number, partition) in partitions.iter().enumerate() {
        assert_eq!(partition["topic"], *case.topic);
        assert_eq!(partition["partition"], number);
        assert_eq!(partition["state"], "caught-up");
        assert_eq!(partition["owner_connected"], true);
        let owner = partition["owner"].as_str().expect("an owner");
        let process = format!("/{}/", member.0.id());
        assert!(owner.contains(&process), "{owner} is not {process}");
        assert_eq!(partition["epoch"], 1);
        assert_eq!(partition["position"], 15);
        assert_eq!(partition["high_water"], 15);
        assert_eq!(
            (&partition["log_start"], &partition["log_end"]),
            (&json!(0), &json!(15))
        );
        assert_eq!(
            (&partition["stopped"], &partition["command"]),
            (&Value::Null, &Value::Null)
        );
        assert!(
            partition["age_seconds"].as_u64().is_some_and(|s| s < 60),
            "{partition}"
        );
        consumed += partition["outcomes"]["consumed"].as_u64().expect("a count");
    }
    assert_eq!(consumed, 30);

    drop(member);
    producer.send_all(&case.topic, 0, ["x", "y"]);
    let status = case.until(&["status"], |status| {
        status["partitions"][0]["owner_connected"] == false
    });
    assert_eq!(status["partitions"][0]["state"], "owner-away");
    assert_eq!(status["partitions"][0]["lag"], 2);
    assert_eq!(status["partitions"][1]["lag"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_80_and_120_columns() {
    let case = Case::standing(&[1_234_567, 7]).await;
    case.database
        .run(
            "update onceonly.position set owner = gen_random_uuid(), \
             owner_name = 'orders-consumer-5d8f6c7b9-x2x4z/1/0a1b2c3d', event_time = now(), \
             applied = 100000, duplicate_ledger = 12345, duplicate_recent = 17, skipped = 3",
        )
        .await;
    let config = case.config();
    let config = config.to_str().expect("a path in UTF-8");
    for columns in [80, 120] {
        let arguments = ["--config", config, "status", "--verbose"];
        let told = onceonly_as_wide_as(columns, &arguments);
        assert_eq!(told.code, Some(0), "{told:?}");
        for line in told.out.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        for word in [
            "1234567",
            "100000",
            "duplicate_ledger",
            "owner away",
            "200000",
        ] {
            assert!(told.out.contains(word), "{columns}: {word}:\n{}", told.out);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_again_stops_and_the_command_shown_makes_the_running_member_go_on() {
    let case = Case::new(1, "").await;
    let producer = support::producer(&support::brokers(), &[]);
    producer.send_json(&case.topic, 0, "old-1");
    for _ in 0..3 {
        producer.send_json(&case.topic, 0, "old-2");
    }
    producer.flush();
    let member = case.run();
    case.until(&["status"], |status| status["outcomes"]["consumed"] == 4);
    member.leave();
    support::delete_topic(&case.topic).await;
    support::create_topic_when_free(&case.topic, 1).await;
    let producer = support::producer(&support::brokers(), &[]);
    producer.send_json(&case.topic, 0, "new-1");
    producer.send_json(&case.topic, 0, "old-2");
    producer.send_json(&case.topic, 0, "new-2");
    producer.flush();
    let _member = case.run();

    let status = case.until(&["status"], |status| {
        status["partitions"][0]["state"] == "stopped"
    });
    assert_eq!(status["healthy"], false);
    assert_eq!(status["problems"], json!(["1 partition is stopped"]));
    let reason = status["partitions"][0]["stopped"]
        .as_str()
        .expect("a reason");
    assert!(reason.contains("deleted and created again"), "{reason}");
    let command = status["partitions"][0]["command"]
        .as_str()
        .expect("a command");
    let told = case.onceonly(&["status"]);
    assert_eq!(told.error(1), "1 partition is stopped");
    assert!(
        told.out.contains(&format!("\n    {command}\n")),
        "{}",
        told.out
    );

    let words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words[0], "onceonly");
    let typed = onceonly(&words[1..]);
    assert_eq!(typed.code, Some(0), "{typed:?}");
    let status = case.until(&["status"], |status| status["outcomes"]["consumed"] == 7);
    assert_eq!(status["healthy"], true);
    assert_eq!(status["partitions"][0]["high_water"], 3, "of this log");
    assert_eq!(status["partitions"][0]["position"], 3);
    let effects = "select array_agg(event_id order by event_id) from onceonly.event";
    let effects: Vec<String> = case.database.value(effects).await;
    assert_eq!(effects, ["new-1", "new-2", "old-1", "old-2"]);
}

/// Fills partitions with so many records each.
fn fill(case: &Case, records: &[usize]) {
    let producer = support::producer(&support::brokers(), &[]);
    for (partition, records) in records.iter().enumerate() {
        for number in 0..*records {
            producer.send_json(
                &case.topic,
                partition as i32,
                &format!("{partition}-{number}"),
            );
        }
    }
    producer.flush();
}

fn set<'a>(case: &'a Case, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["position", "set", "--topic", &case.topic], arguments].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_is_set_forward_only_with_consent_and_is_recorded() {
    let case = Case::standing(&[3]).await;
    fill(&case, &[10]);
    let forward = set(&case, &["--partition", "0", "--to", "8"]);
    let refused = case.onceonly(&forward);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused
            .err
            .contains("3 -> 8: passes over 5 unread records."),
        "{refused:?}"
    );
    assert!(refused.err.contains("add --yes to go on"), "{refused:?}");
    assert_eq!(case.positions().await, [3], "nothing was changed");

    let told = case.onceonly(&[&forward[..], &["--yes", "--json"]].concat());
    assert_eq!(told.code, Some(0), "{told:?}");
    assert_eq!(
        told.json(),
        json!({
            "pipeline": PIPELINE,
            "positions": [{
                "topic": case.topic, "partition": 0, "before": 3, "after": 8,
                "stopped_before": null, "epoch": 1,
            }],
        })
    );
    assert_eq!(case.positions().await, [8]);
    let recorded = "select action || ' ' || (detail->>'before') || ' ' || (detail->>'after') \
                    from onceonly.audit";
    assert_eq!(
        case.database.value::<String>(recorded).await,
        "position set 3 8"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_write_a_place_is_resolved_in_the_log() {
    let case = Case::standing(&[3, 3, 3]).await;
    fill(&case, &[10, 10, 10]);
    support::delete_records(&case.topic, 0, 4).await;
    for (to, position) in [
        ("earliest", 4),
        ("latest", 10),
        ("7", 7),
        ("2000-01-01T00:00:00Z", 4),
        ("2100-01-01T00:00:00Z", 10),
        ("-1h", 4),
        ("10", 10),
    ] {
        let told = case.onceonly(&set(&case, &["--partition", "0", "--to", to, "--yes"]));
        assert_eq!(told.code, Some(0), "{to}: {told:?}");
        assert_eq!(case.positions().await, [position, 3, 3], "{to}");
    }
    let told = case.onceonly(&set(&case, &["--partitions", "1:2,2:latest", "--yes"]));
    assert_eq!(told.code, Some(0), "{told:?}");
    assert_eq!(case.positions().await, [10, 2, 10]);
    assert!(
        told.err.is_empty() || told.err.contains("again"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn going_back_needs_no_consent_and_behind_the_horizon_is_refused_unless_told() {
    let case = Case::standing(&[8]).await;
    fill(&case, &[10]);
    let back = case.onceonly(&set(&case, &["--partition", "0", "--to", "2"]));
    assert_eq!(back.code, Some(0), "{back:?}");
    assert!(
        back.err.contains("8 -> 2: reads again what lies between"),
        "{back:?}"
    );
    assert!(back.out.contains("was stopped"), "{back:?}");
    let behind = set(&case, &["--partition", "0", "--to", "1"]);
    let refused = case.onceonly(&behind);
    assert!(
        refused.error(1).contains("1 lies behind the horizon 2"),
        "{refused:?}"
    );
    assert_eq!(case.positions().await, [2]);
    let told = case.onceonly(&[&behind[..], &["--behind-horizon"]].concat());
    assert_eq!(told.code, Some(0), "{told:?}");
    assert_eq!(case.positions().await, [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_and_partitions_that_do_not_exist_are_refused_by_name() {
    let case = Case::standing(&[3, 3]).await;
    fill(&case, &[10, 10]);
    let told = |arguments: &[&str]| case.onceonly(&set(&case, arguments));
    let outside = told(&["--partitions", "0:5,1:11", "--yes"]);
    let expected = format!(
        "{}/1: 11 lies outside of the log, which holds 0 to 10: nothing was changed. Choose one \
         of these, earliest or latest",
        case.topic
    );
    assert_eq!(outside.error(1), expected);
    let partition = told(&["--partition", "2", "--to", "0"]);
    assert!(
        partition
            .error(1)
            .contains("of this topic it knows 2 partitions"),
        "{partition:?}"
    );
    let topic = [
        "position",
        "set",
        "--topic",
        "nosuch",
        "--partition",
        "0",
        "--to",
        "0",
    ];
    let topic = case.onceonly(&topic);
    let expected = format!("no position in topic \"nosuch\": it knows {}.", case.topic);
    assert!(topic.error(1).contains(&expected), "{topic:?}");
    for arguments in [
        &["--partition", "0"][..],
        &["--to", "0"],
        &["--partitions", "latest"],
        &["--partition", "0", "--to", "yesterday"],
        &["--partition", "-1", "--to", "0"],
        &["--partitions", "0:1", "--to", "1"],
    ] {
        assert_eq!(told(arguments).code, Some(2), "{arguments:?}");
    }
    let away = ["--set", "kafka.brokers=127.0.0.1:1"];
    let away =
        case.onceonly(&[&away[..], &set(&case, &["--partition", "0", "--to", "5"])].concat());
    assert!(
        away.error(1)
            .contains("no answer from Kafka at 127.0.0.1:1"),
        "{away:?}"
    );
    assert_eq!(case.positions().await, [3, 3], "nothing was changed");
    support::delete_topic(&case.topic).await;
    let gone = told(&["--partition", "0", "--to", "0"]);
    assert!(gone.error(1).starts_with("Kafka has no topic"), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_fingerprint_is_adopted_only_with_consent_and_is_recorded() {
    let case = Case::standing(&[0]).await;
    let same = case.onceonly(&["pipeline", "adopt"]);
    assert_eq!(same.code, Some(0), "{same:?}");
    assert!(same.out.contains("nothing to adopt"), "{same:?}");

    let changed = ["--set", "identity.from=key", "--set", "dedup.retention=2d"];
    let with = |arguments: &[&str]| case.onceonly(&[&changed[..], arguments].concat());
    let status = with(&["status", "--json"]);
    assert_eq!(status.code, Some(1), "{status:?}");
    let differences = status.json()["fingerprint"]["differences"].clone();
    let expected = json!([
        {"field": "identity.from", "recorded": "header:event-id", "configured": "key"},
        {"field": "dedup.retention", "recorded": "7days", "configured": "2days"},
    ]);
    assert_eq!(differences, expected);
    let run = with(&["run"]);
    assert!(run.error(1).contains("onceonly pipeline adopt"), "{run:?}");

    let refused = with(&["pipeline", "adopt"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused
            .err
            .contains("identity.from: header:event-id -> key"),
        "{refused:?}"
    );
    assert!(refused.err.contains("add --yes to go on"), "{refused:?}");
    let identity = "select identity from onceonly.pipeline";
    assert_eq!(
        case.database.value::<String>(identity).await,
        "header:event-id"
    );

    let adopted = with(&["pipeline", "adopt", "--yes", "--json"]);
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    assert_eq!(
        adopted.json(),
        json!({"pipeline": PIPELINE, "changed": expected})
    );
    assert_eq!(case.database.value::<String>(identity).await, "key");
    let recorded = "select action from onceonly.audit";
    assert_eq!(
        case.database.value::<String>(recorded).await,
        "pipeline adopt"
    );
    assert_eq!(with(&["status"]).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_kafka_status_says_that_lag_is_unknown() {
    let case = Case::standing(&[3]).await;
    let away = ["--set", "kafka.brokers=127.0.0.1:1", "status"];
    let told = case.onceonly(&[&away[..], &["--json"]].concat());
    assert_eq!(told.code, Some(0), "{told:?}");
    let status = told.json();
    assert_eq!(status["kafka"]["up"], false);
    let problem = status["kafka"]["problem"].as_str().expect("a sentence");
    assert!(
        problem.contains("no answer from Kafka at 127.0.0.1:1"),
        "{problem}"
    );
    assert!(problem.contains("Connection refused"), "{problem}");
    assert_eq!(status["partitions"][0]["lag"], Value::Null);
    assert_eq!(status["partitions"][0]["position"], 3);
    let told = case.onceonly(&away);
    assert!(told.out.contains("; lag is unknown"), "{}", told.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_status_tells_of_the_others_and_fails() {
    let case = Case::new(1, "").await;
    let away = ["--set", "postgres.url=postgres://me:secret@127.0.0.1:1/app"];
    let told = case.onceonly(&[&away[..], &["status", "--json"]].concat());
    let error = told.error(1);
    assert!(
        error.starts_with("connect to Postgres at 127.0.0.1:1, database \"app\""),
        "{error}"
    );
    assert!(
        !told.out.contains("secret") && !told.err.contains("secret"),
        "{told:?}"
    );
    let status = told.json();
    assert_eq!(
        (&status["healthy"], &status["postgres"]["up"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(status["kafka"]["up"], true);
    for key in [
        "partitions",
        "outcomes",
        "ledger",
        "dead",
        "fingerprint",
        "redis",
    ] {
        assert_eq!(status[key], Value::Null, "{key}");
    }
    for command in [
        &["dead-letters", "list"][..],
        &["dead-letters", "show", "x"],
        &["pipeline", "adopt"],
        &[
            "position",
            "set",
            "--topic",
            "t",
            "--partition",
            "0",
            "--to",
            "0",
        ],
    ] {
        let told = case.onceonly(&[&away[..], command].concat());
        assert!(
            told.error(1).starts_with("connect to Postgres"),
            "{command:?}: {told:?}"
        );
        assert_eq!(told.out, "", "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_was_never_run_is_said_to_be_that() {
    let case = Case::new(1, "").await;
    for command in [
        &["status"][..],
        &["dead-letters", "list"],
        &["dead-letters", "show", "x"],
        &["pipeline", "adopt"],
        &[
            "position",
            "set",
            "--topic",
            "t",
            "--partition",
            "0",
            "--to",
            "0",
        ],
    ] {
        let told = case.onceonly(command);
        let expected = "pipeline \"orders\" is not in the database: it was never run";
        assert!(told.error(1).starts_with(expected), "{command:?}: {told:?}");
    }
    let empty = Database::empty().await;
    let url = format!("postgres.url={}", empty.url());
    let told = case.onceonly(&["--set", &url, "status"]);
    assert!(
        told.error(1).ends_with("run `onceonly migrate`"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_or_is_away_is_a_warning_and_no_failure() {
    let case = Case::standing(&[0]).await;
    let server =
        RedisServer::start(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let url = format!("redis.url={}", server.url());
    let status = case.onceonly(&["--set", &url, "status", "--json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    let redis = status.json()["redis"].clone();
    assert_eq!(redis["up"], true);
    let warning = redis["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.contains("maxmemory-policy allkeys-lru"),
        "{warning}"
    );
    drop(server);
    let url = format!("redis.url=redis://{NOBODY}");
    let status = case.onceonly(&["--set", &url, "status", "--json"]);
    assert_eq!(status.code, Some(0), "{status:?}");
    let redis = status.json()["redis"].clone();
    assert_eq!(redis["up"], false);
    let problem = redis["problem"].as_str().expect("a sentence");
    assert!(problem.contains("refused"), "{problem}");
}
