//! The keys that there are, and the nearest one to a mistyped one.

use std::sync::LazyLock;

use serde_json::Value;

use super::Config;

static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    if let Ok(value) = serde_json::to_value(Config::complete()) {
        collect("", &value, &mut keys);
    }
    keys
});

/// Every key, with dots.
pub(super) fn known() -> &'static [String] {
    &KEYS
}

fn collect(path: &str, value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                let path = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                collect(&path, value, keys);
            }
        }
        _ => keys.push(path.into()),
    }
}

/// The known key that an unknown one most likely stands for.
pub(super) fn nearest(unknown: &str) -> String {
    let sections = known()
        .iter()
        .filter_map(|key| key.split_once('.'))
        .map(|(section, _)| section);
    let keys = known().iter().map(String::as_str);
    // A section itself can be mistyped, but only at the top.
    let candidates = keys.chain(sections.filter(|_| !unknown.contains('.')));
    candidates
        .max_by(|a, b| likeness(a, unknown).total_cmp(&likeness(b, unknown)))
        .unwrap_or_default()
        .to_owned()
}

/// Both as a whole, with `_` as good as a dot, and by the last part, which may stand in a wrong
/// section.
fn likeness(known: &str, unknown: &str) -> f64 {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let whole = strsim::normalized_damerau_levenshtein(
        &known.replace('_', "."),
        &unknown.replace('_', "."),
    );
    let part = strsim::normalized_damerau_levenshtein(&last(known), &last(unknown));
    whole.max(part * 0.9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_key_is_recognised() {
        for (unknown, known) in [
            ("kafka.topic", "kafka.topics"),
            ("kafka.bootstrap_brokers", "kafka.brokers"),
            ("pipelin", "pipeline"),
            ("kafak", "kafka"),
            ("retention", "dedup.retention"),
            ("redis.retention", "dedup.retention"),
            ("identity.form", "identity.from"),
            ("kafka_brokers", "kafka.brokers"),
            ("limit.workers", "limits.workers"),
            ("handler.statement", "handler.statements"),
            ("batch.max_event", "batch.max_events"),
        ] {
            assert_eq!(nearest(unknown), known, "{unknown}");
        }
    }
}
