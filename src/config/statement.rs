//! How a statement begins.

/// The first word of a statement behind white space and comments, which nest in Postgres.
pub(super) fn first_word(sql: &str) -> &str {
    let mut rest = sql.trim_start();
    loop {
        let behind = if let Some(comment) = rest.strip_prefix("--") {
            comment.split_once('\n').map_or("", |(_, behind)| behind)
        } else if rest.starts_with("/*") {
            behind_comment(rest)
        } else {
            break;
        };
        rest = behind.trim_start();
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    match end {
        // Something that is no word at all is shown as it is.
        Some(0) => rest
            .get(..rest.chars().next().map_or(0, char::len_utf8))
            .unwrap_or_default(),
        Some(end) => rest.get(..end).unwrap_or_default(),
        None => rest,
    }
}

fn behind_comment(sql: &str) -> &str {
    let mut depth = 0usize;
    let mut rest = sql;
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix("/*") {
            (depth, rest) = (depth + 1, behind);
        } else if let Some(behind) = rest.strip_prefix("*/") {
            (depth, rest) = (depth.saturating_sub(1), behind);
            if depth == 0 {
                return rest;
            }
        } else {
            let mut chars = rest.chars();
            chars.next();
            rest = chars.as_str();
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::first_word;

    #[test]
    fn the_first_word_stands_behind_comments() {
        for (sql, word) in [
            ("insert into x", "insert"),
            ("  -- why\n -- more\r\n\tWITH a", "WITH"),
            ("/* a /* nested */ b */select 1", "select"),
            ("select(1)", "select"),
            ("--only a comment", ""),
            ("/* open", ""),
            (" \n", ""),
            ("(select 1)", "("),
            ("inserted", "inserted"),
        ] {
            assert_eq!(first_word(sql), word, "{sql}");
        }
    }
}
