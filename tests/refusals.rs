//! What `onceonly run` refuses: with a sentence that says why, and nothing moved.

#![cfg(feature = "cli")]

mod support;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::database::Database;
use support::line::Record;
use tempfile::TempDir;

/// A configuration that would run, with lines in place of others.
struct Case {
    database: Database,
    topic: String,
    folder: TempDir,
}

/// A process that does not outlive the test.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// How a process ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    errors: String,
}

impl Case {
    /// One whose topic has two events.
    async fn new() -> Self {
        let case = Self {
            database: Database::migrated().await,
            topic: support::topic("refusals", 1).await,
            folder: tempfile::tempdir().expect("a folder"),
        };
        let producer = support::producer(&support::brokers(), &[]);
        for id in ["a", "b"] {
            producer.send_record(&case.topic, 0, &Record::good(id));
        }
        producer.flush();
        case
    }

    /// Runs a member with further sections until it ends by itself.
    fn run(&self, kafka: &str, more: &str) -> Ended {
        self.run_at(&self.database.url(), kafka, more)
    }

    fn run_at(&self, url: &str, kafka: &str, more: &str) -> Ended {
        let mut member = self.start_at(url, kafka, more);
        let begun = Instant::now();
        while member.0.try_wait().expect("its state").is_none() {
            assert!(
                begun.elapsed() < 2 * support::PATIENCE,
                "it goes on running"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = |stream: Option<&mut dyn Read>| {
            let mut text = String::new();
            let stream = stream.expect("a stream");
            stream.read_to_string(&mut text).expect("text");
            text
        };
        let results = text(member.0.stdout.as_mut().map(|stream| stream as _));
        assert_eq!(results, "", "standard output is for results only");
        Ended {
            code: member.0.wait().expect("its end").code(),
            errors: text(member.0.stderr.as_mut().map(|stream| stream as _)),
        }
    }

    fn start_at(&self, url: &str, kafka: &str, more: &str) -> Member {
        let text = format!(
            "pipeline = \"refusals\"\n[postgres]\nurl = \"{url}\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
             {more}\n[kafka]\nbrokers = \"{brokers}\"\ntopics = [\"{topic}\"]\n\
             start = \"earliest\"\n{kafka}\n",
            brokers = support::brokers(),
            topic = self.topic,
        );
        let path = self.folder.path().join("onceonly.toml");
        std::fs::write(&path, text).expect("a configuration file");
        let child = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .arg("--config")
            .arg(&path)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Member(child.expect("a process"))
    }

    /// Nothing was read, claimed, applied or given up.
    async fn assert_untouched(&self) {
        for (what, query) in [
            (
                "a moved position",
                "select count(*) from onceonly.position where next_offset <> 0",
            ),
            (
                "an id",
                "select count(*) from onceonly.ledger where event_key is not null",
            ),
            ("an effect", "select count(*) from onceonly.event"),
            ("a dead letter", "select count(*) from onceonly.dead_letter"),
            ("a waiting event", "select count(*) from onceonly.waiting"),
        ] {
            assert_eq!(self.database.value::<i64>(query).await, 0, "{what}");
        }
    }
}

impl Ended {
    /// The last line is the refusal: that exit code, and each of these parts.
    #[track_caller]
    fn is(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.errors);
        let at = self.errors.rfind("error: ");
        let sentence = at.map_or("", |at| &self.errors[at..]);
        // The driver adds a line of the server's source code.
        assert!(!sentence.contains("returned from database"), "{sentence}");
        for part in parts {
            assert!(
                sentence.contains(part),
                "{part:?} is missing in: {}",
                self.errors
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_work_ends_with_2_before_anything_is_reached() {
    let case = Case::new().await;
    case.run("[kafka.properties]\n\"enable.auto.commit\" = \"true\"", "")
        .is(
            2,
            &["`enable.auto.commit` in `kafka.properties` is the pipeline's own"],
        );
    case.run("[kafka.properties]\n\"group.id\" = \"x\"", "")
        .is(2, &["`group.id` in `kafka.properties`", "kafka.group"]);
    case.run("", "[dedup]\nretenton = \"1d\"").is(
        2,
        &[
            "unknown key `dedup.retenton`",
            "`dedup.retention`",
            "onceonly.toml",
        ],
    );
    let redis = support::service("REDIS_URL");
    let longer = format!("[redis]\nurl = \"{redis}\"\nttl = \"3d\"\n[dedup]\nretention = \"2d\"");
    case.run("", &longer)
        .is(2, &["redis.ttl", "3d", "dedup.retention", "2d"]);
    case.run("", "[handler]\nstatements = [\"truncate orders\"]")
        .is(2, &["statement 1 that begins with `truncate`"]);
    let registered = "select count(*) from onceonly.pipeline";
    assert_eq!(case.database.value::<i64>(registered).await, 0);
    case.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_pipeline_of_the_same_name_is_refused_by_the_field() {
    let case = Case::new().await;
    case.database.register("refusals").await;
    // What the test's fingerprint has, but for one field each time.
    let group = "group = \"refusals\"";
    case.run(group, "")
        .is(1, &["cluster = \"cluster-1\"", "onceonly pipeline adopt"]);
    case.database
        .run("update onceonly.pipeline set cluster = null")
        .await;
    for (kafka, more, parts) in [
        (
            "group = \"other\"",
            "",
            &["kafka.group = \"refusals\"", "\"other\""][..],
        ),
        (
            group,
            "[identity]\nfrom = \"key\"",
            &["identity.from = \"header:event-id\"", "\"key\""],
        ),
        (
            group,
            "[identity]\nscope = \"topic\"",
            &["identity.scope = \"pipeline\"", "\"topic\""],
        ),
        (
            group,
            "[dedup]\nretention = \"6d\"",
            &["dedup.retention = \"7days\"", "\"6days\""],
        ),
    ] {
        let ended = case.run(kafka, more);
        ended.is(1, &["pipeline \"refusals\"", "onceonly pipeline adopt"]);
        ended.is(1, parts);
    }
    case.assert_untouched().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_missing_or_newer_is_refused() {
    let case = Case::new().await;
    case.database
        .run("insert into onceonly._sqlx_migrations select 9999, description, installed_on, success, checksum, execution_time from onceonly._sqlx_migrations limit 1")
        .await;
    case.run("", "").is(
        1,
        &[
            "schema \"onceonly\" has version 9999",
            "a newer onceonly migrated it",
        ],
    );
    case.assert_untouched().await;
    case.database.run("drop schema onceonly cascade").await;
    case.run("", "").is(
        1,
        &[
            "schema \"onceonly\" has no tables of onceonly yet",
            "onceonly migrate",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_statement_stops_with_postgres_message_and_place() {
    let case = Case::new().await;
    case.database
        .run("create table orders (id text); create schema closed; create table closed.t (id text)")
        .await;
    for (statement, parts) in [
        (
            "insert into orders selec event_id from batch",
            &[
                "syntax error at or near",
                "at line 1, column 20",
                "\n                     ^",
            ][..],
        ),
        (
            "insert into nowhere select event_id from batch",
            &[
                "relation \"nowhere\" does not exist",
                "at line 1, column 13",
            ],
        ),
        (
            "insert into orders select event_idd from batch",
            &[
                "column \"event_idd\" does not exist",
                "at line 1, column 27",
            ],
        ),
    ] {
        let more = format!("[handler]\nstatements = [{statement:?}]");
        let ended = case.run("", &more);
        ended.is(1, &["handler statement 1", statement]);
        ended.is(1, parts);
        case.assert_untouched().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_the_user_may_not_write_stops_with_nothing_moved() {
    let case = Case::new().await;
    let role = format!("role_{}", uuid::Uuid::new_v4().simple());
    case.database
        .run(&format!(
            "create table public.orders (id text); create role {role} login password 'word'; \
             grant usage on schema onceonly to {role}; \
             grant select, insert, update, delete on all tables in schema onceonly to {role}"
        ))
        .await;
    let url = case.database.url();
    let (_, server) = url.split_once('@').expect("a user in the address");
    let url = format!("postgres://{role}:word@{server}");
    let statement = "insert into public.orders select event_id from batch";
    let more = format!("[handler]\nstatements = [{statement:?}]");
    let ended = case.run_at(&url, "", &more);
    ended.is(
        1,
        &[
            statement,
            "handler statement 1",
            "permission denied for table orders",
        ],
    );
    case.assert_untouched().await;

    // Once it may, a member goes on where this one stood.
    let grant = format!("grant insert on public.orders to {role}");
    case.database.run(&grant).await;
    let member = case.start_at(&url, "", &more);
    let begun = Instant::now();
    while case
        .database
        .value::<i64>("select count(*) from public.orders")
        .await
        < 2
    {
        assert!(begun.elapsed() < support::PATIENCE, "nothing was applied");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(member);
    drop(case);
    Database::empty()
        .await
        .run(&format!("drop role {role}"))
        .await;
}
