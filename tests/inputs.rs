//! Wrong input from a real log: each record has the outcome that the documentation says, and its
//! neighbours are applied.

#![cfg(feature = "kafka")]

mod support;

use std::collections::BTreeMap;

use support::line::{Line, Record};
use tokio::task::JoinSet;

/// The outcomes that are not zero.
fn outcomes(counts: &[(&'static str, i64)]) -> BTreeMap<&'static str, i64> {
    counts.iter().copied().collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(id, code): &(&str, &str)| ((*id).to_owned(), (*code).to_owned());
    pairs.iter().map(owned).collect()
}

/// Fails an event for good at its first error.
const ONE_ATTEMPT: &str = "[retry]\nmax_attempts = 1\n";

async fn tombstones(
    word: &'static str,
    expected: BTreeMap<&'static str, i64>,
    effects: &'static [&'static str],
) {
    let tombstone = |id| Record::good(id).with_payload(None);
    let empty = |id| Record::good(id).with_payload(Some(b""));
    let records = [
        Record::good("a"),
        tombstone("gone"),
        Record::good("b").with_key(None),
        empty("empty"),
        Record::good("c").with_key(Some(b"")),
    ];
    let line = Line::new(1, 1).await;
    line.send(0, &records);
    let config = line.config(true, &format!("[handler]\non_tombstone = \"{word}\"\n"));
    line.consume(&config, 5).await;
    assert_eq!(line.outcomes().await, expected, "{word}");
    assert_eq!(line.effects().await, effects, "{word}");
    let dead = match word {
        "dead-letter" => pairs(&[("gone", "tombstone"), ("empty", "tombstone")]),
        _ => Vec::new(),
    };
    assert_eq!(line.dead().await, dead, "{word}");
    assert_eq!(line.transactions().await, 1, "{word}: all in one batch");
    let null_keys = "select event_id from onceonly.event where kafka_key is null";
    assert_eq!(line.texts(null_keys).await, ["b"], "{word}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tombstones_and_empty_values_follow_on_tombstone() {
    let (three, five) = (&["a", "b", "c"], &["a", "b", "c", "empty", "gone"]);
    let mut cases = JoinSet::new();
    cases.spawn(tombstones(
        "skip",
        outcomes(&[("applied", 3), ("skipped", 2)]),
        three,
    ));
    cases.spawn(tombstones(
        "dead-letter",
        outcomes(&[("applied", 3), ("dead", 2)]),
        three,
    ));
    cases.spawn(tombstones("pass", outcomes(&[("applied", 5)]), five));
    cases.join_all().await;
}

/// Where a record stands that has no id: its dead letter's id.
fn place(line: &Line, offset: usize) -> String {
    format!("{}/0/{offset}", line.topics[0])
}

async fn missing_ids(word: &'static str, outcome: &'static str) {
    let with_id = |id: Option<&[u8]>| Record::bare("{}").with_headers(&[("event-id", id)]);
    let records = [
        Record::good("a"),
        Record::bare("{}"),
        with_id(None),
        with_id(Some(b"")),
        with_id(Some(b" \t\n\xe2\x80\x83")),
        with_id(Some(b"nul\0")),
        with_id(Some(b"\xc3\x28")),
        Record::bare("{}").with_headers(&[("Event-Id", Some(b"x"))]),
        // The last header of a name counts.
        Record::bare("{}").with_headers(&[("event-id", Some(b"x")), ("event-id", None)]),
        Record::good("b"),
    ];

    let line = Line::new(1, 1).await;
    line.send(0, &records);
    let more = format!("[identity]\non_missing = \"{word}\"\n");
    line.consume(&line.config(false, &more), 10).await;
    let places: Vec<_> = (1..9).map(|offset| place(&line, offset)).collect();
    let mut expected = outcomes(&[("applied", 2)]);
    *expected.entry(outcome).or_default() += 8;
    assert_eq!(line.outcomes().await, expected, "{word}");
    let mut effects = vec!["a".to_owned(), "b".to_owned()];
    if word == "position" {
        effects.extend(places.clone());
    }
    assert_eq!(line.effects().await, effects, "{word}");
    let missing = |place| (place, "missing-id".to_owned());
    let dead: Vec<_> = match word {
        "dead-letter" => places.into_iter().map(missing).collect(),
        _ => Vec::new(),
    };
    assert_eq!(line.dead().await, dead, "{word}");
    assert_eq!(line.transactions().await, 1, "{word}: all in one batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_a_usable_id_follows_on_missing() {
    let mut cases = JoinSet::new();
    cases.spawn(missing_ids("dead-letter", "dead"));
    cases.spawn(missing_ids("position", "applied"));
    cases.spawn(missing_ids("skip", "skipped"));
    cases.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_in_json_is_a_string_or_a_number_and_keeps_its_digits() {
    let line = Line::new(1, 1).await;
    let payloads = [
        r#"{"id": "a"}"#,
        "{}",
        r#"{"id": null}"#,
        r#"{"id": ""}"#,
        r#"{"id": "  "}"#,
        r#"{"id": true}"#,
        r#"{"id": ["a"]}"#,
        r#"{"id": {"a": 1}}"#,
        r#"{"id": "\u0000"}"#,
        r#"{"id": "\ud800"}"#,
        r#"["id"]"#,
        r#"{"id": "never closed"#,
        // Doubles hold none of these apart.
        r#"{"id": 9007199254740992}"#,
        r#"{"id": 9007199254740993}"#,
        r#"{"id": 90071992547409931234567890}"#,
        r#"{"id": 90071992547409931234567891}"#,
        r#"{"id": "9007199254740993"}"#,
        r#"{"id": "first", "id": "last"}"#,
        r#"{"id": "last"}"#,
    ];
    let records: Vec<_> = payloads.iter().map(Record::bare).collect();
    line.send(0, &records);
    let config = line.config(true, "[identity]\nfrom = \"json:/id\"\n");
    line.consume(&config, 19).await;
    let expected = outcomes(&[("applied", 6), ("dead", 11), ("duplicate_batch", 2)]);
    assert_eq!(line.outcomes().await, expected);
    let effects = [
        "9007199254740992",
        "9007199254740993",
        "90071992547409931234567890",
        "90071992547409931234567891",
        "a",
        "last",
    ];
    assert_eq!(line.effects().await, effects);
    let dead: Vec<_> = (1..12)
        .map(|offset| (place(&line, offset), "missing-id".to_owned()))
        .collect();
    assert_eq!(line.dead().await, dead);
    assert_eq!(line.transactions().await, 1, "all in one batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_is_one_also_where_the_id_stands_in_the_payload() {
    let line = Line::new(1, 1).await;
    let tombstone = Record::default().with_key(Some(b"k"));
    let empty = Record::bare("");
    let good = Record::bare(r#"{"id": 1}"#);
    line.send(0, &[tombstone.clone(), good.clone(), empty, tombstone]);
    let config = line.config(false, "[identity]\nfrom = \"json:/id\"\n");
    line.consume(&config, 4).await;
    let expected = outcomes(&[("applied", 1), ("skipped", 3)]);
    assert_eq!(line.outcomes().await, expected);
    assert_eq!(line.effects().await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_no_json_are_dead_and_odd_ones_are_applied() {
    let line = Line::new(1, 1).await;
    let depth = 10_000;
    let deep = "[".repeat(depth) + &"]".repeat(depth);
    let string = |len: usize| format!("\"{}\"", "x".repeat(len));
    let records = [
        Record::good("a"),
        Record::new("utf-8", b"{\"a\": \"\xc3\x28\"}"),
        Record::new("nul", br#"{"a": "\u0000"}"#),
        Record::new("surrogate", br#"{"a": "\ud800"}"#),
        Record::new("surrogates", br#"{"a": "\udc00\ud800"}"#),
        Record::new("pair", br#"{"a": "\ud83d\ude00"}"#),
        Record::new("twice", br#"{"a": 1, "a": 2}"#),
        Record::new("open", br#"{"a": 1"#),
        Record::new("word", b"hello"),
        Record::new("number", b"1e999999"),
        Record::new("deep", &deep),
        Record::new("large", string(7 << 20)),
        Record::new("too-large", string(10_000_000)),
        Record::good("b"),
    ];
    line.send(0, &records);
    line.consume(&line.config(false, ""), 14).await;
    assert_eq!(
        line.outcomes().await,
        outcomes(&[("applied", 6), ("dead", 8)])
    );
    assert_eq!(
        line.effects().await,
        ["a", "b", "deep", "large", "pair", "twice"]
    );
    let dead = pairs(&[
        ("utf-8", "invalid-utf-8"),
        ("nul", "nul-in-json"),
        ("surrogate", "lone-surrogate"),
        ("surrogates", "lone-surrogate"),
        ("open", "invalid-json"),
        ("word", "invalid-json"),
        ("number", "number-out-of-range"),
        ("too-large", "too-large"),
    ]);
    assert_eq!(line.dead().await, dead);
    let last = "select payload->>'a' from onceonly.event where event_id = 'twice'";
    assert_eq!(line.texts(last).await, ["2"], "the last of a name counts");
    // A dead letter keeps the value as it came.
    let kept = "select length(payload) from onceonly.dead_letter where event_id = 'too-large'";
    assert_eq!(line.database.value::<i32>(kept).await, 10_000_002);
    let kept = "select payload from onceonly.dead_letter where event_id = 'utf-8'";
    assert_eq!(
        line.database.value::<Vec<u8>>(kept).await,
        b"{\"a\": \"\xc3\x28\"}"
    );
}

async fn no_json(
    payload: &'static str,
    effects: &'static [&'static str],
    dead: &'static [(&'static str, &'static str)],
) {
    let records = [
        Record::good("a"),
        Record::new("utf-8", b"\xc3\x28"),
        Record::new("nul", b"a\0b"),
        Record::new("word", b"hello"),
        Record::good("b"),
    ];

    let line = Line::new(1, 1).await;
    line.send(0, &records);
    let more = format!("[handler]\npayload = \"{payload}\"\n");
    line.consume(&line.config(true, &more), 5).await;
    assert_eq!(line.effects().await, effects, "{payload}");
    assert_eq!(line.dead().await, pairs(dead), "{payload}");
    assert_eq!(line.transactions().await, 1, "{payload}: all in one batch");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_and_bytes_are_taken_as_they_are() {
    let mut cases = JoinSet::new();
    cases.spawn(no_json(
        "text",
        &["a", "b", "word"],
        &[("utf-8", "invalid-utf-8"), ("nul", "nul-in-text")],
    ));
    cases.spawn(no_json("bytes", &["a", "b", "nul", "utf-8", "word"], &[]));
    cases.join_all().await;
}

async fn long_ids(redis: bool) {
    let line = Line::new(1, 1).await;
    let long = |last: char| "i".repeat(100_000) + &last.to_string();
    let records = [
        Record::good("a"),
        Record::good(&long('1')),
        Record::good(&long('2')),
        Record::good(&long('1')),
        Record::new(long('3'), b"not json"),
        Record::good("b"),
    ];
    line.send(0, &records);
    let config = line.config(redis, "");
    line.consume(&config, 6).await;
    let expected = outcomes(&[("applied", 4), ("dead", 1), ("duplicate_batch", 1)]);
    assert_eq!(line.outcomes().await, expected);
    assert_eq!(line.effects().await, ["a", "b", &long('1'), &long('2')]);
    assert_eq!(line.dead().await, pairs(&[(&long('3'), "invalid-json")]));

    // Another process knows them by Redis, or else by the ledger.
    line.send(0, &records);
    line.consume(&config, 12).await;
    let layer = if redis {
        "duplicate_redis"
    } else {
        "duplicate_ledger"
    };
    let mut expected = outcomes(&[("applied", 4), ("dead", 1)]);
    expected.extend([(layer, 4), ("duplicate_dead", 1), ("duplicate_batch", 2)]);
    assert_eq!(line.outcomes().await, expected);
    assert_eq!(line.effects().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_100_kb_is_an_id_like_any_other() {
    let mut cases = JoinSet::new();
    cases.spawn(long_ids(false));
    cases.spawn(long_ids(true));
    cases.join_all().await;
}

/// A table of the user's that refuses some events, and the statement that fills it.
const ORDERS: &str = "create table orders (
    id text primary key,
    number int unique,
    amount numeric not null check (amount > 0)
)";
const INSERT: &str = "[handler]\nstatements = [\"insert into orders select event_id, \
     (payload->>'number')::int, (payload->>'amount')::numeric from batch\"]\n";

async fn refused_events(redis: bool) {
    let line = Line::new(1, 1).await;
    line.database.run(ORDERS).await;
    let order = |id: &str, payload: &str| Record::new(id, payload);
    let records = [
        order("a", r#"{"number": 1, "amount": 5}"#),
        order("check", r#"{"number": 2, "amount": 0}"#),
        order("b", r#"{"number": 3, "amount": 5}"#),
        order("unique", r#"{"number": 3, "amount": 5}"#),
        order("cast", r#"{"number": 4, "amount": "five"}"#),
        order("null", r#"{"number": 5}"#),
        order("range", r#"{"number": 9999999999, "amount": 5}"#),
        // The index of the primary key takes no more than 2,704 bytes; random, so that no
        // compression helps.
        order(&incompressible(100_000), r#"{"number": 6, "amount": 5}"#),
        order("c", r#"{"number": 7, "amount": 5}"#),
    ];
    line.send(0, &records);
    line.consume(&line.config(redis, &format!("{ONE_ATTEMPT}{INSERT}")), 9)
        .await;
    assert_eq!(
        line.outcomes().await,
        outcomes(&[("applied", 3), ("dead", 6)])
    );
    assert_eq!(
        line.texts("select id from orders order by id").await,
        ["a", "b", "c"]
    );
    let dead = pairs(&[
        ("check", "23514"),
        ("unique", "23505"),
        ("cast", "22P02"),
        ("null", "23502"),
        ("range", "22003"),
        (&incompressible(100_000), "54000"),
    ]);
    assert_eq!(line.dead().await, dead);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_users_tables_refuse_is_dead_alone() {
    let mut cases = JoinSet::new();
    cases.spawn(refused_events(false));
    cases.spawn(refused_events(true));
    cases.join_all().await;
}

/// A text without repetition, the same each time.
fn incompressible(len: usize) -> String {
    let mut text = String::with_capacity(len + 64);
    while text.len() < len {
        text.push_str(&blake3::hash(text.len().to_string().as_bytes()).to_hex());
    }
    text.truncate(len);
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_is_tried_again_before_it_is_dead() {
    let line = Line::new(1, 1).await;
    line.database.run(ORDERS).await;
    let records = [
        Record::new("a", r#"{"amount": 5}"#),
        Record::new("check", r#"{"amount": 0}"#),
        Record::new("check", r#"{"amount": 7}"#),
        Record::new("b", r#"{"amount": 5}"#),
    ];
    line.send(0, &records);
    let more = format!("[retry]\nmax_attempts = 3\nbase = \"10ms\"\ncap = \"20ms\"\n{INSERT}");
    let config = line.config(true, &more);
    line.consume(&config, 4).await;
    let expected = outcomes(&[("applied", 2), ("duplicate_batch", 1), ("retrying", 1)]);
    assert_eq!(line.outcomes().await, expected);

    // The attempts are made by whoever runs next; the id stays known while it waits and after.
    line.send(0, &records[1..2]);
    line.consume(&config, 5).await;
    line.send(0, &[Record::new("c", r#"{"amount": 5}"#)]);
    line.consume(&config, 6).await;
    let dead = "select count(*) = 1 from onceonly.dead_letter";
    line.run_until(&config, "dead", dead).await;
    assert_eq!(line.dead().await, pairs(&[("check", "23514")]));
    let attempts = "select attempts from onceonly.dead_letter";
    assert_eq!(line.database.value::<i32>(attempts).await, 3);
    let waiting = "select count(*) from onceonly.waiting";
    assert_eq!(line.database.value::<i64>(waiting).await, 0);
    assert_eq!(
        line.texts("select id from orders order by id").await,
        ["a", "b", "c"]
    );
}

async fn other_bodies(redis: bool) {
    let line = Line::new(1, 1).await;
    let body = |id: &str, n: u32| Record::new(id, format!("{{\"n\": {n}}}"));
    let three = [
        Record::good("first"),
        body("a", 1),
        body("a", 2),
        body("a", 1),
        Record::good("last"),
    ];
    line.send(0, &three);
    let config = line.config(redis, "[dedup]\ndetect_conflicts = true\n");
    line.consume(&config, 5).await;
    let expected = outcomes(&[("applied", 3), ("duplicate_batch", 2), ("conflicts", 1)]);
    assert_eq!(line.outcomes().await, expected, "three times in one batch");
    assert_eq!(line.transactions().await, 1);
    let bodies = "select payload->>'n' from onceonly.event where event_id = 'a'";
    assert_eq!(line.texts(bodies).await, ["1"], "the first one is applied");

    // By Redis or by the ledger the same.
    line.send(0, &[body("a", 3), body("b", 1), body("a", 1)]);
    line.consume(&config, 8).await;
    let layer = if redis {
        "duplicate_redis"
    } else {
        "duplicate_ledger"
    };
    let mut expected = outcomes(&[("applied", 4), ("duplicate_batch", 3), ("conflicts", 2)]);
    expected.insert(layer, 1);
    assert_eq!(line.outcomes().await, expected);
    assert_eq!(line.texts(bodies).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_with_another_body_is_a_duplicate_and_a_conflict() {
    let mut cases = JoinSet::new();
    cases.spawn(other_bodies(false));
    cases.spawn(other_bodies(true));
    cases.join_all().await;
}

async fn two_topics(redis: bool, scope: &'static str, applied: i64) {
    let line = Line::new(2, 1).await;
    line.send_to(0, 0, &[Record::good("a"), Record::good("both")]);
    line.send_to(1, 0, &[Record::good("both"), Record::good("b")]);
    let more = format!("[identity]\nscope = \"{scope}\"\n");
    let config = line.config(redis, &more);
    line.consume(&config, 4).await;
    let counts = line.outcomes().await;
    assert_eq!(counts.get("applied"), Some(&applied), "{scope}: {counts:?}");
    let mut effects = vec!["a", "b", "both", "both"];
    effects.truncate(applied as usize);
    assert_eq!(line.effects().await, effects, "{scope}");

    // A second time everything is known on its own topic.
    line.send_to(0, 0, &[Record::good("both")]);
    line.send_to(1, 0, &[Record::good("both")]);
    line.consume(&config, 6).await;
    assert_eq!(line.effects().await, effects, "{scope}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_on_two_topics_is_one_event_or_two_by_scope() {
    let mut cases = JoinSet::new();
    cases.spawn(two_topics(false, "pipeline", 3));
    cases.spawn(two_topics(true, "pipeline", 3));
    cases.spawn(two_topics(false, "topic", 4));
    cases.spawn(two_topics(true, "topic", 4));
    cases.join_all().await;
}

async fn two_partitions(redis: bool, mark: &'static str) {
    const IDS: usize = 2_000;

    let line = Line::new(1, 2).await;
    let records: Vec<_> = (0..IDS).map(|n| Record::good(&format!("{n:04}"))).collect();
    // Two workers, small batches: the same ids are in work on both at once.
    let reversed: Vec<_> = records.iter().rev().cloned().collect();
    line.send(0, &records);
    line.send(1, &reversed);
    let more = format!("[dedup]\nmark = \"{mark}\"\n[limits]\nworkers = 2\n");
    let config = line.config(redis, &more);
    line.consume(&config, 2 * IDS as i64).await;
    let expected: Vec<_> = (0..IDS).map(|n| format!("{n:04}")).collect();
    assert_eq!(line.effects().await, expected, "redis {redis}, mark {mark}");
    let counts = line.outcomes().await;
    assert_eq!(counts.get("applied"), Some(&(IDS as i64)), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_in_two_partitions_at_once_have_one_effect() {
    let mut cases = JoinSet::new();
    cases.spawn(two_partitions(false, "after"));
    cases.spawn(two_partitions(true, "after"));
    cases.spawn(two_partitions(true, "before"));
    cases.join_all().await;
}
