//! The statements in `sql/`, with the names that this process uses.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::error::Error;

/// Longer names would be cut off by Postgres where a suffix is added.
const SCHEMA_MAX_BYTES: usize = 48;

/// Writes the schema, and the ledger's current table, into statements.
///
/// The files say `onceonly.`, and `ledger_0` for the generation that is written to, `ledger_oldest`
/// for the oldest that is looked into, `ledger_older` for all that are looked into but not written
/// to, and `ledger_every` for all of these.
#[derive(Clone, Debug)]
pub struct Sql {
    schema: String,
    ledger: Option<(i32, Generations)>,
}

/// The generations of a ledger that a claim uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generations {
    /// The first one that is looked into.
    pub oldest: i32,
    /// The one that is written to.
    pub current: i32,
    /// In the middle of a rotation: written to as well.
    pub next: Option<i32>,
}

impl Generations {
    /// A single one.
    pub fn only(generation: i32) -> Self {
        Self {
            oldest: generation,
            current: generation,
            next: None,
        }
    }
}

/// One generation's rows, to be put together with those of others.
const GENERATION: &str = include_str!("../../../sql/ledger/generation.sql");

impl Sql {
    /// For a schema, whose name must be a plain lower-case identifier.
    pub fn new(schema: &str) -> Result<Self, Error> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let fits = !schema.is_empty() && schema.len() <= SCHEMA_MAX_BYTES;
        if !fits || !schema.bytes().all(plain) || schema.as_bytes()[0].is_ascii_digit() {
            return Err(Error::fatal(format!(
                "postgres.schema {schema:?} cannot be used: a schema is at most {SCHEMA_MAX_BYTES} \
                 letters a-z, digits and underscores, and begins with a letter"
            )));
        }
        Ok(Self {
            schema: schema.to_owned(),
            ledger: None,
        })
    }

    /// The same with the table of a pipeline's generation.
    pub fn with_generation(self, pipeline_id: i32, generation: i32) -> Self {
        self.with_generations(pipeline_id, Generations::only(generation))
    }

    /// The same with the tables of a pipeline's generations.
    pub fn with_generations(mut self, pipeline_id: i32, generations: Generations) -> Self {
        self.ledger = Some((pipeline_id, generations));
        self
    }

    /// The schema's name, as it can stand in a statement.
    pub fn schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }

    /// A statement's text.
    pub fn render(&self, statement: &str) -> String {
        let text = match self.ledger {
            Some((pipeline, generations)) => name_tables(statement, pipeline, generations),
            None => statement.to_owned(),
        };
        if self.schema == "onceonly" {
            return text;
        }
        text.replace("onceonly.", &format!("\"{}\".", self.schema))
    }

    pub(crate) fn query(&self, statement: &str) -> Query<'static, sqlx::Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(self.render(statement)))
    }
}

fn name_tables(statement: &str, pipeline: i32, generations: Generations) -> String {
    let Generations {
        oldest,
        current,
        next,
    } = generations;
    let table = |generation: i32| format!("onceonly.ledger_{pipeline}_{generation}");
    let together = |from: i32, to: i32| {
        if from >= to {
            return table(to);
        }
        let rows = |number| GENERATION.replace("onceonly.ledger_0", &table(number));
        let all: Vec<String> = (from..=to).map(rows).collect();
        format!("({})", all.join(" union all "))
    };
    let mut text = statement.replace("onceonly.ledger_0", &table(current));
    for (name, from, to) in [
        ("onceonly.ledger_oldest", oldest, oldest),
        ("onceonly.ledger_older", oldest, oldest.max(current - 1)),
        ("onceonly.ledger_every", oldest, next.unwrap_or(current)),
    ] {
        if text.contains(name) {
            text = text.replace(name, &together(from, to));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_names_give_way_to_those_in_use() {
        let sql = Sql::new("demo_1").unwrap().with_generation(3, 2);
        assert_eq!(
            sql.render("insert into onceonly.ledger_0 select from onceonly.ledger"),
            "insert into \"demo_1\".ledger_3_2 select from \"demo_1\".ledger"
        );
    }

    #[test]
    fn generations_are_looked_into_together() {
        let generations = Generations {
            oldest: 2,
            current: 4,
            next: Some(5),
        };
        let sql = Sql::new("onceonly")
            .unwrap()
            .with_generations(3, generations);
        let older = sql.render("from onceonly.ledger_older o");
        assert!(older.starts_with("from (select event_key"), "{older}");
        assert!(
            older.contains("onceonly.ledger_3_2\n union all "),
            "{older}"
        );
        assert!(older.ends_with("onceonly.ledger_3_3\n) o"), "{older}");
        let every = sql.render("from onceonly.ledger_every l");
        assert_eq!(every.matches("onceonly.ledger_3_").count(), 4);
        assert_eq!(
            sql.render("onceonly.ledger_0 onceonly.ledger_oldest"),
            "onceonly.ledger_3_4 onceonly.ledger_3_2"
        );
    }

    #[test]
    fn the_default_schema_leaves_the_text_as_it_is() {
        let text = "select from onceonly.position";
        assert_eq!(Sql::new("onceonly").unwrap().render(text), text);
    }

    #[test]
    fn a_name_that_could_mean_something_else_is_refused() {
        for name in [
            "",
            "Public",
            "a b",
            "a\"b",
            "a.b",
            "1a",
            "a;drop",
            &"a".repeat(49),
        ] {
            assert!(Sql::new(name).is_err(), "{name:?}");
        }
    }
}
