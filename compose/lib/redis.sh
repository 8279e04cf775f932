# shellcheck shell=bash
# Redis from its Debian package: in memory only, nothing evicted.

REDIS_DIR=$STACK_DIR/redis
REDIS_LOG=$STACK_DIR/redis.log

redis_pid_file() { printf '%s\n' "$REDIS_DIR/pid"; }
redis_mark() { printf '%s\n' "$REDIS_DIR/redis.conf"; }
redis_data() { printf '%s\n' "$REDIS_DIR"; }
redis_port() { printf '%s\n' "$REDIS_PORT"; }
redis_log() { printf '%s\n' "$REDIS_LOG"; }
redis_stop_signal() { printf 'TERM\n'; }

redis_prepare() {
  command -v redis-server >/dev/null && command -v redis-cli >/dev/null && return 0
  require 'redis-server redis-tools' redis-server redis-cli
  keep_service_off redis-server.service
}

# The title stays what the command line was: is_ours looks for the file's name.
write_redis_config() {
  cat >"$REDIS_DIR/redis.conf" <<CONFIG
bind 127.0.0.1
port $REDIS_PORT
dir $REDIS_DIR
daemonize no
set-proc-title no
save ""
appendonly no
maxmemory 0
maxmemory-policy noeviction
CONFIG
}

redis_start() {
  require_free_port redis "$REDIS_PORT" ONCEONLY_REDIS_PORT
  mkdir -p -- "$REDIS_DIR"
  write_redis_config
  spawn "$REDIS_LOG" redis-server "$REDIS_DIR/redis.conf"
  printf '%s\n' "$SPAWNED" >"$REDIS_DIR/pid"
}

redis_ready() {
  [[ $(timeout 5 redis-cli -h 127.0.0.1 -p "$REDIS_PORT" ping 2>/dev/null) == PONG ]]
}
