//! The layers of which a configuration is made, and who said what.

use std::ffi::OsString;
use std::path::Path;

use figment::providers::{Format as _, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::error::explained;
use super::{Config, ConfigError};

/// The beginning of the variables' names; `__` stands between a section and its key.
pub const PREFIX: &str = "ONCEONLY_";

/// Variables with the prefix that are no keys of the configuration.
const RESERVED: [&str; 10] = [
    "CONFIG",
    "FENCE",
    "LOG",
    "LOG_FORMAT",
    // What compose/stack reads.
    "KAFKA_CONTROLLER_PORT",
    "KAFKA_PORT",
    "POSTGRES_PORT",
    "REDIS_PORT",
    "STACK_DIR",
    "STACK_MODE",
];

/// Collects the layers of a configuration; a later one wins.
///
/// ```
/// # fn main() -> Result<(), onceonly::config::ConfigError> {
/// let config = onceonly::config::Layers::new()
///     .toml("orders.toml", onceonly::config::EXAMPLE)?
///     .variables([("ONCEONLY_KAFKA__BROKERS".into(), "kafka-1:9092".into())])?
///     .set("limits.workers", "4")
///     .config()?;
/// assert_eq!(config.kafka.brokers, "kafka-1:9092");
/// assert_eq!(config.limits.workers, 4);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Layers {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
struct Layer {
    origin: Origin,
    dict: Dict,
}

#[derive(Clone, Debug)]
enum Origin {
    File(String),
    Variables,
    Flags,
}

impl Layers {
    /// Only the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    pub fn file(self, path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.into(),
            source,
        })?;
        self.toml(&path.display().to_string(), &text)
    }

    /// Adds a TOML text; errors call it by the name given.
    pub fn toml(mut self, name: &str, text: &str) -> Result<Self, ConfigError> {
        let dict = Toml::from_str(text).map_err(|error| ConfigError::Syntax {
            origin: name.into(),
            message: error.to_string(),
        })?;
        let origin = Origin::File(name.into());
        self.layers.push(Layer { origin, dict });
        Ok(self)
    }

    /// Adds the variables of the process.
    pub fn environment(self) -> Result<Self, ConfigError> {
        self.variables(std::env::vars_os())
    }

    /// Adds those of the variables given that begin with [`PREFIX`].
    pub fn variables(
        mut self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut dict = Dict::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            if RESERVED.contains(&name) || is_service_link(name) {
                continue;
            }
            let key = key_of(name);
            let value = value.into_string().map_err(|_| ConfigError::Key {
                key: key.join("."),
                origin: format!("{PREFIX}{name}"),
                sentence: "its value is not UTF-8 text".into(),
            })?;
            insert(&mut dict, &key, value);
        }
        let origin = Origin::Variables;
        self.layers.push(Layer { origin, dict });
        Ok(self)
    }

    /// Sets one key, with dots, as a flag does. A list is one string, `a,b` or `["a", "b"]`.
    pub fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        let mut dict = Dict::new();
        let key: Vec<_> = key.split('.').map(str::to_owned).collect();
        insert(&mut dict, &key, value.into());
        let origin = Origin::Flags;
        self.layers.push(Layer { origin, dict });
        self
    }

    /// Merges the layers and checks the result.
    pub fn config(&self) -> Result<Config, ConfigError> {
        // Sections of which a key is required are there, so that the error names the key.
        let required =
            ["kafka", "postgres"].map(|name| (name.to_owned(), Value::from(Dict::new())));
        let base = Layer {
            origin: Origin::File(String::new()),
            dict: required.into(),
        };
        let merged = self
            .layers
            .iter()
            .fold(Figment::from(&base), Figment::merge);
        // Lossy: a variable's `4` or `true` is text to begin with.
        let config: Config = merged.extract_lossy().map_err(|error| {
            let is_variable = |key: &str| self.variable(key);
            let (key, sentence) = explained(&error, is_variable);
            let origin = self.origin(&key);
            ConfigError::Key {
                key,
                origin,
                sentence,
            }
        })?;
        let problems = config.problems();
        if problems.is_empty() {
            return Ok(config);
        }
        let named = problems
            .into_iter()
            .map(|(key, sentence)| match self.layer_of(key) {
                Some(_) => format!("{}: {sentence}", self.origin(key)),
                None => sentence,
            });
        Err(ConfigError::Invalid(named.collect()))
    }

    /// The last layer in which a key stands.
    fn layer_of(&self, key: &str) -> Option<&Layer> {
        let holds = |layer: &&Layer| holds(&layer.dict, key);
        self.layers.iter().rev().find(holds)
    }

    /// The variable that sets a key, if one does.
    fn variable(&self, key: &str) -> Option<String> {
        self.layer_of(key)
            .filter(|layer| matches!(layer.origin, Origin::Variables))
            .map(|_| variable_of(key))
    }

    /// Who set a key; for one that nobody set, the file where it would stand.
    fn origin(&self, key: &str) -> String {
        match self.layer_of(key).map(|layer| &layer.origin) {
            Some(Origin::File(name)) => name.clone(),
            Some(Origin::Variables) => variable_of(key),
            Some(Origin::Flags) => "a flag".into(),
            None => self
                .layers
                .iter()
                .find_map(|layer| match &layer.origin {
                    Origin::File(name) => Some(name.clone()),
                    _ => None,
                })
                .unwrap_or_else(|| "variables and flags".into()),
        }
    }
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named("configuration")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok([(Profile::Default, self.dict.clone())].into())
    }
}

/// Whether a key, whose last part may have dots of its own, stands in a tree.
fn holds(dict: &Dict, key: &str) -> bool {
    if dict.contains_key(key) {
        return true;
    }
    key.split_once('.').is_some_and(|(first, rest)| {
        let section = dict.get(first).and_then(Value::as_dict);
        section.is_some_and(|section| holds(section, rest))
    })
}

fn insert(dict: &mut Dict, key: &[String], value: String) {
    let [name, rest @ ..] = key else { return };
    if rest.is_empty() {
        dict.insert(name.clone(), Value::from(value));
        return;
    }
    let section = dict
        .entry(name.clone())
        .or_insert_with(|| Value::from(Dict::new()));
    match section {
        Value::Dict(_, section) => insert(section, rest, value),
        // A section that was also set as a value: the more exact name wins.
        other => {
            let mut section = Dict::new();
            insert(&mut section, rest, value);
            *other = Value::from(section);
        }
    }
}

/// `KAFKA__BROKERS` is `kafka.brokers`. Shells know no dots in names, so `_` stands for them in a
/// property of librdkafka: `KAFKA__PROPERTIES__SECURITY_PROTOCOL`.
fn key_of(name: &str) -> Vec<String> {
    let mut parts: Vec<_> = name.split("__").map(str::to_lowercase).collect();
    if let [section, table, property] = parts.as_mut_slice()
        && section == "kafka"
        && table == "properties"
    {
        *property = property.replace('_', ".");
    }
    parts
}

/// The variable that stands for a key.
pub(super) fn variable_of(key: &str) -> String {
    let parts: Vec<_> = match key.strip_prefix("kafka.properties.") {
        Some(property) => vec![
            "kafka".into(),
            "properties".into(),
            property.replace('.', "_"),
        ],
        None => key.split('.').map(str::to_owned).collect(),
    };
    format!("{PREFIX}{}", parts.join("__").to_uppercase())
}

/// Kubernetes sets such variables in every pod beside a service whose name begins with ours.
fn is_service_link(name: &str) -> bool {
    name.ends_with("SERVICE_HOST")
        || name.contains("SERVICE_PORT")
        || name == "PORT"
        || name.ends_with("_PORT")
        || (name.contains("PORT_") && (name.contains("_TCP") || name.contains("_UDP")))
}
