//! The id of a CloudEvent: what its `source` and `id` make together (CloudEvents 1.0, section
//! "Source & Id").
//!
//! Binary mode has both as headers `ce_source` and `ce_id`. Structured mode has them in a JSON
//! payload; it is known by the content type `application/cloudevents+json`, or, since not every
//! producer sets one, by the lack of both headers. The id's text is the source, a space and the id;
//! a space in the source, which a URI cannot hold, is written `%20`.

use std::sync::LazyLock;

use crate::event::Event;

use super::json::{Pointer, Scalar};
use super::{payload, text, usable};

static SOURCE: LazyLock<Pointer> = LazyLock::new(|| Pointer::member("source"));
static ID: LazyLock<Pointer> = LazyLock::new(|| Pointer::member("id"));

/// Appends the id of a CloudEvent.
pub(super) fn write_id(event: Event<'_>, out: &mut String) -> Result<(), &'static str> {
    let (source, id) = (event.header("ce_source"), event.header("ce_id"));
    if is_structured(event) {
        return write_structured(event, out);
    }
    if source.is_none() && id.is_none() {
        return write_structured(event, out).map_err(|_| {
            "the record is no CloudEvent: no headers ce_source and ce_id, no such members in a payload"
        });
    }
    let source = text(source.ok_or("the header ce_source is missing or null")?)?;
    let id = text(id.ok_or("the header ce_id is missing or null")?)?;
    write(source, id, out)
}

fn is_structured(event: Event<'_>) -> bool {
    let content_type = event
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .last();
    let Some((_, Some(value))) = content_type else {
        return false;
    };
    let media_type = value.split(|&b| b == b';').next().unwrap_or_default();
    media_type
        .trim_ascii()
        .eq_ignore_ascii_case(b"application/cloudevents+json")
}

fn write_structured(event: Event<'_>, out: &mut String) -> Result<(), &'static str> {
    let json = payload(event)?;
    let member = |pointer: &Pointer| match pointer.find(json)? {
        Scalar::Text(text) => Ok(text),
        Scalar::Number(_) => Err("source and id of a CloudEvent are strings, not numbers"),
    };
    write(&member(&SOURCE)?, &member(&ID)?, out)
}

fn write(source: &str, id: &str, out: &mut String) -> Result<(), &'static str> {
    usable(source).map_err(|_| "the CloudEvent's source is empty or holds a NUL character")?;
    usable(id)?;
    for (i, part) in source.split(' ').enumerate() {
        if i > 0 {
            out.push_str("%20");
        }
        out.push_str(part);
    }
    out.push(' ');
    out.push_str(id);
    Ok(())
}
