//! What Postgres would refuse for certain, found before any transaction.
//!
//! What is passed here may still be refused (JSON nested deeper than the server's stack, say); the
//! batch is then halved until the event stands alone. What is refused here would always be refused.

use memchr::{memchr, memchr2, memchr2_iter};
use serde::de::IgnoredAny;

use super::PayloadKind;
use crate::event::Event;
use crate::ledger::Failure;

/// Digits before the point that a `numeric` holds.
const NUMERIC_INTEGER_DIGITS: i64 = 131_072;
/// Digits behind the point that a `numeric` holds.
const NUMERIC_FRACTION_DIGITS: i64 = 16_383;
/// The largest exponent that `numeric` reads at all.
const NUMERIC_EXPONENT_MAX: i64 = (i32::MAX / 2 - 1) as i64;

fn failure(code: &str, message: impl Into<String>) -> Option<Failure> {
    Some(Failure {
        code: code.to_owned(),
        message: message.into(),
    })
}

pub(super) fn screen(
    event: &Event<'_>,
    payload: PayloadKind,
    max_event_bytes: usize,
) -> Option<Failure> {
    if event.bytes() > max_event_bytes {
        return failure(
            "too-large",
            format!(
                "the event has {} bytes, and limits.max_event_bytes is {max_event_bytes}",
                event.bytes()
            ),
        );
    }
    for (name, _) in event.headers() {
        if name.as_bytes().contains(&0) {
            return failure(
                "invalid-header",
                format!("the name of header {name:?} has a NUL, which Postgres cannot store"),
            );
        }
    }
    let bytes = event.payload()?;
    match payload {
        // Passed on as null, like a tombstone.
        PayloadKind::Json if bytes.is_empty() => None,
        PayloadKind::Json => screen_json(bytes),
        PayloadKind::Text => screen_text(bytes),
        PayloadKind::Bytes => None,
    }
}

fn screen_text(bytes: &[u8]) -> Option<Failure> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return failure("invalid-utf-8", format!("the value is not text: {error}"));
    }
    let at = memchr(0, bytes)?;
    failure(
        "nul-in-text",
        format!("the value has a NUL at byte {at}, which Postgres cannot store in text"),
    )
}

fn screen_json(bytes: &[u8]) -> Option<Failure> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return failure("invalid-utf-8", format!("the value is not JSON: {error}"));
    }
    // Without recursion, so that no depth overflows the stack.
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(bytes) {
        return failure("invalid-json", format!("the value is not JSON: {error}"));
    }
    screen_escapes(bytes).or_else(|| screen_numbers(bytes))
}

/// Escapes that `jsonb` refuses: NUL, and halves of surrogate pairs.
fn screen_escapes(json: &[u8]) -> Option<Failure> {
    let mut at = 0;
    while let Some(found) = memchr(b'\\', json.get(at..)?) {
        at += found;
        let Some(unit) = code_unit(json, at) else {
            at += 2;
            continue;
        };
        let low = matches!(unit, 0xd800..=0xdbff)
            .then(|| code_unit(json, at + 6))
            .flatten();
        match (unit, low) {
            (0, _) => {
                return failure(
                    "nul-in-json",
                    format!("the value has the escape \\u0000 at byte {at}, which jsonb refuses"),
                );
            }
            (0xd800..=0xdbff, Some(0xdc00..=0xdfff)) => at += 12,
            (0xd800..=0xdfff, _) => {
                return failure(
                    "lone-surrogate",
                    format!(
                        "the value has the escape \\u{unit:04x} at byte {at}, half of a surrogate \
                         pair, which jsonb refuses"
                    ),
                );
            }
            _ => at += 6,
        }
    }
    None
}

/// The code unit of an escape `\uXXXX` that begins at `at`.
fn code_unit(json: &[u8], at: usize) -> Option<u16> {
    let escape = json.get(at..at + 6)?;
    let digits = std::str::from_utf8(escape.strip_prefix(b"\\u")?).ok()?;
    u16::from_str_radix(digits, 16).ok()
}

/// Numbers that no `numeric` holds. Short ones with a short exponent or none always fit, so that
/// most payloads are not looked at again.
fn screen_numbers(json: &[u8]) -> Option<Failure> {
    let bytes = json.len() as i64;
    let fits = bytes <= NUMERIC_FRACTION_DIGITS;
    let fits_with_four_digits = bytes + 9_999 <= NUMERIC_FRACTION_DIGITS;
    let may_not_fit = |at: usize| match exponent_digits(json, at) {
        0 => false,
        1..=4 => !fits_with_four_digits,
        _ => true,
    };
    if fits && !memchr2_iter(b'e', b'E', json).any(may_not_fit) {
        return None;
    }
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        let rest = json.get(at..)?;
        at += match byte {
            b'"' => string_len(rest),
            b'-' | b'0'..=b'9' => {
                let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let len = rest.iter().take_while(|b| is_part(b)).count();
                if !fits_numeric(rest.get(..len)?) {
                    return failure(
                        "number-out-of-range",
                        format!("the value has a number at byte {at} that jsonb cannot hold"),
                    );
                }
                len
            }
            _ => 1,
        };
    }
    None
}

/// Digits of the exponent whose letter is here; 0 where it is none. In a string it only looks so.
fn exponent_digits(json: &[u8], at: usize) -> usize {
    if at == 0 || !json.get(at - 1).is_some_and(u8::is_ascii_digit) {
        return 0;
    }
    let rest = json.get(at + 1..).unwrap_or_default();
    let rest = match rest {
        [b'+' | b'-', digits @ ..] => digits,
        digits => digits,
    };
    rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Bytes of the string that begins here, both quotes included.
fn string_len(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = json.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if json.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    json.len()
}

/// Whether a `numeric` holds a number of valid JSON.
fn fits_numeric(number: &[u8]) -> bool {
    let number = number.strip_prefix(b"-").unwrap_or(number);
    let (mantissa, exponent) = match memchr2(b'e', b'E', number) {
        Some(at) => (&number[..at], parse_exponent(&number[at + 1..])),
        None => (number, Some(0)),
    };
    let Some(exponent) = exponent else {
        return false;
    };
    let (integer, fraction) = match memchr(b'.', mantissa) {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    if fraction.len() as i64 - exponent > NUMERIC_FRACTION_DIGITS {
        return false;
    }
    // The first digit that counts, as a number of places before the point.
    let places = match integer {
        b"0" => match fraction.iter().position(|&digit| digit != b'0') {
            Some(zeros) => -(zeros as i64),
            None => return true,
        },
        integer => integer.len() as i64,
    };
    places + exponent <= NUMERIC_INTEGER_DIGITS
}

/// `None` where `numeric` would not read it.
fn parse_exponent(digits: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let exponent: i64 = digits.parse().ok()?;
    (exponent.abs() <= NUMERIC_EXPONENT_MAX).then_some(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(json: impl AsRef<[u8]>) -> Option<String> {
        screen_json(json.as_ref()).map(|failure| failure.code)
    }

    #[test]
    fn each_way_to_be_broken_has_its_word() {
        let cases: [(&[u8], &str); 9] = [
            (b"{\"a\":\"\xc3\x28\"}", "invalid-utf-8"),
            (b"", "invalid-json"),
            (b"{} x", "invalid-json"),
            (br#"{"a":"\u0000"}"#, "nul-in-json"),
            (br#"["\ud800"]"#, "lone-surrogate"),
            (br#"["\ud800\ud800"]"#, "lone-surrogate"),
            (br#"["\udc00"]"#, "lone-surrogate"),
            (b"[1e131072]", "number-out-of-range"),
            (b"[0.1e-16383]", "number-out-of-range"),
        ];
        for (json, expected) in cases {
            assert_eq!(code(json).as_deref(), Some(expected), "{json:?}");
        }
    }

    #[test]
    fn what_only_looks_broken_passes() {
        for json in [
            r#"{"a":"\\u0000"}"#,
            r#"{"a":"\ud83d\ude00"}"#,
            r#"{"a":1,"a":2}"#,
            "[1e131071, -0, 1e-16383, 0e1000000, 1e400]",
            "\"1e999999\"",
            " null ",
        ] {
            assert_eq!(code(json), None, "{json}");
        }
    }

    #[test]
    fn a_short_exponent_counts_behind_many_digits() {
        let number = |digits| format!("[0.{}e-9999]", "1".repeat(digits));
        assert_eq!(code(number(6384)), None);
        assert_eq!(code(number(6385)).as_deref(), Some("number-out-of-range"));
    }

    #[test]
    fn any_depth_is_looked_through_without_recursion() {
        let depth = 1_000_000;
        assert_eq!(code("[".repeat(depth) + &"]".repeat(depth)), None);
    }
}
