//! How values are written: durations with a unit, sizes, lists, and types with a text of their own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A span with its unit: `50ms`, `7d`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    use super::Text;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        deserializer.deserialize_any(Text::new("a duration such as 50ms, 20s or 7d", |text| {
            humantime::parse_duration(text).map_err(|error| match text.parse::<f64>() {
                Ok(_) => format!("`{text}` lacks a unit: write 50ms, 20s, 10m or 7d"),
                Err(_) => format!("`{text}` is no duration such as 50ms, 20s or 7d: {error}"),
            })
        }))
    }

    pub(in super::super) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&crate::span::text(*duration))
    }
}

/// A number of bytes: `8MiB`, `500kB`, or a bare number.
pub(super) mod size {
    use bytesize::ByteSize;
    use serde::{Deserializer, Serializer};

    use super::Text;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<usize, D::Error> {
        deserializer.deserialize_any(Text::new("a size such as 8MiB", |text| {
            let size: ByteSize = text
                .parse()
                .map_err(|_| format!("`{text}` is no size such as 8MiB, 500kB or 4096"))?;
            usize::try_from(size.as_u64()).map_err(|_| format!("`{text}` is beyond any memory"))
        }))
    }

    pub(in super::super) fn serialize<S: Serializer>(
        size: &usize,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&ByteSize(*size as u64))
    }
}

/// A type that reads and writes itself as text.
pub(super) mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserializer, Serializer};

    use super::Text;

    pub(in super::super) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        let parse = |text: &str| text.parse::<T>().map_err(|error| error.to_string());
        deserializer.deserialize_any(Text::new("a string", parse))
    }

    pub(in super::super) fn serialize<S: Serializer>(
        value: &impl Display,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }
}

/// Visits a string, or an integer by its text, and parses it.
struct Text<T, F> {
    expected: &'static str,
    parse: F,
    value: PhantomData<T>,
}

impl<T, F: Fn(&str) -> Result<T, String>> Text<T, F> {
    fn new(expected: &'static str, parse: F) -> Self {
        Self {
            expected,
            parse,
            value: PhantomData,
        }
    }
}

impl<'de, T, F: Fn(&str) -> Result<T, String>> Visitor<'de> for Text<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    /// TOML has times without quotes, and hands them on as a map of one entry.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        match map.next_entry::<String, String>()? {
            Some((name, time)) if name == "$__toml_private_datetime" => self.visit_str(&time),
            _ => Err(A::Error::custom(format!(
                "must be {}, not a section",
                self.expected
            ))),
        }
    }
}

/// An address with a port.
pub(super) mod address {
    use std::net::SocketAddr;

    use serde::Deserializer;

    use super::Text;
    pub(in super::super) use super::text::serialize;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SocketAddr, D::Error> {
        deserializer.deserialize_any(Text::new("an address such as 127.0.0.1:9464", |text| {
            text.parse().map_err(|_| {
                format!("`{text}` is no IP address with a port, such as 127.0.0.1:9464")
            })
        }))
    }
}

/// A list of strings; one string is a list too: a TOML array as text, or names with commas between
/// where a name cannot hold a comma.
pub(super) fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    // Only a pattern may hold a comma, and it begins with `^`.
    deserializer.deserialize_any(List(|text| match text.starts_with('^') {
        true => vec![text.into()],
        false => text.split(',').map(|name| name.trim().into()).collect(),
    }))
}

/// A list of texts; one string is a list of one, or a TOML array as text.
pub(super) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(List(|text| vec![text.into()]))
}

struct List(fn(&str) -> Vec<String>);

impl<'de> Visitor<'de> for List {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
        #[derive(serde::Deserialize)]
        struct Wrapped {
            list: Vec<String>,
        }
        if !text.trim_start().starts_with('[') {
            return Ok((self.0)(text));
        }
        let wrapped: Wrapped = toml::from_str(&format!("list = {text}"))
            .map_err(|error| E::custom(format!("not a list of strings: {}", error.message())))?;
        Ok(wrapped.list)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
        let mut list = Vec::new();
        while let Some(text) = seq.next_element()? {
            list.push(text);
        }
        Ok(list)
    }
}
