//! Looking ids up in every table at once, and noting what was found out, for commands.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr, Statement};
use uuid::Uuid;

use super::session::{Session, get, within};
use super::settings::PostgresSettings;
use crate::error::Error;
use crate::identity::EventKey;
use crate::ledger::id_state::{Known, State};

const READ_ONLY: &str = include_str!("../../../sql/verify/read_only.sql");
const CREATE_SEEN: &str = include_str!("../../../sql/verify/create_seen.sql");
const STATES: &str = include_str!("../../../sql/verify/states.sql");
const STATES_AND_EFFECTS: &str = include_str!("../../../sql/verify/states_and_effects.sql");
const NOTE: &str = include_str!("../../../sql/verify/note.sql");
const RENOTE: &str = include_str!("../../../sql/verify/renote.sql");
const RECALL: &str = include_str!("../../../sql/verify/recall.sql");
const COMPARE: &str = include_str!("../../../sql/verify/compare.sql");
const FETCH_SUSPECTS: &str = include_str!("../../../sql/verify/fetch_suspects.sql");
const STRANGERS: &str = include_str!("../../../sql/verify/strangers.sql");
const FETCH_STRANGERS: &str = include_str!("../../../sql/verify/fetch_strangers.sql");
const TALLY: &str = include_str!("../../../sql/verify/tally.sql");
const FINDINGS: &str = include_str!("../../../sql/verify/findings.sql");

/// Stands in our statements for the user's query of effects.
const NO_EFFECTS: &str = "select null::text where false";

/// Effects are compared in one statement, however many there are.
const STATEMENT_TIMEOUT: Duration = Duration::from_hours(6);

/// A session that compares ids with the tables. It notes what it finds in a temporary table, and
/// can write nowhere else.
pub(crate) struct Comparison {
    session: Session,
    /// The user's query.
    effects: Option<String>,
}

/// An id with what was found, and the record it was found with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) key: EventKey,
    pub(crate) id: String,
    /// Topic, partition and offset.
    pub(crate) record: Option<(String, i32, i64)>,
    pub(crate) state: State,
}

/// An id whose effects do not agree with the state that was noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) key: EventKey,
    pub(crate) id: String,
    pub(crate) state: State,
}

impl Comparison {
    /// Connects. Fatal where `effects` is no query of one column.
    pub(crate) async fn open(
        settings: &PostgresSettings,
        pipeline: &str,
        effects: Option<&str>,
    ) -> Result<Self, Error> {
        let mut settings = settings.clone();
        settings.statement_timeout = STATEMENT_TIMEOUT;
        let mut session = Session::open(&settings, pipeline, false).await?;
        let query = session.sql.query(CREATE_SEEN);
        session.execute("create a temporary table", query).await?;
        let query = session.sql.query(READ_ONLY);
        session
            .fetch_one("make the session read only", query)
            .await?;
        let effects = effects.map(|query| query.trim().trim_end_matches(';').to_owned());
        Ok(Self { session, effects })
    }

    /// Refuses a query of effects that cannot be used, before anything is read.
    pub(crate) async fn check_effects(&mut self) -> Result<(), Error> {
        let Some(query) = self.effects.clone() else {
            return Ok(());
        };
        let statement = AssertSqlSafe(query).into_sql_str();
        let limit = self.session.answer_timeout;
        let prepared = self.session.connection.prepare(statement);
        let columns = within(limit, "--effects", prepared).await?.columns().len();
        if columns != 1 {
            return Err(Error::fatal(format!(
                "--effects: the query returns {columns} columns; it must return one, the event's \
                 id, and a row for each effect"
            )));
        }
        // As it will be used: inside of another query, compared as text.
        let statement = self.with_effects(STATES_AND_EFFECTS);
        let prepared = self.session.connection.prepare(statement.into_sql_str());
        within(limit, "--effects", prepared).await.map(drop)
    }

    /// A statement with the user's query in it. A comment at its end must not reach further.
    fn with_effects(&self, statement: &str) -> AssertSqlSafe<String> {
        let query = self.effects.as_deref().unwrap_or(NO_EFFECTS);
        let rendered = self.session.sql.render(statement);
        AssertSqlSafe(rendered.replace(NO_EFFECTS, &format!("\n{query}\n")))
    }

    /// What the tables know of ids, in one snapshot.
    pub(crate) async fn states(&mut self, keys: &[EventKey]) -> Result<Vec<Known>, Error> {
        let query = self.session.query(STATES).bind(uuids(keys));
        let row = self.session.fetch_one("look up ids", query).await?;
        known(keys, &row)
    }

    /// What the tables know of ids, each with its effects, in one snapshot.
    pub(crate) async fn states_and_effects(
        &mut self,
        ids: &[(EventKey, String)],
    ) -> Result<Vec<(Known, i64)>, Error> {
        let keys: Vec<EventKey> = ids.iter().map(|(key, _)| *key).collect();
        let texts: Vec<&str> = ids.iter().map(|(_, id)| &**id).collect();
        let query = sqlx::query(self.with_effects(STATES_AND_EFFECTS));
        let query = query.bind(self.session.pipeline_id);
        let query = query.bind(uuids(&keys)).bind(texts);
        let row = (self.session)
            .fetch_one("look up ids and effects", query)
            .await?;
        let effects: Vec<String> = get(&row, "effects")?;
        let copies: Vec<i64> = get(&row, "copies")?;
        let copies: HashMap<String, i64> = effects.into_iter().zip(copies).collect();
        let known = known(&keys, &row)?.into_iter().zip(ids);
        Ok(known
            .map(|(known, (_, id))| (known, copies.get(id).copied().unwrap_or(0)))
            .collect())
    }

    /// Notes ids that were not noted before; keys must not repeat.
    pub(crate) async fn note(&mut self, ids: &[Noted]) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let record = |noted: &Noted| noted.record.clone();
        let records = || ids.iter().map(record);
        let (topics, offsets): (Vec<_>, Vec<_>) = records()
            .map(|record| {
                record.map_or((None, None), |(topic, _, offset)| {
                    (Some(topic), Some(offset))
                })
            })
            .unzip();
        let partitions: Vec<Option<i32>> = records().map(|r| r.map(|(_, p, _)| p)).collect();
        let query = (self.session.sql.query(NOTE))
            .bind(ids.iter().map(|noted| noted.key.0).collect::<Vec<Uuid>>())
            .bind(ids.iter().map(|noted| &*noted.id).collect::<Vec<&str>>())
            .bind(topics)
            .bind(partitions)
            .bind(offsets)
            .bind(ids.iter().map(|n| n.state.name()).collect::<Vec<&str>>());
        self.session.fetch_one("note ids", query).await.map(drop)
    }

    /// Corrects what was noted.
    pub(crate) async fn renote(&mut self, states: &[(EventKey, State)]) -> Result<(), Error> {
        let query = (self.session.sql.query(RENOTE))
            .bind(states.iter().map(|(key, _)| key.0).collect::<Vec<Uuid>>())
            .bind(states.iter().map(|(_, s)| s.name()).collect::<Vec<&str>>());
        self.session.execute("note ids", query).await.map(drop)
    }

    /// Takes ids for forgotten that were noted as missing.
    pub(crate) async fn recall(&mut self, keys: &[EventKey]) -> Result<(), Error> {
        let query = self.session.sql.query(RECALL).bind(uuids(keys));
        self.session.execute("note ids", query).await.map(drop)
    }

    /// Compares the ids noted with the effects. What does not agree is fetched afterwards.
    pub(crate) async fn compare_effects(&mut self) -> Result<(), Error> {
        let query = sqlx::query(self.with_effects(COMPARE));
        self.session
            .execute("compare effects", query)
            .await
            .map(drop)
    }

    /// The next ids whose effects do not agree; none at the end.
    pub(crate) async fn suspects(&mut self) -> Result<Vec<Suspect>, Error> {
        let rows = self.session.raw("compare effects", FETCH_SUSPECTS).await?;
        let suspect = |row: &PgRow| {
            Ok(Suspect {
                key: EventKey(get(row, "event_key")?),
                id: get(row, "event_id")?,
                state: state(row)?,
            })
        };
        rows.iter().map(suspect).collect()
    }

    /// Looks for effects of ids that were not noted. They are fetched afterwards.
    pub(crate) async fn find_strangers(&mut self) -> Result<(), Error> {
        let query = sqlx::query(self.with_effects(STRANGERS));
        self.session
            .execute("look for effects", query)
            .await
            .map(drop)
    }

    /// The next ids with an effect that were not noted; none at the end.
    pub(crate) async fn strangers(&mut self) -> Result<Vec<String>, Error> {
        let rows = self
            .session
            .raw("look for effects", FETCH_STRANGERS)
            .await?;
        rows.iter().map(|row| get(row, "event_id")).collect()
    }

    /// How many ids were noted in each state.
    pub(crate) async fn tally(&mut self) -> Result<HashMap<&'static str, u64>, Error> {
        let query = self.session.sql.query(TALLY);
        let rows = self.session.fetch_all("count ids", query).await?;
        let one = |row: &PgRow| {
            let ids: i64 = get(row, "ids")?;
            Ok((state(row)?.name(), ids.unsigned_abs()))
        };
        rows.iter().map(one).collect()
    }

    /// The first ids of these states.
    pub(crate) async fn findings(
        &mut self,
        states: &[State],
        limit: usize,
    ) -> Result<Vec<Noted>, Error> {
        let names: Vec<&str> = states.iter().map(|state| state.name()).collect();
        let query = self.session.sql.query(FINDINGS).bind(names);
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.session.fetch_all("read findings", query).await?;
        rows.iter().map(noted).collect()
    }
}

fn uuids(keys: &[EventKey]) -> Vec<Uuid> {
    keys.iter().map(|key| key.0).collect()
}

fn known(keys: &[EventKey], row: &PgRow) -> Result<Vec<Known>, Error> {
    let column = |name| Ok(get::<Vec<Uuid>>(row, name)?.into_iter().collect());
    let in_ledger: HashSet<Uuid> = column("in_ledger")?;
    let waiting: HashSet<Uuid> = column("waiting")?;
    let dead: HashSet<Uuid> = column("dead")?;
    let known = |key: &EventKey| Known {
        in_ledger: in_ledger.contains(&key.0),
        waiting: waiting.contains(&key.0),
        dead: dead.contains(&key.0),
    };
    Ok(keys.iter().map(known).collect())
}

fn state(row: &PgRow) -> Result<State, Error> {
    let name: &str = get(row, "state")?;
    State::named(name).ok_or_else(|| Error::fatal(format!("{name:?} is no state of an id")))
}

fn noted(row: &PgRow) -> Result<Noted, Error> {
    let topic: Option<String> = get(row, "kafka_topic")?;
    let partition: Option<i32> = get(row, "kafka_partition")?;
    let offset: Option<i64> = get(row, "kafka_offset")?;
    let place = topic.zip(partition).zip(offset);
    Ok(Noted {
        key: EventKey(get(row, "event_key")?),
        id: get(row, "event_id")?,
        record: place.map(|((topic, partition), offset)| (topic, partition, offset)),
        state: state(row)?,
    })
}
