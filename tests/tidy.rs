//! Rules of this repository that the compiler does not know.

use std::path::{Path, PathBuf};

/// A file longer than this, its tests left out, has more than one meaning.
const LINES_MAX: usize = 400;

fn files(folder: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                let text = std::fs::read_to_string(&path).expect("a readable file");
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no {ending}");
    found
}

/// Production code only: what comes before the tests of a file.
fn production(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or_default()
}

fn sources() -> Vec<(PathBuf, String)> {
    let is_test = |path: &Path| path.ends_with("tests.rs");
    let sources = files("src", ".rs")
        .into_iter()
        .filter(|(path, _)| !is_test(path));
    sources
        .map(|(path, text)| (path, production(&text).to_owned()))
        .collect()
}

fn lines_with(needles: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (number, line) in (1..).zip(text.lines()) {
            // A constant that cannot be computed does not compile.
            let line = line.trim_start();
            let is_code = !line.starts_with("//") && !line.starts_with("const ");
            if is_code && needles.iter().any(|needle| line.contains(needle)) {
                found.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    found
}

#[test]
fn no_source_file_outgrows_its_name() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "split by meaning: {long:?}");
}

#[test]
fn nothing_from_outside_can_panic_by_an_unwrap() {
    assert_eq!(
        lines_with(&[".unwrap()", ".expect(", "todo!(", "unimplemented!("]),
        Vec::<String>::new()
    );
}

#[test]
fn sql_lives_in_sql_files() {
    assert_eq!(
        lines_with(&["query(\"", "query(r", "raw_sql(\"", "query(&format"]),
        Vec::<String>::new()
    );
}

#[test]
fn every_sql_file_is_used() {
    let sources: String = files("src", ".rs")
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    let unused: Vec<_> = files("sql", ".sql")
        .into_iter()
        .filter(|(path, _)| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !sources.contains(&*name)
        })
        .map(|(path, _)| path)
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let manifest = include_str!("../Cargo.toml");
    let mut previous = "";
    let mut silent = Vec::new();
    let mut in_dependencies = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies]");
        } else if in_dependencies && line.contains(" = ") && !previous.starts_with('#') {
            silent.push(line);
        }
        previous = line;
    }
    assert_eq!(silent, Vec::<&str>::new());
}
