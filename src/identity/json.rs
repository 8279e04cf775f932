//! Finds one scalar in a JSON payload without building a tree.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The deepest pointer; far below the depth at which the parser gives up on what a pointer enters.
/// What it does not enter may be nested as deep as it likes.
const MAX_TOKENS: usize = 64;

/// A JSON pointer (RFC 6901) of at least one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    tokens: Vec<String>,
}

impl Pointer {
    /// A pointer to a member of the root.
    pub(super) fn member(name: &str) -> Self {
        Self {
            tokens: vec![name.into()],
        }
    }

    /// Finds what the pointer leads to in a JSON text; where a name is there twice, the last one.
    ///
    /// The whole text is checked, but for the content of strings that are passed over.
    pub fn find<'a>(&self, json: &'a [u8]) -> Result<Scalar<'a>, &'static str> {
        let mut parser = serde_json::Deserializer::from_slice(json);
        let found = Seek(&self.tokens)
            .deserialize(&mut parser)
            .and_then(|found| parser.end().map(|()| found))
            .map_err(|_| "the id is looked for in the payload, which is not valid JSON")?;
        let raw = found.ok_or("the payload has nothing where the id is looked for")?;
        scalar(raw.get())
    }
}

impl FromStr for Pointer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!(
                "`json:{text}` lacks a pointer that begins with a slash, such as json:/id"
            ));
        };
        let tokens: Vec<_> = rest
            .split('/')
            .map(unescaped)
            .collect::<Option<_>>()
            .ok_or_else(|| {
                format!("`{text}` has a `~` which is neither `~0` (a tilde) nor `~1` (a slash)")
            })?;
        if tokens.len() > MAX_TOKENS {
            return Err(format!("`{text}` is deeper than {MAX_TOKENS} levels"));
        }
        Ok(Self { tokens })
    }
}

fn unescaped(token: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = token.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.tokens {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

/// A JSON value that can be an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// A string, without quotes and escapes.
    Text(Cow<'a, str>),
    /// A number's exact text: a rounded one may be another event's id.
    Number(&'a str),
}

fn scalar(raw: &str) -> Result<Scalar<'_>, &'static str> {
    match raw.as_bytes().first() {
        Some(b'"') => {
            let plain = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
            match plain {
                Some(plain) if memchr::memchr(b'\\', plain.as_bytes()).is_none() => {
                    Ok(Scalar::Text(plain.into()))
                }
                _ => serde_json::from_str::<String>(raw)
                    .map(|text| Scalar::Text(text.into()))
                    .map_err(|_| "the id holds half of a surrogate pair, which is not text"),
            }
        }
        Some(b'-' | b'0'..=b'9') => Ok(Scalar::Number(raw)),
        Some(b'n') => Err("the id is null"),
        Some(b't' | b'f') => Err("the id is a boolean"),
        Some(b'[') => Err("the id is an array"),
        _ => Err("the id is an object"),
    }
}

/// Follows the tokens into a value, and passes over everything else.
struct Seek<'t>(&'t [String]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.0.split_first() {
            Some((token, rest)) => deserializer.deserialize_any(Enter { token, rest }),
            None => <&RawValue>::deserialize(deserializer).map(Some),
        }
    }
}

struct Enter<'t> {
    token: &'t str,
    rest: &'t [String],
}

impl<'de> Visitor<'de> for Enter<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Is(self.token))? {
            if is_it {
                found = map.next_value_seed(Seek(self.rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        if let Some(index) = array_index(self.token) {
            for _ in 0..index {
                if seq.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            let found = seq.next_element_seed(Seek(self.rest))?.flatten();
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(found);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Digits without a leading zero, as RFC 6901 asks.
fn array_index(token: &str) -> Option<usize> {
    let canonical = token == "0" || !token.starts_with(['0', '+']);
    token.parse().ok().filter(|_| canonical)
}

/// Compares a member's name, unescaped, without keeping it.
struct Is<'t>(&'t str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(pointer: &str, json: &str) -> Result<String, &'static str> {
        let pointer: Pointer = pointer.parse().unwrap();
        pointer.find(json.as_bytes()).map(|scalar| match scalar {
            Scalar::Text(text) => text.into_owned(),
            Scalar::Number(text) => text.to_owned(),
        })
    }

    #[test]
    fn a_number_keeps_every_character() {
        for number in [
            "9007199254740993",
            "9007199254740992",
            "123456789012345678901234567890",
            "1e3",
            "1000",
            "1.0",
            "1",
            "-0",
            "0",
            "1E400",
        ] {
            let json = format!(r#"{{"n": [1, {number} ], "id": {number} }}"#);
            assert_eq!(find("/id", &json).as_deref(), Ok(number));
            assert_eq!(find("/n/1", &json).as_deref(), Ok(number));
        }
    }

    #[test]
    fn a_pointer_follows_members_and_elements() {
        let json = r#" {"a": {"b/c": [10, {"~": "deep"}], "": "empty name", "0": "zero"}} "#;
        for (pointer, id) in [
            ("/a/b~1c/0", "10"),
            ("/a/b~1c/1/~0", "deep"),
            ("/a/", "empty name"),
            ("/a/0", "zero"),
        ] {
            assert_eq!(find(pointer, json).as_deref(), Ok(id), "{pointer}");
        }
        for pointer in [
            "/b",
            "/a/b~1c/2",
            "/a/b~1c/00",
            "/a/b~1c/-",
            "/a/b~1c/+1",
            "/a/0/x",
        ] {
            let nothing = "the payload has nothing where the id is looked for";
            assert_eq!(find(pointer, json), Err(nothing), "{pointer}");
        }
    }

    #[test]
    fn escapes_are_undone_in_names_and_values() {
        assert_eq!(
            find("/id", r#"{"\u0069d": "a\u00e9\n\ud83d\ude00"}"#).as_deref(),
            Ok("aé\n😀")
        );
    }

    #[test]
    fn of_a_name_that_is_there_twice_the_last_one_counts() {
        assert_eq!(find("/id", r#"{"id":1,"id":2}"#).as_deref(), Ok("2"));
        assert_eq!(
            find("/a/id", r#"{"a":{"id":1},"a":{"id":2}}"#).as_deref(),
            Ok("2")
        );
        assert!(find("/a/id", r#"{"a":{"id":1},"a":{}}"#).is_err());
        assert_eq!(find("/id", r#"{"id":1,"id":null}"#), Err("the id is null"));
    }

    #[test]
    fn other_types_are_no_id() {
        for (value, reason) in [
            ("null", "the id is null"),
            ("true", "the id is a boolean"),
            ("false", "the id is a boolean"),
            ("{}", "the id is an object"),
            ("[]", "the id is an array"),
            (
                r#""\ud800""#,
                "the id holds half of a surrogate pair, which is not text",
            ),
        ] {
            assert_eq!(find("/id", &format!(r#"{{"id":{value}}}"#)), Err(reason));
        }
    }

    #[test]
    fn broken_json_has_no_id_even_behind_the_id() {
        for json in [
            "",
            "\0\0\0\0\u{7}",
            r#"{"id":"1""#,
            r#"{"id":"1"} {"id":"2"}"#,
            r#"{"id":"1","x":tru}"#,
            r#"{"id":"1",}"#,
            r#"{"id":01}"#,
            "\u{feff}{\"id\":\"1\"}",
        ] {
            let reason = "the id is looked for in the payload, which is not valid JSON";
            assert_eq!(find("/id", json), Err(reason), "{json}");
        }
    }

    #[test]
    fn nesting_that_the_pointer_does_not_enter_may_be_deep() {
        let deep = format!("{}1{}", r#"[{"a":"#.repeat(5_000), "}]".repeat(5_000));
        let json = format!(r#"{{"deep":{deep},"id":"x"}}"#);
        assert_eq!(find("/id", &json).as_deref(), Ok("x"));
        assert_eq!(find("/deep", &json), Err("the id is an array"));
        let pointer = "/0/a".repeat(32);
        let nothing = Err("the id is an array");
        assert_eq!(
            find(&pointer, &deep),
            nothing,
            "the deepest pointer gets through"
        );
    }

    #[test]
    fn a_root_that_is_no_container_has_no_members() {
        for json in ["1", "-1", "1.5", "\"a\"", "true", "null"] {
            let nothing = "the payload has nothing where the id is looked for";
            assert_eq!(find("/id", json), Err(nothing), "{json}");
        }
    }

    #[test]
    fn a_pointer_that_is_none_is_refused() {
        for text in ["", "id", "/~", "/~2", "/a~"] {
            assert!(text.parse::<Pointer>().is_err(), "{text}");
        }
        assert!("/a".repeat(65).parse::<Pointer>().is_err());
    }

    proptest! {
        #[test]
        fn a_pointer_reads_back_as_it_is_written(tokens in prop::collection::vec(".{0,5}", 1..5)) {
            let pointer = Pointer { tokens };
            prop_assert_eq!(pointer.to_string().parse(), Ok(pointer));
        }

        #[test]
        fn it_finds_what_a_tree_would_find(id in any::<i128>(), before in ".*", text in ".*") {
            let json = serde_json::json!({ "before": before, "a": [{}, { "id": text, "n": 0 }] });
            let json = json.to_string().replace(r#""n":0"#, &format!(r#""n":{id}"#));
            prop_assert_eq!(find("/a/1/id", &json), Ok(text));
            prop_assert_eq!(find("/a/1/n", &json), Ok(id.to_string()));
        }

        #[test]
        fn no_input_is_too_strange(json in prop::collection::vec(any::<u8>(), 0..60)) {
            let pointer: Pointer = "/a/0".parse().unwrap();
            let _ = pointer.find(&json);
        }
    }
}
