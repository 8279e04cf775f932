use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::event::{Batch, Incoming, TopicPartition};

type Headers<'a> = &'a [(&'a str, Option<&'a [u8]>)];

fn identity(from: &str) -> Identity {
    Identity {
        from: from.parse().unwrap(),
        scope: Scope::Pipeline,
        on_missing: OnMissing::DeadLetter,
    }
}

fn batch(key: Option<&[u8]>, headers: Headers<'_>, payload: Option<&[u8]>) -> Batch {
    let mut batch = Batch::new();
    let slot = batch.slice(&TopicPartition::new("orders", 3), 1);
    let record = Incoming {
        offset: 42,
        timestamp_ms: None,
        key,
        payload,
    };
    batch.push(slot, record, headers.iter().copied());
    batch
}

/// The id's text, or why there is none.
fn id_of(identity: &Identity, batch: &Batch) -> Result<String, &'static str> {
    let mut ids = Ids::default();
    identity.identify(batch.event(0), None, &mut ids);
    match ids.found(0) {
        Found::Id => {
            assert_eq!(ids.key(0), identity.key_of(ids.text(0), "orders"));
            Ok(ids.text(0).to_owned())
        }
        Found::Place => Ok(ids.text(0).to_owned()),
        Found::Missing(reason) => {
            assert_eq!(ids.text(0), "orders/3/42");
            assert_eq!(ids.key(0), EventKey::of_position(None, "orders", 3, 42));
            Err(reason)
        }
    }
}

fn from_header(headers: Headers<'_>) -> Result<String, &'static str> {
    id_of(&identity("header:event-id"), &batch(None, headers, None))
}

fn from_key(key: Option<&[u8]>) -> Result<String, &'static str> {
    id_of(&identity("key"), &batch(key, &[], None))
}

#[test]
fn the_last_header_of_the_name_is_the_id() {
    assert_eq!(
        from_header(&[
            ("event-id", Some(b"first")),
            ("Event-Id", Some(b"other")),
            ("event-id", Some(b" \xc3\xa9 1 ")),
        ]),
        Ok(" é 1 ".into())
    );
    assert_eq!(
        from_header(&[("event-id", Some(b"a")), ("event-id", None)]),
        Err("the id's header is null")
    );
    assert_eq!(from_header(&[]), Err("the id's header is missing"));
}

#[test]
fn what_is_no_usable_text_is_no_id() {
    for (value, reason) in [
        (&b""[..], "the id is empty"),
        (b" ", "the id is blank"),
        (b" \t\r\n", "the id is blank"),
        ("\u{a0}\u{2003}".as_bytes(), "the id is blank"),
        (b"a\0b", "the id holds a NUL character"),
        (b"\xc3\x28", "the id is not UTF-8 text"),
    ] {
        assert_eq!(from_header(&[("event-id", Some(value))]), Err(reason));
    }
    for json in [
        &br#"{"id":" "}"#[..],
        br#"{"id":""}"#,
        br#"{"id":"a\u0000"}"#,
    ] {
        assert!(id_of(&identity("json:/id"), &batch(None, &[], Some(json))).is_err());
    }
}

#[test]
fn an_id_of_200_kb_is_kept_whole() {
    let id = "x".repeat(200_000);
    let headers = [("event-id", Some(id.as_bytes()))];
    assert_eq!(from_header(&headers), Ok(id.clone()));
}

#[test]
fn a_key_that_is_no_text_is_written_as_bytea() {
    assert_eq!(from_key(Some(b"order-1")), Ok("order-1".into()));
    assert_eq!(
        from_key(Some(b"\x00\x00\x00\x2a")),
        Ok("\\x0000002a".into())
    );
    assert_eq!(from_key(Some(b"\xff\x0e")), Ok("\\xff0e".into()));
    assert_eq!(from_key(Some(b"\\xff0e")), Ok("\\x5c7866663065".into()));
    assert_eq!(from_key(Some(b"0xff0e")), Ok("0xff0e".into()));
    assert_eq!(from_key(Some(b"")), Err("the id is empty"));
    assert_eq!(from_key(Some(b"  ")), Err("the id is blank"));
    assert_eq!(from_key(None), Err("the record's key is null"));
}

#[test]
fn a_json_string_and_a_number_of_the_same_text_are_the_same_id() {
    let identity = identity("json:/id");
    let id = |json: &str| id_of(&identity, &batch(None, &[], Some(json.as_bytes())));
    assert_eq!(id(r#"{"id":"1"}"#), id(r#"{"id":1}"#));
    let distinct: HashSet<_> = [
        "9007199254740993",
        "9007199254740992",
        "1e3",
        "1000",
        "-0",
        "0",
    ]
    .map(|number| id(&format!(r#"{{"id":{number}}}"#)).unwrap())
    .into_iter()
    .collect();
    assert_eq!(distinct.len(), 6);
}

#[test]
fn a_payload_that_is_null_or_empty_has_no_id() {
    for from in ["json:/id", "payload"] {
        let null = id_of(&identity(from), &batch(None, &[], None));
        assert_eq!(
            null,
            Err("the id is looked for in the payload, which is null")
        );
        let empty = id_of(&identity(from), &batch(None, &[], Some(b"")));
        assert_eq!(
            empty,
            Err("the id is looked for in the payload, which is empty")
        );
    }
}

#[test]
fn equal_payloads_are_one_event() {
    let identity = identity("payload");
    let id = |payload: &[u8], key: &[u8]| id_of(&identity, &batch(Some(key), &[], Some(payload)));
    assert_eq!(id(b"a", b"1"), id(b"a", b"2"));
    assert_ne!(id(b"a", b"1"), id(b"b", b"1"));
    assert_eq!(id(b"a", b"1").unwrap().len(), 64);
}

#[test]
fn a_cloudevent_is_known_by_source_and_id_in_either_mode() {
    let identity = identity("cloudevents");
    let binary: Headers<'_> = &[
        ("ce_specversion", Some(b"1.0")),
        ("ce_source", Some(b"/shop")),
        ("ce_id", Some(b"A 1")),
        ("content-type", Some(b"application/json")),
    ];
    let structured: Headers<'_> = &[(
        "Content-Type",
        Some(b"Application/CloudEvents+JSON; charset=utf-8"),
    )];
    let payload = br#"{"specversion":"1.0","id":"A 1","source":"/shop","data":{"id":"no"}}"#;
    let id = Ok("/shop A 1".to_owned());
    assert_eq!(id_of(&identity, &batch(None, binary, Some(b"{}"))), id);
    assert_eq!(
        id_of(&identity, &batch(None, structured, Some(payload))),
        id
    );
    assert_eq!(id_of(&identity, &batch(None, &[], Some(payload))), id);
}

#[test]
fn source_and_id_of_a_cloudevent_do_not_flow_into_each_other() {
    let identity = identity("cloudevents");
    let id = |source: &'static [u8], id: &'static [u8]| {
        let headers = [("ce_source", Some(source)), ("ce_id", Some(id))];
        id_of(&identity, &batch(None, &headers, None)).unwrap()
    };
    assert_ne!(id(b"a b", b"c"), id(b"a", b"b c"));
    assert_eq!(id(b"a b", b"c"), "a%20b c");
}

#[test]
fn half_a_cloudevent_has_no_id() {
    let identity = identity("cloudevents");
    let headers: [Headers<'_>; 3] = [
        &[("ce_id", Some(b"1"))],
        &[("ce_source", Some(b"/a"))],
        &[("ce_id", Some(b"1")), ("ce_source", Some(b""))],
    ];
    for headers in headers {
        let payload = br#"{"id":"1","source":"/a"}"#;
        assert!(id_of(&identity, &batch(None, headers, Some(payload))).is_err());
    }
    for json in [
        &br#"{"id":"1"}"#[..],
        br#"{"source":"/a"}"#,
        br#"{"id":1,"source":"/a"}"#,
        br#"{"id":" ","source":"/a"}"#,
        br#"[]"#,
    ] {
        assert!(id_of(&identity, &batch(None, &[], Some(json))).is_err());
    }
}

#[test]
fn a_position_belongs_to_one_incarnation_of_its_topic() {
    let identity = identity("position");
    let batch = batch(None, &[], None);
    let mut ids = Ids::default();
    for topic_id in [None, Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2))] {
        identity.identify(batch.event(0), topic_id, &mut ids);
    }
    let keys: HashSet<_> = (0..3).map(|i| ids.key(i)).collect();
    assert_eq!(keys.len(), 3);
    assert!((0..3).all(|i| ids.text(i) == "orders/3/42" && ids.found(i) == Found::Place));
}

#[test]
fn a_missing_id_can_give_way_to_the_position() {
    let identity = Identity {
        on_missing: OnMissing::Position,
        ..identity("key")
    };
    let mut ids = Ids::default();
    identity.identify(batch(None, &[], None).event(0), None, &mut ids);
    identity.identify(batch(Some(b"a\0"), &[], None).event(0), None, &mut ids);
    identity.identify(batch(Some(b" "), &[], None).event(0), None, &mut ids);
    let texts = [ids.text(0), ids.text(1), ids.text(2)];
    assert_eq!(texts, ["orders/3/42", "\\x6100", "orders/3/42"]);
    let found = [ids.found(0), ids.found(1), ids.found(2)];
    assert_eq!(found, [Found::Place, Found::Id, Found::Place]);
    assert_eq!(ids.key(0), EventKey::of_position(None, "orders", 3, 42));
}

#[test]
fn the_scope_decides_whether_an_id_on_two_topics_is_one_event() {
    let mut identity = identity("key");
    assert_eq!(identity.key_of("a", "x"), identity.key_of("a", "y"));
    identity.scope = Scope::Topic;
    assert_ne!(identity.key_of("a", "x"), identity.key_of("a", "y"));
}

#[test]
fn a_source_reads_back_as_it_is_written() {
    for text in [
        "header:event-id",
        "header:a:b",
        "key",
        "json:/a~1b/0/~0",
        "cloudevents",
        "position",
        "payload",
    ] {
        assert_eq!(text.parse::<IdSource>().unwrap().to_string(), text);
    }
    for text in ["", "header", "header:", "json:id", "json:", "Key", "body"] {
        assert!(text.parse::<IdSource>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn distinct_kafka_keys_are_distinct_events(
        a in prop::collection::vec(any::<u8>(), 1..20),
        b in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let escaped = from_key(Some(&a)).map(|text| from_key(Some(text.as_bytes())));
        if let Ok(escaped) = escaped {
            let same = from_key(Some(&a)) == escaped;
            prop_assert_eq!(same, std::str::from_utf8(&a).is_ok_and(|a| !a.starts_with("\\x") && !a.contains('\0')));
        }
        if let (Ok(x), Ok(y)) = (from_key(Some(&a)), from_key(Some(&b))) {
            prop_assert_eq!(a == b, x == y);
        }
    }

    #[test]
    fn no_record_is_too_strange(
        key in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
    ) {
        let headers = [("event-id", payload.as_deref()), ("ce_id", key.as_deref())];
        for from in ["header:event-id", "key", "json:/a", "cloudevents", "position", "payload"] {
            let batch = batch(key.as_deref(), &headers, payload.as_deref());
            let _ = id_of(&identity(from), &batch);
        }
    }
}
