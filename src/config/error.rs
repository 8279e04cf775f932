//! What is wrong with a configuration, and where it was written.

use std::io;
use std::path::PathBuf;

use figment::error::{Actual, Kind};

use super::keys;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{origin} is not valid TOML: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// Where and why.
        message: String,
    },
    /// A key is unknown, missing, or has a value of another kind.
    #[error("{origin}: {sentence}")]
    Key {
        /// The key, with dots.
        key: String,
        /// The file, variable or flag.
        origin: String,
        /// What is wrong, and what to do.
        sentence: String,
    },
    /// Values that cannot work, each with its sentence.
    #[error("the configuration cannot work:{}", .0.iter().map(|p| format!("\n  - {p}")).collect::<String>())]
    Invalid(Vec<String>),
}

/// What figment found, as a sentence on a key. Its path is that of the value or unknown key, or of
/// the section in which a key is missing.
pub(super) fn explained(
    error: &figment::Error,
    variable: impl Fn(&str) -> Option<String>,
) -> (String, String) {
    let path = error.path.join(".");
    let member = |name: &str| match path.as_str() {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match &error.kind {
        Kind::UnknownField(..) => {
            let key = path;
            let nearest = keys::nearest(&key);
            let sentence = match variable(&key) {
                Some(_) => format!(
                    "it names the unknown key `{key}`; the nearest known one is `{nearest}`, {}",
                    super::layers::variable_of(&nearest)
                ),
                None => format!("unknown key `{key}`; the nearest known one is `{nearest}`"),
            };
            (key, sentence)
        }
        Kind::MissingField(name) => {
            let key = member(name);
            let sentence = format!("`{key}` is missing; it has no default");
            (key, sentence)
        }
        Kind::UnknownVariant(value, known) => {
            let known = known.join(", ");
            let sentence = format!("`{path}` cannot be `{value}`; it is one of: {known}");
            (path, sentence)
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let sentence = format!("`{path}` must be {}, not {}", kind(expected), shown(actual));
            (path, sentence)
        }
        Kind::Message(message) => {
            let sentence = format!("`{path}`: {message}");
            (path, sentence)
        }
        other => {
            let sentence = format!("`{path}`: {other}");
            (path, sentence)
        }
    }
}

/// Rust's names of types, for people.
fn kind(expected: &str) -> &str {
    match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, zero or more",
        other if other.starts_with("struct ") => "a section",
        other if other.starts_with("enum") => "a string",
        other => other,
    }
}

fn shown(actual: &Actual) -> String {
    match actual {
        Actual::Str(text) => format!("the text `{text}`"),
        Actual::Unsigned(number) => format!("the number {number}"),
        Actual::Signed(number) => format!("the number {number}"),
        Actual::Float(number) => format!("the number {number}"),
        Actual::Bool(value) => format!("{value}"),
        Actual::Seq => "a list".into(),
        Actual::Map => "a section".into(),
        other => other.to_string(),
    }
}
