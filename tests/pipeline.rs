//! The whole line on real services: Kafka in, Postgres out, Redis beside it.

mod support;

use std::time::{Duration, Instant};

use onceonly::config::Config;
use onceonly::error::Error;
use onceonly::handler::{Handler, NewEvents};
use onceonly::member::Member;
use onceonly::outcome::{Layer, Outcome};
use sqlx::PgConnection;
use support::database::Database;
use tokio_util::sync::CancellationToken;

struct Insert;

impl Handler for Insert {
    fn name(&self) -> &str {
        "insert"
    }

    async fn handle(&self, tx: &mut PgConnection, events: &NewEvents<'_>) -> Result<(), Error> {
        let ids: Vec<&str> = events.iter().map(|event| event.id).collect();
        sqlx::query("insert into effect (id) select unnest($1::text[])")
            .bind(ids)
            .execute(tx)
            .await
            .map_err(|error| Error::postgres("insert effects", error))?;
        Ok(())
    }
}

fn config(database: &Database, topic: &str, more: &str) -> Config {
    let text = format!(
        "pipeline = \"orders\"\n[kafka]\nbrokers = \"{}\"\ntopics = [\"{topic}\"]\ngroup = \"{topic}\"\nstart = \"earliest\"\n[postgres]\nurl = \"{}\"\n{more}",
        support::brokers(),
        database.url(),
    );
    Config::from_toml(&text).unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_has_one_effect_and_outcomes_add_up() {
    let database = Database::migrated().await;
    database.run("create table effect (id text)").await;
    let topic = support::topic("line", 3).await;
    let redis = format!("[redis]\nurl = \"{}\"\n", support::service("REDIS_URL"));
    let member = Member::join(&config(&database, &topic, &redis), Insert).expect("a member");
    let health = member.health();
    let end = CancellationToken::new();
    let running = tokio::spawn(member.run(end.clone()));
    let producer = support::producer(&support::brokers(), &[]);
    for number in 0..1000 {
        let id = format!("id-{}", number % 700);
        producer.send(&topic, number % 3, &id);
    }
    producer.flush();
    let begun = Instant::now();
    while health.tally().total() < 1000 {
        assert!(begun.elapsed() < support::PATIENCE, "{:?}", health.tally());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    end.cancel();
    running.await.expect("no panic").expect("a clean end");
    let (rows, ids): (i64, i64) = (
        database.value("select count(*) from effect").await,
        database
            .value("select count(distinct id) from effect")
            .await,
    );
    assert_eq!((rows, ids), (700, 700));
    assert_eq!(health.tally().get(Outcome::Applied), 700);
    assert_eq!(health.tally().duplicates(), 300);
    assert_eq!(health.tally().get(Outcome::Duplicate(Layer::Position)), 0);
}
