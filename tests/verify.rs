//! `onceonly verify` as people type it, over real pipelines.

mod support;

use std::process::Command;

use onceonly::config::Config;
use onceonly::ledger::postgres::rotation::Rotator;
use onceonly::member::Member;
use serde_json::{Value, json};
use support::PATIENCE;
use support::line::{Line, Record, handler};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Effects must have a positive amount; one that has none waits for an hour.
const CHECKED: &str = r#"
[handler]
statements = ["insert into effect (id, amount) select event_id, (payload->>'amount')::numeric from batch"]
[retry]
base = "1h"
cap = "1h"
jitter = "none"
"#;

const CREATE: &str = "create table effect (id text, amount numeric check (amount > 0))";

const EFFECTS: &str = "select id from effect";

/// A pipeline that ran.
struct Case {
    line: Line,
    folder: TempDir,
    config: Config,
    more: String,
}

/// What the command said.
struct Told {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|_| panic!("no JSON: {}\n{}", self.out, self.err))
    }
}

impl Case {
    async fn new(topics: usize, partitions: i32, more: &str) -> Self {
        let line = Line::new(topics, partitions).await;
        line.database.run(CREATE).await;
        Self {
            config: line.config(false, more),
            more: more.to_owned(),
            folder: tempfile::tempdir().expect("a folder"),
            line,
        }
    }

    /// Good events in a partition, consumed.
    async fn with_events(ids: &[&str]) -> Self {
        let case = Self::new(1, 1, CHECKED).await;
        case.send(0, ids);
        case.line.consume(&case.config, ids.len() as i64).await;
        case
    }

    fn send(&self, partition: i32, ids: &[&str]) {
        let records: Vec<Record> = ids.iter().map(|id| Record::good(id)).collect();
        self.line.send(partition, &records);
    }

    fn topic(&self) -> &str {
        &self.line.topics[0]
    }

    fn verify(&self, arguments: &[&str]) -> Told {
        let path = self.folder.path().join("onceonly.toml");
        let text = self.line.config_text(false, &self.more);
        std::fs::write(&path, text).expect("a configuration file");
        let output = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .arg("--config")
            .arg(&path)
            .arg("verify")
            .args(arguments)
            .env("COLUMNS", "200")
            .output()
            .expect("a process");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Told {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// What is printed as JSON, with the exit code that belongs to it.
    fn found(&self, arguments: &[&str]) -> Value {
        let told = self.verify(&[arguments, &["--json"]].concat());
        let found = told.json();
        let wrong = ["missing", "contradictory", "extra"].map(|kind| found[kind].as_u64());
        let code = i32::from(wrong.iter().any(|count| *count != Some(0)));
        assert_eq!(told.code, Some(code), "{found}\n{}", told.err);
        found
    }

    async fn run(&self, statements: &str) {
        self.line.database.run(statements).await;
    }

    /// The key in the ledger of an id's only record.
    async fn forget(&self, offset: i64) {
        let table: String = self
            .line
            .database
            .value("select format('ledger_%s_%s', id, generation) from onceonly.pipeline")
            .await;
        let delete = format!("delete from onceonly.{table} where kafka_offset = {offset}");
        self.run(&delete).await;
    }
}

/// Kind, state, id and offset of each finding.
fn findings(found: &Value) -> Vec<String> {
    let all = found["findings"].as_array().expect("findings");
    let one = |finding: &Value| {
        let text = |key: &str| match &finding[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        ["kind", "state", "event_id", "offset"].map(text).join(" ")
    };
    all.iter().map(one).collect()
}

fn counts(found: &Value, keys: &[&str]) -> Vec<u64> {
    let count = |key: &&str| {
        found[*key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {found}"))
    };
    keys.iter().map(count).collect()
}

const KINDS: [&str; 3] = ["missing", "contradictory", "extra"];

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_every_outcome_is_clean() {
    let case = Case::new(1, 2, CHECKED).await;
    case.send(0, &["a", "b", "a", "c"]);
    case.send(1, &["a", "d", "d"]);
    let failing = Record::new("waiting", br#"{"amount": "-1"}"#);
    let no_json = Record::new("dead", b"no JSON");
    let no_id = Record::bare(br#"{"amount": "1"}"#);
    let tombstone = Record::good("gone").with_payload(None);
    case.line
        .send(0, &[failing, no_json.clone(), no_json, no_id, tombstone]);
    case.line.consume(&case.config, 12).await;
    assert_eq!(case.line.outcomes().await["retrying"], 1);

    let found = case.found(&["--effects", EFFECTS]);
    let keys = ["read", "applied", "waiting", "dead", "skipped", "distinct"];
    assert_eq!(counts(&found, &keys), [12, 7, 1, 3, 1, 7], "{found}");
    assert_eq!(counts(&found, &KINDS), [0, 0, 0]);
    assert_eq!(found["findings"], json!([]));
    let told = case.verify(&[]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(
        told.out
            .contains("Nothing is missing, contradictory or extra."),
        "{}",
        told.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_the_ledger_lost_is_missing_however_often_it_was_sent() {
    let case = Case::with_events(&["a", "b", "c", "b"]).await;
    case.forget(1).await;
    let found = case.found(&[]);
    assert_eq!(findings(&found), ["missing missing b 1"]);
    assert_eq!(counts(&found, &KINDS), [1, 0, 0]);
    let finding = &found["findings"][0];
    assert_eq!(finding["topic"], case.topic());
    assert_eq!(finding["partition"], 0);
    assert_eq!(
        finding["event_key"].as_str().map(str::len),
        Some(36),
        "{finding}"
    );

    let with_effects = case.found(&["--effects", EFFECTS]);
    assert_eq!(findings(&with_effects), ["missing unclaimed b 1"]);
    case.run("delete from effect where id = 'b'").await;
    let with_effects = case.found(&["--effects", EFFECTS]);
    assert_eq!(findings(&with_effects), ["missing missing b 1"]);

    let told = case.verify(&[]);
    let line = format!("b      {}/0 @ 1", case.topic());
    assert!(told.out.contains(&line), "{}", told.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_that_are_lost_repeated_or_strangers_are_found() {
    let case = Case::with_events(&["a", "b", "c", "d"]).await;
    case.run(
        "delete from effect where id = 'b'; \
         insert into effect select id, amount from effect where id = 'd'; \
         insert into effect values ('stranger', 1), ('stranger', 1), (null, 1)",
    )
    .await;
    assert_eq!(
        counts(&case.found(&[]), &KINDS),
        [0, 0, 0],
        "effects are not asked for"
    );
    let found = case.found(&["--effects", EFFECTS]);
    assert_eq!(
        findings(&found),
        [
            "contradictory applied-without-effect b 1",
            "extra repeated d 3",
            "extra stranger stranger null",
        ]
    );
    assert_eq!(counts(&found, &KINDS), [0, 1, 2]);
    // As people write queries, and of any type that is text to look at.
    let query = "select id::varchar(20) from effect -- all of them\n;";
    assert_eq!(
        case.found(&["--effects", query])["findings"],
        found["findings"]
    );
    let limited = case.found(&["--effects", EFFECTS, "--limit", "2"]);
    assert_eq!(findings(&limited), findings(&found)[..2]);
    assert_eq!(counts(&limited, &KINDS), [0, 1, 2], "all are counted");
    let told = case.verify(&["--effects", EFFECTS, "--limit", "2"]);
    assert!(
        told.out.contains("There are 1 more findings"),
        "{}",
        told.out
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_events_that_contradict_themselves_are_found() {
    let case = Case::new(1, 1, CHECKED).await;
    let failing = |id: &str| Record::new(id, br#"{"amount": "-1"}"#);
    let dead = |id: &str| Record::new(id, b"no JSON");
    let records = [
        failing("w0"),
        failing("w1"),
        failing("w2"),
        dead("d0"),
        dead("d1"),
        dead("d2"),
    ];
    case.line.send(0, &records);
    case.line.consume(&case.config, 6).await;
    assert_eq!(
        counts(&case.found(&["--effects", EFFECTS]), &KINDS),
        [0, 0, 0]
    );

    let both = "insert into onceonly.dead_letter (pipeline_id, event_key, attempts, event_id, \
                kafka_topic, kafka_partition, kafka_offset, headers) \
                select pipeline_id, event_key, attempts, event_id, kafka_topic, kafka_partition, \
                kafka_offset, headers from onceonly.waiting where event_id = 'w0'";
    case.run(both).await;
    case.forget(1).await;
    case.forget(4).await;
    case.run("insert into effect values ('w2', 1), ('d2', 1)")
        .await;
    let found = case.found(&["--effects", EFFECTS]);
    assert_eq!(
        findings(&found),
        [
            "contradictory waiting-and-dead w0 0",
            "contradictory waiting-unclaimed w1 1",
            "contradictory dead-unclaimed d1 4",
            "contradictory waiting-with-effect w2 2",
            "contradictory dead-with-effect d2 5",
        ]
    );
    assert_eq!(counts(&case.found(&[]), &KINDS), [0, 3, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_kept_to_and_what_lies_outside_is_told() {
    let case = Case::new(1, 2, CHECKED).await;
    case.send(0, &["a", "b", "c", "d", "e"]);
    case.send(1, &["f", "g", "h"]);
    case.line.consume(&case.config, 8).await;
    case.forget(2).await;
    let missing = |arguments: &[&str]| findings(&case.found(arguments));
    assert_eq!(missing(&["--limit", "1"]), ["missing missing c 2"]);
    assert_eq!(missing(&["--partitions", "1"]), ["missing missing h 2"]);
    assert_eq!(missing(&["--from", "3"]), [""; 0]);
    assert_eq!(
        missing(&["--from", "2", "--to", "3", "--partitions", "0"]),
        ["missing missing c 2"]
    );
    assert_eq!(missing(&["--to", "0:2,1:3"]), ["missing missing h 2"]);
    assert_eq!(missing(&["--to", "2000-01-01T00:00:00Z"]), [""; 0]);
    assert_eq!(missing(&["--from", "latest"]), [""; 0]);
    assert_eq!(missing(&["--from", "-1h", "--to", "latest"]).len(), 2);

    case.send(0, &["late"]);
    support::delete_records(case.topic(), 0, 1).await;
    let found = case.found(&["--from", "0:0,1:1", "--to", "latest", "--partitions", "0,1"]);
    let keys = ["read", "before_log_start", "before_horizon", "not_consumed"];
    assert_eq!(counts(&found, &keys), [6, 1, 0, 1], "{found}");
    assert_eq!(
        found["partitions"][0],
        json!({
            "topic": case.topic(), "partition": 0, "from": 1, "to": 5, "read": 4,
            "before_log_start": 1, "before_start": 0, "before_horizon": 0, "not_consumed": 1,
        })
    );
    let told = case.verify(&["--from", "0", "--to", "latest"]);
    let line = format!(
        "Offsets of {}/0 not compared: 1 are no longer in the log; 1 are not consumed yet.",
        case.topic()
    );
    assert!(told.out.contains(&line), "{}", told.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_forgotten_is_told_and_not_missing() {
    let case = Case::with_events(&["a", "b"]).await;
    let postgres = case.line.database.settings();
    let rotator = Rotator::open(&postgres, &case.config.pipeline, PATIENCE).await;
    let mut rotator = rotator.expect("a connection").expect("the lock");
    rotator.rotate().await.expect("a rotation");
    // A duplicate on the younger side of the horizon, of an event on the older side.
    case.send(0, &["b", "c"]);
    case.line.consume(&case.config, 4).await;
    assert!(rotator.forget_oldest().await.expect("a generation less"));

    let found = case.found(&["--from", "0"]);
    let keys = ["read", "applied", "before_horizon", "forgotten"];
    assert_eq!(counts(&found, &keys), [2, 1, 2, 1], "{found}");
    assert_eq!(case.found(&["--effects", EFFECTS])["forgotten"], 1);
    let told = case.verify(&[]);
    let line = format!(
        "Offsets of {}/0 not compared: 2 lie before the horizon: their ids may be forgotten.",
        case.topic()
    );
    assert!(told.out.contains(&line), "{}", told.out);

    case.run("insert into effect values ('stranger', 1)").await;
    let found = case.found(&["--effects", EFFECTS]);
    assert!(
        found["notes"]
            .to_string()
            .contains("2 ids with an effect are unknown"),
        "{found}"
    );
    case.forget(3).await;
    assert_eq!(findings(&case.found(&[])), ["missing missing c 3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_before_the_pipelines_start_are_not_missing() {
    let mut case = Case::new(1, 1, CHECKED).await;
    case.send(0, &["a", "b"]);
    case.config.kafka.start = "1".parse().expect("a place");
    case.line.consume(&case.config, 1).await;
    let found = case.found(&["--effects", EFFECTS]);
    assert_eq!(counts(&found, &["read", "before_start"]), [1, 1], "{found}");
    case.run("update onceonly.position set start_offset = null")
        .await;
    assert_eq!(findings(&case.found(&[])), ["missing missing a 0"]);
    let start = ["--set", "kafka.start=1"];
    let found = case.found(&start);
    assert!(
        found["notes"]
            .to_string()
            .contains("begin behind it with --from"),
        "{found}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_at_work_gives_no_false_finding() {
    let case = Case::new(1, 2, CHECKED).await;
    let member = Member::join(&case.config, handler(&case.config)).expect("a member");
    let end = CancellationToken::new();
    let running = tokio::spawn(member.run(end.clone()));
    let mut read = 0;
    for round in 0..12 {
        let ids: Vec<String> = (0..300).map(|id| format!("{round}-{}", id % 250)).collect();
        let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
        case.send(round % 2, &ids);
        if round > 0 {
            let found = case.found(&["--effects", EFFECTS]);
            read = found["read"].as_u64().unwrap();
        } else {
            let claimed = "select count(*) = 2 from onceonly.position where epoch > 0";
            case.line.until("claimed", claimed).await;
        }
    }
    assert!(read > 0);
    end.cancel();
    running.await.expect("no panic").expect("a clean end");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_topics_and_places_are_found_under_their_own_keys() {
    let by_topic = Case::new(2, 1, &format!("{CHECKED}[identity]\nscope = \"topic\"\n")).await;
    by_topic.send(0, &["a", "b"]);
    by_topic.line.send_to(1, 0, &[Record::good("a")]);
    by_topic.line.consume(&by_topic.config, 3).await;
    let found = by_topic.found(&[]);
    assert_eq!(counts(&found, &["read", "applied"]), [3, 3], "{found}");
    assert_eq!(found["topic"], Value::Null);
    let ambiguous = by_topic.verify(&["--effects", EFFECTS]);
    assert_eq!(ambiguous.code, Some(2), "{}", ambiguous.err);
    by_topic
        .run("delete from effect where ctid = (select min(ctid) from effect where id = 'a')")
        .await;
    let topic = ["--topic", by_topic.topic(), "--effects", EFFECTS];
    assert_eq!(counts(&by_topic.found(&topic), &KINDS), [0, 0, 0]);

    let by_place = Case::new(1, 1, &format!("{CHECKED}[identity]\nfrom = \"position\"\n")).await;
    by_place.send(0, &["a", "a", "b"]);
    by_place.line.consume(&by_place.config, 3).await;
    let found = by_place.found(&["--effects", EFFECTS, "--to", "2"]);
    assert_eq!(counts(&found, &["read", "applied"]), [2, 2], "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_writes_nothing_and_moves_no_offset() {
    let case = Case::with_events(&["a", "b", "c"]).await;
    case.forget(1).await;
    let state = "select string_agg(t, ' ') from ( \
                 select string_agg(xmin::text || ctid::text, ',') as t from onceonly.position \
                 union all select string_agg(xmin::text || ctid::text, ',') from onceonly.pipeline \
                 union all select string_agg(l::text, ',') from onceonly.ledger l \
                 union all select string_agg(xmin::text || ctid::text, ',') from effect \
                 union all select count(*)::text from pg_class where relpersistence <> 't' \
                     and relnamespace <> 'pg_toast'::regnamespace) x";
    let before: String = case.line.database.value(state).await;
    let committed = || {
        let consumer: rdkafka::consumer::BaseConsumer = support::client(&support::brokers())
            .set("group.id", &case.config.pipeline)
            .create()
            .expect("a client");
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_partition(case.topic(), 0);
        let committed = rdkafka::consumer::Consumer::committed_offsets(&consumer, list, PATIENCE);
        format!("{:?}", committed.expect("an answer").elements()[0].offset())
    };
    let offset = committed();
    assert_eq!(
        counts(&case.found(&["--effects", EFFECTS]), &KINDS),
        [1, 0, 0]
    );
    assert_eq!(case.line.database.value::<String>(state).await, before);
    assert_eq!(committed(), offset);

    let deleting = "with gone as (delete from effect returning id) select id from gone";
    let function = "create function steal() returns setof text language sql as \
                    'delete from effect returning id'";
    case.run(function).await;
    for query in [deleting, "select steal()"] {
        let told = case.verify(&["--effects", query]);
        assert_ne!(told.code, Some(0), "{query}");
    }
    assert_eq!(
        case.line
            .database
            .value::<i64>("select count(*) from effect")
            .await,
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_bad_usage() {
    let case = Case::with_events(&["a", "b", "c"]).await;
    for (arguments, sentence) in [
        (&["--from", "yesterday"][..], "no place in a log"),
        (
            &["--from", "2", "--to", "1"],
            "begins at 2, behind its end 1",
        ),
        (&["--limit", "0"], "0 is not in"),
        (&["--partitions=-1"], "-1 is not in"),
        (&["--partitions", "x"], "invalid value"),
        (
            &["--effects", "select id, amount from effect"],
            "returns 2 columns",
        ),
        (
            &["--effects", "select id from nowhere"],
            "relation \"nowhere\" does not exist",
        ),
        (&["--effects", "drop table effect"], "returns 0 columns"),
        (&["--effects", ""], "returns 0 columns"),
        (
            &["--set", "identity.from=key"],
            "identity.from = \"header:event-id\"",
        ),
        (&["--set", "kafka.nonsense=1"], "nonsense"),
        (&["--unknown"], "unexpected argument"),
    ] {
        let told = case.verify(arguments);
        assert_eq!(told.code, Some(2), "{arguments:?}: {}", told.err);
        assert!(told.err.contains(sentence), "{arguments:?}: {}", told.err);
        assert_eq!(told.out, "", "{arguments:?}");
    }
    for (arguments, sentence) in [
        (
            &["--topic", "nosuch"][..],
            "no position in topic \"nosuch\"",
        ),
        (&["--partitions", "7"], "no position for partition 7"),
        (
            &["--set", "kafka.brokers=127.0.0.1:1"],
            "no answer from Kafka",
        ),
    ] {
        let told = case.verify(arguments);
        assert_eq!(told.code, Some(1), "{arguments:?}: {}", told.err);
        assert!(told.err.contains(sentence), "{arguments:?}: {}", told.err);
    }
}
