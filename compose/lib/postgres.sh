# shellcheck shell=bash
# Postgres from its Debian package, in a cluster of our own.

POSTGRES_DIR=$STACK_DIR/postgres
POSTGRES_LOG=$STACK_DIR/postgres.log

postgres_pid_file() { printf '%s\n' "$POSTGRES_DIR/postmaster.pid"; }
postgres_mark() { printf '%s\n' "$POSTGRES_DIR"; }
postgres_data() { printf '%s\n' "$POSTGRES_DIR"; }
postgres_port() { printf '%s\n' "$POSTGRES_PORT"; }
postgres_log() { printf '%s\n' "$POSTGRES_LOG"; }
# Fast shutdown: sessions are ended, not waited for.
postgres_stop_signal() { printf 'INT\n'; }

# Prints the folder of initdb and postgres, of the newest version.
find_postgres_bin() {
  local folder
  while read -r folder; do
    if [[ -x $folder/postgres && -x $folder/initdb && -x $folder/psql ]]; then
      printf '%s\n' "$folder"
      return 0
    fi
  done < <(
    printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
    dirname -- "$(command -v initdb || true)"
  )
  return 1
}

# Sets POSTGRES_BIN.
postgres_prepare() {
  POSTGRES_BIN=$(find_postgres_bin) && return 0
  install_packages postgresql
  keep_service_off postgresql.service
  POSTGRES_BIN=$(find_postgres_bin) ||
    fail "postgresql is installed, but /usr/lib/postgresql/*/bin holds no postgres, initdb and psql"
}

# Postgres refuses to run as root: then it runs as the user of its package.
# setpriv becomes the command, so the process id stays the one we know.
as_postgres() {
  if ((EUID == 0)); then AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --init-groups); else AS_POSTGRES=(); fi
}

init_postgres() {
  local version log=$STACK_DIR/postgres-initdb.log
  if [[ -f $POSTGRES_DIR/PG_VERSION ]]; then
    version=$("$POSTGRES_BIN/postgres" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
    [[ $(<"$POSTGRES_DIR/PG_VERSION") == "$version" ]] ||
      fail "the data in $POSTGRES_DIR is of Postgres $(<"$POSTGRES_DIR/PG_VERSION"), the server is $version; delete the data with: compose/stack reset postgres"
    return 0
  fi
  rm -rf -- "$POSTGRES_DIR"
  mkdir -m 700 -- "$POSTGRES_DIR"
  ((EUID != 0)) || chown postgres:postgres "$POSTGRES_DIR"
  # No secret: the password is in this script, and initdb may be another user.
  printf 'onceonly\n' >"$STACK_DIR/postgres-password"
  chmod 644 "$STACK_DIR/postgres-password"
  (cd / && "${AS_POSTGRES[@]}" "$POSTGRES_BIN/initdb" -D "$POSTGRES_DIR" -U onceonly \
    --pwfile="$STACK_DIR/postgres-password" --auth=scram-sha-256 \
    --encoding=UTF8 --locale=C.UTF-8 </dev/null >"$log" 2>&1) || {
    show_tail "$log"
    rm -rf -- "$POSTGRES_DIR"
    fail "initdb could not make a cluster in $POSTGRES_DIR"
  }
}

# A pid file left by a crash names a process that is not ours, else we would not
# be here; Postgres would take a new process of that number for a live server.
postgres_start() {
  require_free_port postgres "$POSTGRES_PORT" ONCEONLY_POSTGRES_PORT
  as_postgres
  init_postgres
  rm -f -- "$POSTGRES_DIR/postmaster.pid"
  await_orphans
  spawn "$POSTGRES_LOG" "${AS_POSTGRES[@]}" "$POSTGRES_BIN/postgres" -D "$POSTGRES_DIR" \
    -c listen_addresses=127.0.0.1 -c "port=$POSTGRES_PORT" -c unix_socket_directories= \
    -c max_connections=200 -c fsync=on -c timezone=UTC -c log_timezone=UTC \
    -c "log_line_prefix=%m [%p] %q%d "
}

# The children of a killed server hold its shared memory until they notice.
await_orphans() {
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    postgres_orphans || return 0
    sleep 0.1
  done
}

# Whether any process still works in the folder of the cluster.
postgres_orphans() {
  local folder
  for folder in /proc/[0-9]*; do
    [[ $(readlink "$folder/cwd" 2>/dev/null) != "$POSTGRES_DIR" ]] || return 0
  done
  return 1
}

postgres_query() {
  PGPASSWORD=onceonly PGCONNECT_TIMEOUT=5 "$POSTGRES_BIN/psql" -X -q -A -t -w -h 127.0.0.1 -p "$POSTGRES_PORT" \
    -U onceonly -d "$1" -c "$2" </dev/null 2>/dev/null
}

postgres_ready() {
  [[ -n ${POSTGRES_BIN:-} ]] || POSTGRES_BIN=$(find_postgres_bin) || return 1
  [[ $(postgres_query onceonly 'SELECT 1') == 1 ]] && return 0
  # The first start: the database is not there yet.
  postgres_query postgres 'CREATE DATABASE onceonly' && [[ $(postgres_query onceonly 'SELECT 1') == 1 ]]
}
