# shellcheck shell=bash
# What the scripts here tell their user: all of it on standard error, so that
# standard output holds answers only.

say() { printf 'stack: %s\n' "$*" >&2; }

fail() {
  printf 'stack: error: %s\n' "$*" >&2
  exit 1
}

# The end of a log, indented, for the reader of an error.
show_tail() {
  local log=$1
  [[ -s $log ]] || return 0
  say "the end of $log:"
  tail -n 25 -- "$log" | sed 's/^/    /' >&2
}
