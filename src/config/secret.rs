//! Addresses that may hold a password: used in full, shown without it.

use std::fmt;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};

/// What is shown in place of a secret.
pub(super) const HIDDEN: &str = "***";

/// A URL whose password is never shown.
///
/// Written as `file:/run/secrets/…` it is the content of that file, without white space around.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a URL as it is.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL with its password: for connecting, not for showing.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Reads the file if the value names one.
pub(super) fn resolved(value: String) -> Result<String, String> {
    let Some(path) = value.strip_prefix("file:") else {
        return Ok(value);
    };
    // `file:///run/x` is the same file as `file:/run/x`.
    let path = path.strip_prefix("//").unwrap_or(path);
    let content = std::fs::read_to_string(path)
        .map_err(|error| format!("the file `{path}` cannot be read: {error}"))?;
    match content.trim() {
        "" => Err(format!("the file `{path}` is empty")),
        content => Ok(content.to_owned()),
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str(HIDDEN);
        };
        write!(f, "{scheme}://")?;
        // A password may hold anything unescaped, so the last `@` counts.
        let rest = match rest.rsplit_once('@') {
            Some((user, rest)) => {
                match user.split_once(':') {
                    Some((user, _)) => write!(f, "{user}:{HIDDEN}@")?,
                    None => write!(f, "{user}@")?,
                }
                rest
            }
            None => rest,
        };
        let Some((place, query)) = rest.split_once('?') else {
            return f.write_str(rest);
        };
        f.write_str(place)?;
        for (i, parameter) in query.split('&').enumerate() {
            f.write_str(if i == 0 { "?" } else { "&" })?;
            match parameter.split_once('=') {
                Some((name, _)) if name.contains("pass") => write!(f, "{name}={HIDDEN}")?,
                _ => f.write_str(parameter)?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = String::deserialize(deserializer)?;
        resolved(value).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://localhost/app", "postgres://localhost/app"),
            ("postgres://u@h:5432/app", "postgres://u@h:5432/app"),
            ("postgres://u:pa:ss@h/app", "postgres://u:***@h/app"),
            ("postgres://u:p@a/s?s#@h/app", "postgres://u:***@h/app"),
            ("redis://:hunter2@h:6379/0", "redis://:***@h:6379/0"),
            (
                "postgres://h/app?user=u&password=p&sslmode=require",
                "postgres://h/app?user=u&password=***&sslmode=require",
            ),
            ("u:p@h", "***"),
        ] {
            let secret = Secret::new(url);
            assert_eq!(secret.to_string(), shown);
            assert_eq!(format!("{secret:?}"), format!("\"{shown}\""));
            assert_eq!(serde_json::to_value(&secret).unwrap(), shown);
            assert_eq!(secret.expose(), url);
        }
    }
}
