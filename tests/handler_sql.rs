//! The SQL handler on a real Postgres.

mod support;

use onceonly::error::{Class, Error};
use onceonly::event::{Batch, Incoming, TopicPartition};
use onceonly::handler::sql::{PayloadKind, SqlHandler, SqlSettings};
use onceonly::handler::{Handler, NewEvents};
use onceonly::identity::{EventKey, Found, Ids};
use proptest::prelude::*;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use support::database::Database;

fn settings(statements: &[&str], payload: PayloadKind) -> SqlSettings {
    SqlSettings {
        statements: statements.iter().map(|&text| text.to_owned()).collect(),
        payload,
        max_event_bytes: 16 << 20,
        schema: "onceonly".to_owned(),
    }
}

fn handler(statements: &[&str], payload: PayloadKind) -> SqlHandler {
    SqlHandler::new(settings(statements, payload)).expect("statements over data")
}

struct Events {
    batch: Batch,
    ids: Ids,
}

impl Events {
    fn new() -> Self {
        let (batch, ids) = (Batch::new(), Ids::default());
        Self { batch, ids }
    }

    fn push(&mut self, id: &str, record: Incoming<'_>, headers: &[(&str, Option<&[u8]>)]) {
        let slot = self.batch.slice(&TopicPartition::new("orders", 3), 1);
        self.batch.push(slot, record, headers.iter().copied());
        let key = EventKey(Uuid::from_u128(self.ids.len() as u128));
        self.ids.push(id, key, Found::Id);
    }

    /// Events whose ids are their offsets.
    fn of(payloads: &[&[u8]]) -> Self {
        let mut events = Self::new();
        for (offset, payload) in (0..).zip(payloads) {
            let record = Incoming {
                offset,
                payload: Some(payload),
                ..Incoming::default()
            };
            events.push(&offset.to_string(), record, &[]);
        }
        events
    }

    async fn apply(
        &self,
        handler: &SqlHandler,
        connection: &mut PgConnection,
    ) -> Result<(), Error> {
        let selected: Vec<u32> = (0..self.batch.len() as u32).collect();
        let new = NewEvents::new(&self.batch, &self.ids, &selected);
        let mut transaction = connection.begin().await.expect("a transaction");
        handler.handle(&mut transaction, &new).await?;
        transaction.commit().await.expect("a commit");
        Ok(())
    }
}

async fn prepared(database: &Database, handler: &SqlHandler) -> PgConnection {
    let mut connection = database.connection().await;
    handler
        .prepare(&mut connection)
        .await
        .expect("a prepared connection");
    connection
}

async fn prepare_error(database: &Database, statements: &[&str]) -> Error {
    let handler = handler(statements, PayloadKind::Json);
    let mut connection = database.connection().await;
    handler
        .prepare(&mut connection)
        .await
        .expect_err("a refusal")
}

#[tokio::test]
async fn without_a_statement_events_land_in_event_as_they_came() {
    let database = Database::migrated().await;
    let handler = handler(&[], PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    let mut events = Events::new();
    let full = Incoming {
        offset: 7,
        timestamp_ms: Some(1_700_000_000_123),
        key: Some(b"\0key"),
        payload: Some(br#"{"a":[1,2]}"#),
    };
    let headers: [(&str, Option<&[u8]>); 3] = [("h", Some(b"1")), ("n", None), ("h", Some(b""))];
    events.push("seven", full, &headers);
    let bare = Incoming {
        offset: 8,
        timestamp_ms: Some(i64::MAX),
        ..Incoming::default()
    };
    events.push("eight", bare, &[]);
    events.apply(&handler, &mut connection).await.unwrap();

    let rows = database
        .rows(
            "select event_id, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp::text, \
             kafka_key, payload::text, payload_text is null and payload_bytes is null as alone, \
             headers = array[row('h', '1'), row('n', null), row('h', '')]::onceonly.header[] as same, \
             cardinality(headers) as headers \
             from onceonly.event order by kafka_offset",
        )
        .await;
    assert_eq!(rows.len(), 2);
    let row = &rows[0];
    assert_eq!(row.get::<&str, _>("event_id"), "seven");
    assert_eq!(row.get::<&str, _>("kafka_topic"), "orders");
    assert_eq!(
        (
            row.get::<i32, _>("kafka_partition"),
            row.get::<i64, _>("kafka_offset")
        ),
        (3, 7)
    );
    assert_eq!(
        row.get::<&str, _>("kafka_timestamp"),
        "2023-11-14 22:13:20.123+00"
    );
    assert_eq!(row.get::<&[u8], _>("kafka_key"), b"\0key");
    assert_eq!(row.get::<&str, _>("payload"), r#"{"a": [1, 2]}"#);
    assert!(row.get::<bool, _>("alone") && row.get::<bool, _>("same"));
    let row = &rows[1];
    assert_eq!(
        row.get::<Option<&str>, _>("kafka_timestamp"),
        None,
        "beyond any timestamptz"
    );
    assert_eq!(row.get::<Option<&[u8]>, _>("kafka_key"), None);
    assert_eq!(row.get::<Option<&str>, _>("payload"), None, "a tombstone");
    assert_eq!(row.get::<i32, _>("headers"), 0);
}

#[tokio::test]
async fn text_and_bytes_arrive_as_such() {
    let database = Database::migrated().await;
    for (kind, column, expected) in [
        (PayloadKind::Text, "payload_text", "array['café', '']"),
        (
            PayloadKind::Bytes,
            "payload_bytes",
            "array['\\x636166c3a9', '']::bytea[]",
        ),
    ] {
        let handler = handler(&[], kind);
        let mut connection = prepared(&database, &handler).await;
        database.run("truncate onceonly.event").await;
        let events = Events::of(&["café".as_bytes(), b""]);
        events.apply(&handler, &mut connection).await.unwrap();
        let query = format!(
            "select array_agg({column} order by kafka_offset) = {expected} from onceonly.event"
        );
        assert!(database.value::<bool>(&query).await, "{column}");
    }
}

#[tokio::test]
async fn another_schema_holds_its_own_sink() {
    let database = Database::empty().await;
    let mut postgres = database.settings();
    postgres.schema = "demo_1".to_owned();
    onceonly::ledger::postgres::migrate(&postgres)
        .await
        .unwrap();
    let mut sql = settings(&[], PayloadKind::Json);
    sql.schema = "demo_1".to_owned();
    let handler = SqlHandler::new(sql).unwrap();
    let mut connection = prepared(&database, &handler).await;
    Events::of(&[b"1"])
        .apply(&handler, &mut connection)
        .await
        .unwrap();
    assert_eq!(
        database
            .value::<i64>("select count(*) from demo_1.event")
            .await,
        1
    );
}

#[tokio::test]
async fn statements_run_in_order_over_each_batch_alone() {
    let database = Database::migrated().await;
    database
        .run("create table stock (item text primary key, pieces int); insert into stock values ('a', 10); create table orders (id text primary key, item text, pieces int)")
        .await;
    let handler = handler(
        &[
            "insert into orders select event_id, payload->>'item', (payload->>'pieces')::int from batch;",
            "update stock s set pieces = s.pieces - o.sum from (select item, sum(pieces) from orders join batch on id = event_id group by item) o where s.item = o.item",
        ],
        PayloadKind::Json,
    );
    let mut connection = prepared(&database, &handler).await;
    let mut events = Events::of(&[br#"{"item":"a","pieces":1}"#, br#"{"item":"a","pieces":2}"#]);
    events.apply(&handler, &mut connection).await.unwrap();
    events = Events::new();
    let record = Incoming {
        offset: 9,
        payload: Some(br#"{"item":"a","pieces":4}"#),
        ..Incoming::default()
    };
    events.push("9", record, &[]);
    events.apply(&handler, &mut connection).await.unwrap();
    assert_eq!(database.value::<i32>("select pieces from stock").await, 3);
    assert_eq!(
        database.value::<i64>("select count(*) from orders").await,
        3
    );
}

/// The tables of `examples/orders.toml`, as its comment has them.
fn example_tables(text: &str) -> String {
    let comment: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .fold(String::new(), |all, line| all + line + "\n");
    let start = comment.find("create table").expect("the tables");
    let end = comment.rfind(");").expect("the tables' end") + 2;
    comment[start..end].to_owned()
}

#[tokio::test]
async fn the_example_orders_lower_the_stock_and_its_comment_is_true() {
    let text = include_str!("../examples/orders.toml");
    let config = onceonly::config::Config::from_toml(text).expect("a configuration");
    let database = Database::migrated().await;
    database.run(&example_tables(text)).await;
    database
        .run("insert into stock values ('chair', 10), ('table', 5)")
        .await;
    let statements: Vec<&str> = config
        .handler
        .statements
        .iter()
        .map(String::as_str)
        .collect();
    let handler = handler(&statements, PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    let events = Events::of(&[
        br#"{"customer": "c-7", "item": "chair", "pieces": 2}"#,
        br#"{"customer": "c-8", "item": "table", "pieces": 1}"#,
        br#"{"customer": "c-9", "item": "chair", "pieces": 3}"#,
    ]);
    events.apply(&handler, &mut connection).await.unwrap();
    let none = Events::of(&[br#"{"customer": "c", "item": "chair", "pieces": 0}"#]);
    let error = none.apply(&handler, &mut connection).await.unwrap_err();
    assert_eq!(
        (error.class(), error.code()),
        (Class::Rejected, Some("23514")),
        "{error}"
    );
    let stock = "select string_agg(item || ' ' || pieces, ', ' order by item) from stock";
    assert_eq!(database.value::<String>(stock).await, "chair 5, table 4");
}

#[tokio::test]
async fn a_batch_larger_than_a_message_arrives_whole_and_in_order() {
    let database = Database::migrated().await;
    let handler = handler(
        &[
            "insert into onceonly.event (event_id, kafka_topic, kafka_partition, kafka_offset, headers, payload_bytes) select event_id, kafka_topic, kafka_partition, kafka_offset, headers, payload from batch",
        ],
        PayloadKind::Bytes,
    );
    let mut connection = prepared(&database, &handler).await;
    let large = vec![7; 3 << 20];
    let small = [1; 100];
    let payloads: Vec<&[u8]> = (0..5_000)
        .map(|n| if n == 2_500 { &large[..] } else { &small[..] })
        .collect();
    Events::of(&payloads)
        .apply(&handler, &mut connection)
        .await
        .unwrap();
    let sum = database
        .value::<i64>("select sum(length(payload_bytes))::bigint from onceonly.event")
        .await;
    assert_eq!(sum, 4_999 * 100 + (3 << 20));
    let in_order = "select bool_and(o = n - 1) from (select kafka_offset o, row_number() over (order by ctid) n from onceonly.event) e";
    assert!(database.value::<bool>(in_order).await);
}

#[tokio::test]
async fn a_wrong_statement_stops_with_its_number_text_and_place() {
    let database = Database::migrated().await;
    database.run("create table orders (id text)").await;
    let error = prepare_error(
        &database,
        &[
            "select 1 from batch",
            "insert into orders\nselect event_idd from batch",
        ],
    )
    .await;
    assert_eq!(error.class(), Class::Fatal);
    assert_eq!(
        error.to_string(),
        "handler statement 2: column \"event_idd\" does not exist (hint: Perhaps you meant to \
         reference the column \"batch.event_id\".) at line 2, column 8:\n  insert into orders\n  \
         select event_idd from batch\n         ^"
    );
}

#[tokio::test]
async fn statements_that_cannot_work_are_refused_before_anything_is_read() {
    let database = Database::migrated().await;
    for (statement, part) in [
        (
            "insert into nowhere select 1 from batch",
            "relation \"nowhere\" does not exist",
        ),
        ("insert into onceonly.event selec 1", "syntax error"),
        (
            "select 1 from batch; commit",
            "cannot insert multiple commands",
        ),
        (
            "select event_id from batch where kafka_offset > $1",
            "has parameters",
        ),
        (
            "insert into onceonly.event (payload) select payload + 1 from batch",
            "operator does not exist",
        ),
    ] {
        let error = prepare_error(&database, &[statement]).await;
        assert_eq!(error.class(), Class::Fatal, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.to_string().contains(statement), "{error}");
    }
    let refused = SqlHandler::new(settings(&["select 1", "commit"], PayloadKind::Json));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .starts_with("handler statement 2 begins with \"commit\"")
    );
}

#[tokio::test]
async fn a_users_own_batch_table_is_refused() {
    let database = Database::migrated().await;
    database
        .run("create table public.batch (event_id text)")
        .await;
    let error = prepare_error(&database, &["select 1 from batch"]).await;
    assert_eq!(error.class(), Class::Fatal);
    assert!(
        error
            .to_string()
            .starts_with("there is a table public.batch"),
        "{error}"
    );
    database
        .run("alter table public.batch rename to batches")
        .await;
    let handler = handler(&["select 1 from batch"], PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    handler
        .prepare(&mut connection)
        .await
        .expect("our own table does not stand in the way");
}

#[tokio::test]
async fn an_events_fault_is_rejected_and_leaves_the_connection_usable() {
    let database = Database::migrated().await;
    database
        .run("create table orders (id text primary key, amount int not null check (amount > 0))")
        .await;
    let handler = handler(
        &["insert into orders select event_id, (payload->>'amount')::int from batch"],
        PayloadKind::Json,
    );
    let mut connection = prepared(&database, &handler).await;
    for (payload, code) in [
        (&br#"{"amount":0}"#[..], "23514"),
        (br#"{"amount":"x"}"#, "22P02"),
        (br#"{}"#, "23502"),
        (br#"{"a"}"#, "22P02"),
        (br#"{"a":"\u0000"}"#, "22P05"),
        (b"\"\xc3\x28\"", "22021"),
    ] {
        let error = Events::of(&[br#"{"amount":1}"#, payload])
            .apply(&handler, &mut connection)
            .await;
        let error = error.expect_err("a refusal");
        assert_eq!(
            (error.class(), error.code()),
            (Class::Rejected, Some(code)),
            "{error}"
        );
    }
    assert_eq!(
        database.value::<i64>("select count(*) from orders").await,
        0
    );
    Events::of(&[br#"{"amount":1}"#])
        .apply(&handler, &mut connection)
        .await
        .unwrap();
    assert_eq!(
        database.value::<i64>("select count(*) from orders").await,
        1
    );
}

#[tokio::test]
async fn a_failed_copy_names_the_event() {
    let database = Database::migrated().await;
    let handler = handler(&[], PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    let error = Events::of(&[b"1", b"2", b"nope"])
        .apply(&handler, &mut connection)
        .await;
    let text = error.expect_err("a refusal").to_string();
    assert!(text.contains("event \"2\" at orders/3, offset 2"), "{text}");
}

#[tokio::test]
async fn a_table_dropped_while_running_is_fatal_and_names_the_statement() {
    let database = Database::migrated().await;
    database.run("create table orders (id text)").await;
    let handler = handler(
        &["insert into orders select event_id from batch"],
        PayloadKind::Json,
    );
    let mut connection = prepared(&database, &handler).await;
    database
        .run("alter table orders add more int default 1")
        .await;
    Events::of(&[b"1"])
        .apply(&handler, &mut connection)
        .await
        .unwrap();
    database.run("drop table orders").await;
    let error = Events::of(&[b"1"])
        .apply(&handler, &mut connection)
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("insert into orders"), "{error}");
}

/// Whether Postgres takes bytes as `jsonb`.
async fn takes_json(connection: &mut PgConnection, bytes: &[u8]) -> bool {
    sqlx::query("select convert_from($1, 'UTF8')::jsonb is not null")
        .bind(bytes)
        .fetch_one(connection)
        .await
        .is_ok()
}

fn passes(handler: &SqlHandler, payload: &[u8]) -> bool {
    let events = Events::of(&[payload]);
    handler.screen(&events.batch.event(0)).is_none()
}

#[tokio::test]
async fn screening_agrees_with_postgres_on_nasty_values() {
    let database = Database::migrated().await;
    let handler = handler(&[], PayloadKind::Json);
    let mut connection = database.connection().await;
    let deep = |depth| "[".repeat(depth) + &"]".repeat(depth);
    let digits = |count: usize| "9".repeat(count);
    assert!(passes(&handler, b""), "an empty value is null");
    let mut cases: Vec<Vec<u8>> = [
        " ",
        "null",
        " true ",
        "\t\r\n1",
        "\u{b}1",
        "\u{a0}1",
        "\u{feff}{}",
        "{} {}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\":1,\"a\":2}",
        "{a:1}",
        "'a'",
        "nul",
        "NaN",
        "Infinity",
        "-",
        "-0",
        "-0.0",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "1e+",
        "1E5",
        "1e-5",
        "1e400",
        "-1e-400",
        "1e131071",
        "1e131072",
        "9.9e131071",
        "0.1e131072",
        "0.1e131073",
        "10e131070",
        "10e131071",
        "1e-16383",
        "1e-16384",
        "1.5e-16382",
        "1.5e-16383",
        "0e-16384",
        "0e131072",
        "0e1073741822",
        "0e1073741823",
        "0e-1073741823",
        "1e99999999999999999999",
        "0.0000e-16379",
        "0.0000e-16380",
        "0x1",
        "1a",
        "truefalse",
        "\"\\u0000\"",
        "\"\\\\u0000\"",
        "\"\\\\\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\ude00\"",
        "\"\\ude00\\ud83d\"",
        "\"\\ud83d\\ud83d\\ude00\"",
        "\"\\ud83dx\"",
        "\"\\ud83d\\u0041\"",
        "\"\\ud83d\\n\"",
        "\"\\uD83D\\uDE00\"",
        "\"\\uFFFF\"",
        "\"\\u00\"",
        "\"\\x41\"",
        "\"\\\"",
        "\"a\nb\"",
        "\"\u{7f}\u{80}\u{2028}\"",
        "\"\u{1}\"",
        "{\"\\u0000\":1}",
        "{\"\\ud800\":1}",
        "{\"\":\"\"}",
        "[1e5,\"1e999999\",3E2]",
        "{\"a\":{\"b\":[]}}",
        "[[]",
        "]",
        "\"",
        "/* */ 1",
        "\u{0}",
        "1\u{0}",
    ]
    .iter()
    .map(|case| case.as_bytes().to_vec())
    .collect();
    cases.extend(
        [
            &b"\"\xc3\x28\""[..],
            b"\"\xed\xa0\x80\"",
            b"\"\xf4\x90\x80\x80\"",
            b"\"\xc0\x80\"",
            b"\xff\xfe{\0}\0",
        ]
        .map(<[u8]>::to_vec),
    );
    cases.push(deep(10_000).into_bytes());
    cases.push(digits(131_072).into_bytes());
    cases.push(digits(131_073).into_bytes());
    cases.push(format!("0.{}", digits(16_383)).into_bytes());
    cases.push(format!("0.{}", digits(16_384)).into_bytes());
    cases.push(format!("\"{}\"", digits(10 << 20)).into_bytes());
    for case in &cases {
        let shown = String::from_utf8_lossy(&case[..case.len().min(60)]);
        let taken = takes_json(&mut connection, case).await;
        assert_eq!(passes(&handler, case), taken, "{shown:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    /// Text glued of pieces that come close to JSON, many at once to spare round trips.
    #[test]
    fn screening_agrees_with_postgres_on_near_json(
        values in prop::collection::vec(near_json(), 20)
    ) {
        let handler = handler(&[], PayloadKind::Json);
        let taken = RUNTIME.with(|(runtime, connection)| {
            let mut connection = connection.borrow_mut();
            runtime.block_on(async {
                let mut taken = Vec::new();
                for value in &values {
                    taken.push(takes_json(&mut connection, value.as_bytes()).await);
                }
                taken
            })
        });
        for (value, taken) in values.iter().zip(taken) {
            prop_assert_eq!(passes(&handler, value.as_bytes()), taken, "{:?}", value);
        }
    }
}

thread_local! {
    static RUNTIME: (tokio::runtime::Runtime, std::cell::RefCell<PgConnection>) = {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let url = support::service("DATABASE_URL");
        let connection = runtime.block_on(PgConnection::connect(&url)).expect("a connection");
        (runtime, std::cell::RefCell::new(connection))
    };
}

fn near_json() -> impl Strategy<Value = String> {
    let string = prop::collection::vec(
        prop::sample::select(vec![
            "a", "é", "\\\\", "\\\"", "\\u0000", "\\ud800", "\\udc00", "\\u0041", "\\n", "1e9",
            "\\u", "\t",
        ]),
        0..4,
    )
    .prop_map(|pieces| format!("\"{}\"", pieces.concat()));
    let number = (
        "-?",
        0_u32..3,
        "(\\.[0-9]{1,3})?",
        prop::sample::select(vec![
            "", "e5", "E+131071", "e131072", "e-16383", "e-16380", "e-1",
        ]),
    )
        .prop_map(|(sign, integer, fraction, exponent)| {
            format!("{sign}{integer}{fraction}{exponent}")
        });
    let leaf = prop_oneof![
        string,
        number,
        Just("null".to_owned()),
        Just("nul".to_owned()),
        Just(" ".to_owned())
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(","))),
            prop::collection::vec(inner, 0..3).prop_map(|v| format!(
                "{{{}}}",
                v.iter()
                    .map(|x| format!("\"k\":{x}"))
                    .collect::<Vec<_>>()
                    .join(",")
            )),
        ]
    })
}

#[tokio::test]
async fn screening_finds_what_is_too_large_or_no_text() {
    let mut small = settings(&[], PayloadKind::Text);
    small.max_event_bytes = 10;
    let handler = SqlHandler::new(small).unwrap();
    let code = |payload: &[u8], headers: &[(&str, Option<&[u8]>)]| {
        let mut events = Events::new();
        let record = Incoming {
            payload: Some(payload),
            ..Incoming::default()
        };
        events.push("1", record, headers);
        handler
            .screen(&events.batch.event(0))
            .map(|failure| failure.code)
    };
    assert_eq!(code(b"0123456789", &[]), None);
    assert_eq!(code(b"0123456789a", &[]).as_deref(), Some("too-large"));
    assert_eq!(code(b"a\0b", &[]).as_deref(), Some("nul-in-text"));
    assert_eq!(code(b"\xc3\x28", &[]).as_deref(), Some("invalid-utf-8"));
    assert_eq!(code(b"", &[]), None);
    assert_eq!(
        code(b"", &[("a\0", None)]).as_deref(),
        Some("invalid-header")
    );
}

#[tokio::test]
async fn batch_stays_ours_whatever_becomes_of_the_search_path() {
    let database = Database::migrated().await;
    database.run("create table public.effect (id text)").await;
    let name = database.name();
    database
        .run(&format!(
            "alter database {name} set search_path = public, pg_temp"
        ))
        .await;
    let statements = [
        "insert into public.effect select event_id from batch",
        "select set_config('search_path', 'other, pg_temp', false)",
        "insert into public.effect select event_id || ' again' from batch",
    ];
    let handler = handler(&statements, PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    let event = Events::of(&[b"{}"]);
    event
        .apply(&handler, &mut connection)
        .await
        .expect("applied");
    // A table of that name appears where the path would find it first.
    database
        .run("create table public.batch (event_id text)")
        .await;
    database
        .run("create schema other; create table other.batch (event_id text)")
        .await;
    event
        .apply(&handler, &mut connection)
        .await
        .expect("applied");
    let ids = database
        .rows("select id from public.effect order by id")
        .await;
    let ids: Vec<String> = ids.iter().map(|row| row.get("id")).collect();
    assert_eq!(ids, ["0", "0", "0 again", "0 again"]);
}

#[tokio::test]
async fn a_code_of_the_users_own_and_a_policy_blame_the_event() {
    let database = Database::migrated().await;
    database
        .run(
            "create table public.effect (id text);
             create function public.refuse() returns trigger language plpgsql as $$ begin
                 if new.id = '1' then raise 'not one' using errcode = '45000'; end if;
                 return new;
             end $$;
             create trigger refuse before insert on public.effect
                 for each row execute function public.refuse();
             create table public.guarded (id text);
             alter table public.guarded enable row level security;
             create policy guard on public.guarded with check (id <> '1')",
        )
        .await;
    let role = database.name().to_owned();
    database
        .run(&format!(
            "create role {role}_plain; grant insert on public.guarded to {role}_plain"
        ))
        .await;
    let own = ["insert into public.effect select event_id from batch"];
    let handler = handler(&own, PayloadKind::Json);
    let mut connection = prepared(&database, &handler).await;
    let events = Events::of(&[b"{}", b"{}"]);
    let error = events
        .apply(&handler, &mut connection)
        .await
        .expect_err("a refusal");
    assert_eq!(
        (error.class(), error.code()),
        (Class::Rejected, Some("45000")),
        "{error}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("set role {role}_plain")))
        .execute(&mut connection)
        .await
        .expect("another role");
    let insert = sqlx::raw_sql("insert into public.guarded values ('1')")
        .execute(&mut connection)
        .await
        .expect_err("a refusal");
    let error = Error::postgres("insert", insert);
    assert_eq!(
        (error.class(), error.code()),
        (Class::Rejected, Some("42501")),
        "{error}"
    );
    let forbidden = sqlx::raw_sql("insert into public.effect values ('2')")
        .execute(&mut connection)
        .await
        .expect_err("a refusal");
    assert_eq!(Error::postgres("insert", forbidden).class(), Class::Fatal);
    drop(connection);
    database
        .run(&format!(
            "drop owned by {role}_plain; drop role {role}_plain"
        ))
        .await;
}
