//! `[kafka]`: where events come from.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::secret::{self, HIDDEN};
use super::values::{names, text};
use crate::place::{LogPlace, Start};

/// Where events come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kafka {
    /// `host:port`, with commas between.
    pub brokers: String,
    /// Names, or patterns that begin with `^`.
    #[serde(deserialize_with = "names")]
    pub topics: Vec<String>,
    /// The consumer group; [`super::Config::group`] knows the default.
    pub group: Option<String>,
    /// Where a topic begins that the pipeline does not know yet.
    #[serde(with = "text")]
    pub start: Start,
    /// Other properties of librdkafka.
    #[serde(default)]
    pub properties: Properties,
}

impl Kafka {
    /// Whether ids of more than one topic can meet; a pattern may match any number.
    pub fn has_several_topics(&self) -> bool {
        self.topics.len() > 1 || self.topics.iter().any(|topic| topic.starts_with('^'))
    }

    pub(super) fn complete() -> Self {
        Self {
            brokers: "localhost:9092".into(),
            topics: vec!["orders".into()],
            group: None,
            start: Start::Place(LogPlace::Earliest),
            properties: Properties::default(),
        }
    }
}

/// Properties of librdkafka by name. Secrets among them are shown as stars; a secret of the form
/// `file:/path` is read from that file.
#[derive(Clone, Default, PartialEq)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// All properties in the order of their names, secrets in the clear.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.iter();
        pairs.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A property's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a property.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter()
            .map(|(name, value)| (name, if is_secret(name) { HIDDEN } else { value }))
    }
}

fn is_secret(name: &str) -> bool {
    const FILES: [&str; 3] = [
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.ca.location",
    ];
    let words = [
        "password",
        "secret",
        "key",
        "token",
        "pem",
        "oauthbearer.config",
        "jaas",
    ];
    !FILES.contains(&name) && words.iter().any(|word| name.contains(word))
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shown()).finish()
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.shown())
    }
}

/// A property's value, or a table: `security.protocol = …` without quotes is one in TOML.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a property is a string, a number, true or false"
)]
enum Node {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Table(BTreeMap<String, Node>),
}

impl Node {
    fn flatten(self, name: String, into: &mut BTreeMap<String, String>) -> Result<(), String> {
        let value = match self {
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(value) if is_secret(&name) => secret::resolved(value)?,
            Self::Text(value) => value,
            Self::Table(table) => {
                return table
                    .into_iter()
                    .try_for_each(|(part, node)| node.flatten(format!("{name}.{part}"), into));
            }
        };
        into.insert(name, value);
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Nodes;

        impl<'de> Visitor<'de> for Nodes {
            type Value = BTreeMap<String, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("properties of librdkafka")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut properties = BTreeMap::new();
                while let Some((name, node)) = map.next_entry::<String, Node>()? {
                    node.flatten(name, &mut properties)
                        .map_err(serde::de::Error::custom)?;
                }
                Ok(properties)
            }
        }

        deserializer.deserialize_map(Nodes).map(Self)
    }
}

/// What to write instead of a property that the pipeline sets itself.
pub(super) fn owned(property: &str) -> Option<&'static str> {
    Some(match property {
        "group.id" => "set `kafka.group`",
        "bootstrap.servers" | "metadata.broker.list" => "set `kafka.brokers`",
        "auto.offset.reset" | "topic.auto.offset.reset" => "set `kafka.start`",
        "enable.auto.commit"
        | "auto.commit.enable"
        | "auto.commit.interval.ms"
        | "enable.auto.offset.store"
        | "offset.store.method" => {
            "leave it out: positions are committed in Postgres, with the effects"
        }
        "enable.partition.eof" => "leave it out: the end of a partition is watched for already",
        _ => return None,
    })
}
