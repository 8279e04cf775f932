//! What is read from file, variables and flags, and what is refused with which words.

use std::net::SocketAddr;
use std::time::Duration;

use onceonly::config::{
    Config, ConfigError, DedupMode, EXAMPLE, Guarantee, HandlerKind, Layers, Layout, Mark, OnDead,
    OnTombstone, Order, PayloadKind,
};
use onceonly::identity::{IdSource, OnMissing, Scope};
use onceonly::place::{LogPlace, Start};

const MINIMAL: &str = r#"
pipeline = "orders"
[kafka]
brokers = "localhost:9092"
topics = ["orders"]
start = "earliest"
[postgres]
url = "postgres://localhost/app"
"#;

/// The minimal configuration with keys set as flags do.
fn with(keys: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let layers = Layers::new().toml("orders.toml", MINIMAL).unwrap();
    keys.iter()
        .fold(layers, |layers, (key, value)| layers.set(key, *value))
        .config()
}

/// The minimal configuration with more TOML behind.
fn with_toml(more: &str) -> Result<Config, ConfigError> {
    let text = format!("{MINIMAL}\n{more}");
    Layers::new().toml("orders.toml", &text)?.config()
}

fn with_variables(variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variables = variables
        .iter()
        .map(|&(name, value)| (name.into(), value.into()));
    let layers = Layers::new().toml("orders.toml", MINIMAL).unwrap();
    layers.variables(variables)?.config()
}

fn error(result: Result<Config, ConfigError>) -> String {
    result.expect_err("it should be refused").to_string()
}

#[test]
fn what_is_not_said_has_the_documented_default() {
    let config = Config::from_toml(MINIMAL).unwrap();
    assert_eq!(config.group(), "orders");
    assert!(config.redis.is_none() && config.gateway.is_none());
    assert_eq!(config.postgres.schema, "onceonly");
    let identity = config.identity();
    assert_eq!(identity.from, IdSource::Header("event-id".into()));
    assert_eq!(
        (identity.scope, identity.on_missing),
        (Scope::Pipeline, OnMissing::DeadLetter)
    );
    assert_eq!(
        (config.dedup.mode, config.dedup.mark),
        (DedupMode::Enforce, Mark::After)
    );
    assert_eq!(config.dedup.retention, Duration::from_secs(7 * 86_400));
    assert_eq!(
        (config.dedup.generations, config.dedup.detect_conflicts),
        (4, false)
    );
    assert_eq!(config.handler.kind, HandlerKind::Sql);
    assert_eq!(config.handler.statements, Vec::<String>::new());
    assert_eq!(config.handler.payload, PayloadKind::Json);
    assert_eq!(config.handler.on_tombstone, OnTombstone::Skip);
    assert_eq!(
        (config.retry.max_attempts, config.retry.max_dead_in_a_row),
        (8, 100)
    );
    assert_eq!(config.retry.base, Duration::from_secs(1));
    assert_eq!(config.retry.cap, Duration::from_secs(600));
    assert_eq!(
        (config.retry.order, config.retry.order_on_dead),
        (Order::None, OnDead::Release)
    );
    assert_eq!(
        (config.batch.max_events, config.batch.max_bytes),
        (5_000, 8 << 20)
    );
    assert_eq!(config.batch.max_wait, Duration::from_millis(20));
    assert_eq!(
        (config.limits.workers, config.limits.events_per_second),
        (2, 0)
    );
    assert_eq!(
        (config.limits.in_flight_bytes, config.limits.max_event_bytes),
        (64 << 20, 8 << 20)
    );
    assert_eq!(config.http.listen, SocketAddr::from(([127, 0, 0, 1], 9464)));
    assert_eq!(config.shutdown.timeout, Duration::from_secs(20));
    assert!(config.coordination_url().is_none());
    assert!(config.unsupported().is_empty());
}

#[test]
fn redis_has_defaults_and_serves_coordination() {
    let config = with(&[("redis.url", "redis://h:1")]).unwrap();
    assert_eq!(config.coordination_url().unwrap().expose(), "redis://h:1");
    let redis = config.redis.unwrap();
    assert_eq!(
        (redis.timeout, redis.layout),
        (Duration::from_millis(50), Layout::Keys)
    );
    assert_eq!(redis.ttl, Duration::from_secs(86_400));
    let config = with(&[
        ("redis.url", "redis://h:1"),
        ("coordination.redis_url", "redis://h:2"),
    ]);
    assert_eq!(
        config.unwrap().coordination_url().unwrap().expose(),
        "redis://h:2"
    );
}

#[test]
fn a_variable_wins_over_the_file_and_a_flag_over_both() {
    let layers = Layers::new()
        .toml("orders.toml", MINIMAL)
        .unwrap()
        .variables([
            ("ONCEONLY_KAFKA__BROKERS".into(), "variable:1".into()),
            ("ONCEONLY_LIMITS__WORKERS".into(), "3".into()),
        ])
        .unwrap()
        .set("limits.workers", "5");
    let config = layers.config().unwrap();
    assert_eq!(config.kafka.brokers, "variable:1");
    assert_eq!(config.limits.workers, 5);
}

#[test]
fn variables_hold_every_kind_of_value() {
    let config = with_variables(&[
        ("ONCEONLY_PIPELINE", "007"),
        ("ONCEONLY_KAFKA__TOPICS", "orders, payments"),
        ("ONCEONLY_KAFKA__START", "-24h"),
        ("ONCEONLY_KAFKA__PROPERTIES__SECURITY_PROTOCOL", "ssl"),
        ("ONCEONLY_IDENTITY__SCOPE", "topic"),
        ("ONCEONLY_DEDUP__DETECT_CONFLICTS", "true"),
        (
            "ONCEONLY_HANDLER__STATEMENTS",
            "insert into a select 1, 2 from batch",
        ),
        ("ONCEONLY_BATCH__MAX_BYTES", "1MiB"),
        ("ONCEONLY_RETRY__MAX_ATTEMPTS", "3"),
        ("ONCEONLY_HTTP__LISTEN", "127.0.0.1:0"),
    ])
    .unwrap();
    assert_eq!(config.pipeline, "007");
    assert_eq!(config.kafka.topics, ["orders", "payments"]);
    assert_eq!(
        config.kafka.start,
        Start::Place(LogPlace::Ago(Duration::from_secs(86_400)))
    );
    assert_eq!(
        config.kafka.properties.get("security.protocol"),
        Some("ssl")
    );
    assert_eq!(config.identity().scope, Scope::Topic);
    assert!(config.dedup.detect_conflicts);
    assert_eq!(
        config.handler.statements,
        ["insert into a select 1, 2 from batch"]
    );
    assert_eq!(config.batch.max_bytes, 1 << 20);
    assert_eq!(config.retry.max_attempts, 3);
    assert_eq!(config.http.listen.port(), 0);
}

#[test]
fn a_list_in_a_variable_can_be_written_as_toml() {
    let config = with_variables(&[
        ("ONCEONLY_KAFKA__TOPICS", r#"["^a{1,2}", "b"]"#),
        (
            "ONCEONLY_HANDLER__STATEMENTS",
            r#"["insert into a select 1", 'delete from b']"#,
        ),
        ("ONCEONLY_IDENTITY__SCOPE", "topic"),
    ])
    .unwrap();
    assert_eq!(config.kafka.topics, ["^a{1,2}", "b"]);
    assert_eq!(
        config.handler.statements,
        ["insert into a select 1", "delete from b"]
    );
}

#[test]
fn variables_that_are_no_keys_are_left_alone() {
    let config = with_variables(&[
        ("ONCEONLY_LOG", "debug"),
        ("ONCEONLY_LOG_FORMAT", "json"),
        ("ONCEONLY_FENCE", "7"),
        ("ONCEONLY_SERVICE_HOST", "10.0.0.1"),
        ("ONCEONLY_SERVICE_PORT_HTTP", "9464"),
        ("ONCEONLY_PORT", "tcp://10.0.0.1:9464"),
        ("ONCEONLY_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("ONCEONLY_HTTP_SERVICE_HOST", "10.0.0.1"),
        ("HOME", "/root"),
    ]);
    assert_eq!(config.unwrap(), Config::from_toml(MINIMAL).unwrap());
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one_and_the_place() {
    let cases = [
        (
            "[kafak]\nx = 1",
            "orders.toml: unknown key `kafak`; the nearest known one is `kafka`",
        ),
        (
            "[dedup]\nretentoin = \"1d\"",
            "orders.toml: unknown key `dedup.retentoin`; the nearest known one is `dedup.retention`",
        ),
        (
            "[limits]\nretention = \"1d\"",
            "orders.toml: unknown key `limits.retention`; the nearest known one is `dedup.retention`",
        ),
        (
            "[redis]\nurl = \"redis://h\"\nttl_ms = 5",
            "orders.toml: unknown key `redis.ttl_ms`; the nearest known one is `redis.ttl`",
        ),
        (
            "[gateway]\nlisten = \"127.0.0.1:1\"\ntopic = \"a\"",
            "orders.toml: unknown key `gateway.topic`; the nearest known one is `gateway.topics`",
        ),
    ];
    for (more, message) in cases {
        assert_eq!(error(with_toml(more)), message);
    }
}

#[test]
fn an_unknown_variable_is_refused_with_the_nearest_one() {
    assert_eq!(
        error(with_variables(&[("ONCEONLY_KAFKA_BROKERS", "x")])),
        "ONCEONLY_KAFKA_BROKERS: it names the unknown key `kafka_brokers`; the nearest known one is \
         `kafka.brokers`, ONCEONLY_KAFKA__BROKERS"
    );
    assert_eq!(
        error(with_variables(&[("ONCEONLY_DEDUP__MODUS", "x")])),
        "ONCEONLY_DEDUP__MODUS: it names the unknown key `dedup.modus`; the nearest known one is \
         `dedup.mode`, ONCEONLY_DEDUP__MODE"
    );
}

#[test]
fn each_required_key_is_asked_for_by_its_name() {
    let required = [
        "pipeline",
        "kafka.brokers",
        "kafka.topics",
        "kafka.start",
        "postgres.url",
    ];
    for key in required {
        let mut table: toml::Table = MINIMAL.parse().unwrap();
        match key.split_once('.') {
            Some((section, name)) => {
                table[section].as_table_mut().unwrap().remove(name);
            }
            None => {
                table.remove(key);
            }
        }
        let message = error(
            Layers::new()
                .toml("orders.toml", &table.to_string())
                .unwrap()
                .config(),
        );
        assert_eq!(
            message,
            format!("orders.toml: `{key}` is missing; it has no default")
        );
    }
    assert_eq!(
        error(Config::from_toml("pipeline = \"a\"")),
        "the text: `kafka.brokers` is missing; it has no default"
    );
    assert_eq!(
        error(with_toml("[redis]")),
        "orders.toml: `redis.url` is missing; it has no default"
    );
}

#[test]
fn values_of_another_kind_are_refused_with_what_they_should_be() {
    let cases = [
        (
            "dedup.mark",
            "during",
            "`dedup.mark` cannot be `during`; it is one of: after, before",
        ),
        (
            "identity.on_missing",
            "deadletter",
            "`identity.on_missing` cannot be `deadletter`; it is one of: dead-letter, position, skip",
        ),
        (
            "retry.jitter",
            "Full",
            "`retry.jitter` cannot be `Full`; it is one of: full, equal, decorrelated, none",
        ),
        (
            "limits.workers",
            "two",
            "`limits.workers` must be a whole number, zero or more, not the text `two`",
        ),
        (
            "retry.max_attempts",
            "4294967296",
            "`retry.max_attempts` must be a whole number from 0 to 4294967295, not the number 4294967296",
        ),
        (
            "dedup.retention",
            "7",
            "`dedup.retention`: `7` lacks a unit: write 50ms, 20s, 10m or 7d",
        ),
        (
            "batch.max_bytes",
            "8 potatoes",
            "`batch.max_bytes`: `8 potatoes` is no size such as 8MiB, 500kB or 4096",
        ),
        (
            "http.listen",
            "localhost",
            "`http.listen`: `localhost` is no IP address with a port, such as 127.0.0.1:9464",
        ),
        (
            "identity.from",
            "body",
            "`identity.from`: `body` is none of header:NAME, key, json:/pointer, cloudevents, position, payload",
        ),
        (
            "kafka.start",
            "-24",
            "`kafka.start`: `-24`: no offset is negative; a time ago needs a unit, such as -24h",
        ),
    ];
    for (key, value, message) in cases {
        assert_eq!(error(with(&[(key, value)])), format!("a flag: {message}"));
    }
    let message = error(with_toml("[limits]\nworkers = -1"));
    assert!(
        message.starts_with("orders.toml: `limits.workers` must be a whole number"),
        "{message}"
    );
    let message = error(with_toml("[dedup]\nmark = true"));
    assert_eq!(
        message,
        "orders.toml: `dedup.mark` must be a string, not true"
    );
    let message = error(with_toml("[kafka.properties]\na = [1]"));
    assert_eq!(
        message,
        "orders.toml: `kafka.properties.a`: a property is a string, a number, true or false"
    );
    let message = error(with_toml("[dedup]\nretention = 7"));
    assert!(message.contains("lacks a unit"), "{message}");
    let message = error(with_variables(&[("ONCEONLY_KAFKA", "x")]));
    assert_eq!(
        message,
        "ONCEONLY_KAFKA: `kafka` must be a section, not the text `x`"
    );
}

#[test]
fn a_start_can_be_a_number_or_a_time_without_quotes() {
    let time = "2026-01-31T09:00:00+01:00";
    for (value, start) in [
        ("100", LogPlace::Offset(100)),
        (time, LogPlace::Time(time.parse().unwrap())),
        ("\"latest\"", LogPlace::Latest),
    ] {
        let text = MINIMAL.replace("\"earliest\"", value);
        assert_eq!(
            Config::from_toml(&text).unwrap().kafka.start,
            Start::Place(start)
        );
    }
    let text = MINIMAL.replace("\"earliest\"", "{ at = \"latest\" }");
    assert_eq!(
        error(Config::from_toml(&text)),
        "the text: `kafka.start`: must be a string, not a section"
    );
}

#[test]
fn values_that_cannot_work_are_refused_with_a_sentence() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (
            &[("pipeline", "Orders!")],
            "`pipeline` is `Orders!`; a name has",
        ),
        (&[("pipeline", "")], "`pipeline` is ``"),
        (
            &[("kafka.brokers", "a:1,")],
            "`kafka.brokers` has no broker",
        ),
        (&[("kafka.topics", "[]")], "`kafka.topics` names no topic"),
        (
            &[("kafka.topics", "a b")],
            "`kafka.topics` has `a b`, which is no topic's name",
        ),
        (
            &[("kafka.topics", "a,b")],
            "`identity.scope` must be chosen",
        ),
        (
            &[("kafka.topics", "^a.*")],
            "`identity.scope` must be chosen",
        ),
        (
            &[("kafka.topics", "a,a"), ("identity.scope", "topic")],
            "names `a` twice",
        ),
        (&[("kafka.group", " ")], "`kafka.group` is empty"),
        (
            &[("kafka.properties.group.id", "x")],
            "`group.id` in `kafka.properties` is the pipeline's own: set `kafka.group`",
        ),
        (
            &[("kafka.properties.enable.auto.commit", "true")],
            "`enable.auto.commit` in `kafka.properties` is the pipeline's own",
        ),
        (
            &[("kafka.properties.enable.auto.offset.store", "true")],
            "`enable.auto.offset.store` in",
        ),
        (
            &[("kafka.properties.auto.offset.reset", "latest")],
            "set `kafka.start`",
        ),
        (
            &[("kafka.properties.bootstrap.servers", "x")],
            "set `kafka.brokers`",
        ),
        (
            &[("postgres.url", "mysql://h/app")],
            "`postgres.url` must begin with `postgres://`",
        ),
        (
            &[("postgres.url", "postgres://h:port/app")],
            "`postgres.url` is no URL of a database",
        ),
        (
            &[("postgres.schema", "My Schema")],
            "`postgres.schema` is `My Schema`",
        ),
        (
            &[("redis.url", "http://h")],
            "`redis.url` is no URL of a Redis",
        ),
        (
            &[("coordination.redis_url", "h:6379")],
            "`coordination.redis_url` is no URL of a Redis",
        ),
        (
            &[("redis.url", "redis://h"), ("redis.ttl", "8d")],
            "`redis.ttl` is 8d, longer than `dedup.retention`, which is 7d",
        ),
        (
            &[
                ("redis.url", "redis://h"),
                ("redis.ttl", "4d"),
                ("redis.layout", "buckets"),
            ],
            "`redis.ttl` is 4d, and a mark in buckets lives for up to twice that, longer than \
             `dedup.retention`, which is 7d",
        ),
        (
            &[
                ("redis.url", "redis://h"),
                ("redis.layout", "buckets"),
                ("dedup.mark", "before"),
            ],
            "`redis.layout` is \"buckets\", which has no claims, and `dedup.mark = \"before\"` claims \
             every id",
        ),
        (
            &[("redis.url", "redis://h"), ("redis.ttl", "0s")],
            "`redis.ttl` is 0s, and must be from 1s",
        ),
        (
            &[("redis.url", "redis://h"), ("redis.timeout", "0s")],
            "`redis.timeout` is 0s, and must be from 1ms",
        ),
        (
            &[("dedup.retention", "0s")],
            "`dedup.retention` is 0s, and must be from 1s",
        ),
        (
            &[("dedup.generations", "0")],
            "`dedup.generations` is 0, and must be from 1 to 64",
        ),
        (
            &[("handler.statements", r#"["drop table a"]"#)],
            "a statement 1 that begins with `drop`",
        ),
        (
            &[("handler.statements", r#"["select 1", "-- nothing"]"#)],
            "has nothing in statement 2",
        ),
        (
            &[("retry.max_attempts", "0")],
            "`retry.max_attempts` is 0, and must be from 1",
        ),
        (
            &[("retry.base", "0s")],
            "`retry.base` is 0s, and must be from 1ms",
        ),
        (
            &[("retry.base", "1m"), ("retry.cap", "1s")],
            "`retry.cap` is 1s, shorter than `retry.base`, which is 1m",
        ),
        (
            &[("batch.max_events", "0")],
            "`batch.max_events` is 0, and must be from 1",
        ),
        (
            &[("batch.max_bytes", "65MiB")],
            "`batch.max_bytes` is 65.0 MiB, more than `limits.in_flight_bytes`, which is 64.0 MiB",
        ),
        (
            &[("limits.workers", "0")],
            "`limits.workers` is 0, and must be from 1 to 64",
        ),
        (&[("limits.workers", "65")], "`limits.workers` is 65"),
        (
            &[("limits.max_event_bytes", "0")],
            "`limits.max_event_bytes` is 0 B",
        ),
        (
            &[("limits.max_event_bytes", "65MiB")],
            "`limits.max_event_bytes` is 65.0 MiB, more than",
        ),
        (
            &[("gateway.topics", "^a")],
            "`gateway.topics` has `^a`, which is no topic's name",
        ),
        (
            &[("shutdown.timeout", "0s")],
            "`shutdown.timeout` is 0s, and must be from 1s",
        ),
    ];
    for (keys, sentence) in cases {
        let message = error(with(keys));
        assert!(message.contains(sentence), "{keys:?}: {message}");
    }
}

#[test]
fn every_problem_is_told_at_once_and_where_it_was_set() {
    let layers = Layers::new()
        .toml("orders.toml", &format!("{MINIMAL}\n[limits]\nworkers = 0"))
        .unwrap()
        .variables([("ONCEONLY_RETRY__BASE".into(), "0s".into())])
        .unwrap();
    assert_eq!(
        error(layers.config()),
        "the configuration cannot work:\
         \n  - ONCEONLY_RETRY__BASE: `retry.base` is 0s, and must be from 1ms to 30d\
         \n  - orders.toml: `limits.workers` is 0, and must be from 1 to 64"
    );
}

#[test]
fn a_property_without_quotes_is_the_same_property() {
    let quoted =
        with_toml("[kafka.properties]\n\"security.protocol\" = \"ssl\"\n\"fetch.min.bytes\" = 5");
    let bare = with_toml("[kafka.properties]\nsecurity.protocol = \"ssl\"\nfetch.min.bytes = 5");
    let quoted = quoted.unwrap().kafka.properties;
    assert_eq!(quoted, bare.unwrap().kafka.properties);
    assert_eq!(quoted.get("fetch.min.bytes"), Some("5"));
    let owned = error(with_toml("[kafka.properties]\ngroup.id = \"x\""));
    assert!(owned.contains("set `kafka.group`"), "{owned}");
}

#[test]
fn a_secret_can_be_a_file_and_is_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("url");
    std::fs::write(&path, "  postgres://u:hunter2@h/app\n").unwrap();
    let file = format!("file:{}", path.display());
    let config = with(&[
        ("postgres.url", &file),
        ("redis.url", "redis://:hunter2@h"),
        ("kafka.properties.sasl.password", "hunter2"),
    ])
    .unwrap();
    assert_eq!(config.postgres.url.expose(), "postgres://u:hunter2@h/app");
    assert_eq!(
        config.kafka.properties.get("sasl.password"),
        Some("hunter2")
    );
    let shown = format!("{config:?} {}", serde_json::to_string(&config).unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
    let missing = folder.path().join("none");
    let message = error(with(&[(
        "postgres.url",
        &format!("file:{}", missing.display()),
    )]));
    let expected = format!(
        "a flag: `postgres.url`: the file `{}` cannot be read",
        missing.display()
    );
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn no_error_shows_a_password() {
    for url in [
        "postgres://u:hunter2@h:port/app",
        "u:hunter2@h",
        "postgres://u:hunter2@[h/app",
    ] {
        let message = error(with(&[("postgres.url", url), ("redis.url", url)]));
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn a_file_that_is_not_there_or_not_toml_is_named() {
    let message = Layers::new()
        .file("/nowhere/orders.toml".as_ref())
        .expect_err("there is no such file")
        .to_string();
    assert!(
        message
            .starts_with("cannot read the configuration file `/nowhere/orders.toml`: No such file"),
        "{message}"
    );
    let message = error(
        Layers::new()
            .toml("orders.toml", "pipeline = ")
            .and_then(|l| l.config()),
    );
    assert!(
        message.starts_with("orders.toml is not valid TOML: "),
        "{message}"
    );
    assert!(message.contains("line 1"), "{message}");
}

#[test]
fn what_this_version_cannot_run_is_said() {
    for (keys, sentence) in [
        (
            &[("handler.kind", "webhook")][..],
            "`handler.kind = \"webhook\"`",
        ),
        (&[("retry.order", "key")], "`retry.order = \"key\"`"),
        (
            &[("retry.order", "partition")],
            "`retry.order = \"partition\"`",
        ),
    ] {
        let unsupported = with(keys).unwrap().unsupported();
        assert_eq!(unsupported.len(), 1, "{unsupported:?}");
        assert!(unsupported[0].starts_with(sentence), "{unsupported:?}");
    }
}

#[test]
fn the_guarantee_follows_the_knobs() {
    let of = |keys: &[(&str, &str)]| Guarantee::of(&with(keys).unwrap());
    let plain = of(&[]);
    assert!(plain.effects_in_postgres.starts_with("exactly once"));
    assert!(plain.effects_outside.starts_with("not covered"));
    assert!(plain.window.contains("7d"));
    assert!(plain.redis.starts_with("none"));
    assert_eq!(plain.warnings.len(), 1, "{:?}", plain.warnings);
    let before = of(&[("dedup.mark", "before"), ("redis.url", "redis://h")]);
    assert!(before.effects_in_postgres.contains("do the work once"));
    let buckets = of(&[("redis.url", "redis://h"), ("redis.layout", "buckets")]);
    let lives = "of the last 24h (ids in hashes by time, some for up to 2d)";
    assert!(buckets.redis.contains(lives), "{}", buckets.redis);
    assert_eq!(buckets.unsupported, Vec::<String>::new());
    let webhook = ("handler.kind", "webhook");
    let outside = |keys: &[(&str, &str)]| of(keys).effects_outside;
    assert!(outside(&[webhook]).starts_with("at least once"));
    assert!(outside(&[webhook, ("dedup.mark", "before")]).starts_with("at most once"));
    assert_eq!(before.warnings, Vec::<String>::new());
    let key = of(&[("identity.from", "key")]);
    assert!(key.warnings[0].contains("names an entity"));
    let observe = of(&[("dedup.mode", "observe")]);
    assert!(
        observe
            .effects_in_postgres
            .starts_with("once for each record")
    );
    let position = of(&[("identity.from", "position")]);
    assert!(
        position
            .effects_in_postgres
            .starts_with("exactly once for each record")
    );
}

#[test]
fn the_whole_example_passes_without_a_warning() {
    let config = Config::from_toml(EXAMPLE).unwrap();
    let guarantee = Guarantee::of(&config);
    assert_eq!(guarantee.warnings, Vec::<String>::new());
    assert_eq!(guarantee.unsupported, Vec::<String>::new());
}

#[test]
fn derived_defaults_can_be_spelled_out() {
    let config = with(&[("redis.url", "redis://h:1")]).unwrap().resolved();
    assert_eq!(config.kafka.group.as_deref(), Some("orders"));
    assert_eq!(config.identity.scope, Some(Scope::Pipeline));
    assert_eq!(
        config.coordination.redis_url.unwrap().expose(),
        "redis://h:1"
    );
}

#[cfg(feature = "cli")]
mod command {
    use std::path::Path;
    use std::process::{Command, Output};

    use super::*;

    fn onceonly(arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onceonly"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ONCEONLY_") {
                command.env_remove(name);
            }
        }
        command.args(arguments).output().unwrap()
    }

    fn written(folder: &Path, text: &str) -> String {
        let path = folder.join("orders.toml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn the_printed_example_passes_the_check() {
        let folder = tempfile::tempdir().unwrap();
        let example = onceonly(&["config", "example"]);
        assert_eq!(
            (example.status.code(), text(&example.stdout)),
            (Some(0), EXAMPLE.into())
        );
        let path = written(folder.path(), EXAMPLE);
        let check = onceonly(&["config", "check", "--config", &path]);
        assert_eq!(check.status.code(), Some(0), "{}", text(&check.stderr));
        let said = text(&check.stdout);
        assert!(said.contains("exactly once"), "{said}");
        assert!(said.contains("remembered for at least 7d"), "{said}");
        assert_eq!(text(&check.stderr), "");
    }

    #[test]
    fn the_check_reports_as_one_json_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), MINIMAL);
        let arguments = ["config", "check", "--config", &path, "--json"];
        let check = onceonly(&arguments);
        assert_eq!(check.status.code(), Some(0));
        let report: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(report["valid"], true);
        assert_eq!(report["config"]["kafka"]["group"], "orders");
        let check = onceonly(&[&arguments[..], &["--set", "limits.workers=0"]].concat());
        assert_eq!(check.status.code(), Some(2));
        let report: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(report["valid"], false);
        let problem = "a flag: `limits.workers` is 0, and must be from 1 to 64";
        assert_eq!(report["problems"], serde_json::json!([problem]));
    }

    #[test]
    fn a_wrong_configuration_or_usage_ends_with_2() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(
            folder.path(),
            &format!("{MINIMAL}[dedup]\nmakr = \"after\""),
        );
        let cases: &[(&[&str], &str)] = &[
            (
                &["config", "check", "--config", &path],
                "unknown key `dedup.makr`; the nearest known one is `dedup.mark`",
            ),
            (
                &["config", "check", "--config", "/nowhere.toml"],
                "error: cannot read the configuration file `/nowhere.toml`: No such file or directory",
            ),
            (&["config", "check"], "error: no --config FILE was given"),
            (&["config", "chekc"], "unrecognized subcommand"),
            (&["config", "check", "--set", "x"], "write KEY=VALUE"),
        ];
        for (arguments, message) in cases {
            let output = onceonly(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            let said = text(&output.stderr);
            assert!(said.contains(message), "{arguments:?}: {said}");
            assert_eq!(text(&output.stdout), "", "{arguments:?}");
        }
    }
}
