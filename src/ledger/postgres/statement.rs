//! The statements in `sql/`, with the names that this process uses.

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use crate::error::Error;

/// Longer names would be cut off by Postgres where a suffix is added.
const SCHEMA_MAX_BYTES: usize = 48;

/// Writes the schema, and the ledger's current table, into statements.
///
/// The files say `onceonly.` and `onceonly.ledger_0`, so that they can be read and run as they are.
#[derive(Clone, Debug)]
pub struct Sql {
    schema: String,
    ledger: Option<String>,
}

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
    pub fn with_generation(mut self, pipeline_id: i32, generation: i32) -> Self {
        self.ledger = Some(format!("ledger_{pipeline_id}_{generation}"));
        self
    }

    /// The schema's name, as it can stand in a statement.
    pub fn schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }

    /// A statement's text.
    pub fn render(&self, statement: &str) -> String {
        let text = match &self.ledger {
            Some(table) => statement.replace("onceonly.ledger_0", &format!("onceonly.{table}")),
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
