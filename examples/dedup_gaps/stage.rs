//! A topic, a schema and keys of one gap, which nothing else uses.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use onceonly::ledger::postgres::{PostgresSettings, migrate};
use onceonly::outcome::Outcome;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use redis::aio::MultiplexedConnection;
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use super::{EVENTS, naive, once};

const KAFKA_TIMEOUT: Duration = Duration::from_secs(15);

/// How many events had no effect, two or more, and one.
#[derive(Debug)]
pub struct Effects {
    pub lost: usize,
    pub twice: usize,
    pub once: usize,
}

pub struct Stage {
    /// Of topic, schema and pipeline, and the beginning of each id.
    pub name: String,
    pub brokers: String,
    pub redis_url: String,
    pub postgres_url: String,
    postgres: PgPool,
    redis: MultiplexedConnection,
}

fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| {
        format!("{name} is not set: run `make stack-up`, then `eval \"$(compose/stack env)\"`")
    })
}

impl Stage {
    pub async fn new() -> anyhow::Result<Self> {
        let (brokers, redis_url) = (variable("KAFKA_BROKERS")?, variable("REDIS_URL")?);
        let postgres_url = variable("DATABASE_URL")?;
        let name = format!("gaps_{:08x}", rand::random::<u32>());
        let mut settings = PostgresSettings::new(&postgres_url);
        settings.schema.clone_from(&name);
        migrate(&settings).await?;
        let stage = Self {
            postgres: PgPool::connect(&postgres_url).await?,
            redis: redis::Client::open(redis_url.as_str())?
                .get_multiplexed_async_connection()
                .await?,
            name,
            brokers,
            redis_url,
            postgres_url,
        };
        for table in [naive::TABLE, once::TABLE] {
            // No key: that would be another way of dropping duplicates.
            stage
                .execute(&format!("create table {}.{table} (id text)", stage.name))
                .await?;
        }
        let topic = NewTopic::new(&stage.name, 1, TopicReplication::Fixed(1));
        let answers = stage
            .admin()?
            .create_topics([&topic], &AdminOptions::new())
            .await?;
        for answer in answers {
            answer.map_err(|(_, code)| anyhow::anyhow!("cannot create a topic: {code}"))?;
        }
        Ok(stage)
    }

    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    fn admin(&self) -> anyhow::Result<AdminClient<DefaultClientContext>> {
        Ok(self.client().create()?)
    }

    /// Takes away everything that it made.
    pub async fn clear(&self) -> anyhow::Result<()> {
        self.lose_redis().await?;
        self.execute(&format!("drop schema {} cascade", self.name))
            .await?;
        self.admin()?
            .delete_topics(&[&self.name], &AdminOptions::new())
            .await?;
        Ok(())
    }

    /// Sends events and waits until they are in the log.
    pub fn send(&self, numbers: Range<usize>) -> anyhow::Result<()> {
        let producer: ThreadedProducer<DefaultProducerContext> = self.client().create()?;
        for number in numbers {
            let id = self.id(number);
            let header = Header {
                key: "event-id",
                value: Some(&id),
            };
            let record = BaseRecord::<str, str>::to(&self.name)
                .partition(0)
                .payload("{}")
                .headers(OwnedHeaders::new().insert(header));
            producer.send(record).map_err(|(error, _)| error)?;
        }
        tokio::task::block_in_place(|| producer.flush(KAFKA_TIMEOUT))?;
        Ok(())
    }

    fn id(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    async fn execute(&self, statement: &str) -> anyhow::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&self.postgres)
            .await?;
        Ok(())
    }

    /// The naive consumer's effect: a transaction of its own.
    pub async fn insert(&self, table: &str, id: &str) -> anyhow::Result<()> {
        let statement = format!("insert into {}.{table} (id) values ($1)", self.name);
        sqlx::query(AssertSqlSafe(statement))
            .bind(id)
            .execute(&self.postgres)
            .await?;
        Ok(())
    }

    /// The naive consumer's mark. Returns whether the id was new.
    pub async fn set_nx(&self, id: &str, ttl: Duration) -> anyhow::Result<bool> {
        let set: Option<String> = redis::cmd("SET")
            .arg(format!("event:{id}"))
            .arg(1)
            .arg("NX")
            .arg("EX")
            .arg(ttl.as_secs())
            .query_async(&mut self.redis.clone())
            .await?;
        Ok(set.is_some())
    }

    pub async fn is_set(&self, id: &str) -> anyhow::Result<bool> {
        let exists = redis::cmd("EXISTS")
            .arg(format!("event:{id}"))
            .query_async(&mut self.redis.clone())
            .await?;
        Ok(exists)
    }

    /// As a Redis that comes back without its data: every key of this stage is gone.
    pub async fn lose_redis(&self) -> anyhow::Result<()> {
        let mut redis = self.redis.clone();
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("*{}*", self.name))
            .query_async(&mut redis)
            .await?;
        if !keys.is_empty() {
            let () = redis::cmd("DEL").arg(keys).query_async(&mut redis).await?;
        }
        Ok(())
    }

    /// Records of onceonly that have an outcome.
    pub async fn outcomes(&self) -> anyhow::Result<i64> {
        let names = Outcome::ALL.map(Outcome::name).join(" + ");
        let query = format!(
            "select coalesce(sum({names}), 0)::bigint from {}.position",
            self.name
        );
        let row = sqlx::query(AssertSqlSafe(query))
            .fetch_one(&self.postgres)
            .await?;
        Ok(row.try_get(0)?)
    }

    /// What became of the events.
    pub async fn effects(&self, table: &str) -> anyhow::Result<Effects> {
        let query = format!(
            "select count(*) filter (where effects = 0), count(*) filter (where effects > 1), \
             count(*) filter (where effects = 1) from ( \
                 select e.id, count(t.id) as effects from unnest($1::text[]) as e(id) \
                 left join {}.{table} t on t.id = e.id group by e.id) counted",
            self.name
        );
        let ids: Vec<String> = (0..EVENTS).map(|number| self.id(number)).collect();
        let row = sqlx::query(AssertSqlSafe(query))
            .bind(ids)
            .fetch_one(&self.postgres)
            .await?;
        let count = |index| row.try_get::<i64, _>(index).map(|count| count as usize);
        Ok(Effects {
            lost: count(0)?,
            twice: count(1)?,
            once: count(2)?,
        })
    }
}
